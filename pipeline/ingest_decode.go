package pipeline

import (
	"context"
	"time"
)

// decoding is the decode stage beside an ingest: it reads the packet ring of the ingest's own publication as any reader does, and puts
// the frames under the same key. It begins anew with each publication.
type decoding struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// startDecoding decodes pub until stop. A stage that fails is started again; ingest goes on meanwhile.
func startDecoding(o DecodeOptions, in IngestOptions, pub *Publication, counter *DecodeCounter) *decoding {
	o.RuntimeDir, o.Key, o.Logger, o.Publisher, o.Protocol = in.RuntimeDir, in.Key, in.Logger, pub.Control(), in.Protocol
	if in.Protocol == 1 { // frames under the key, packets beside it
		o.Key, o.NewKey, o.Group, o.Publisher = in.Key+SourceSuffix, in.Key, in.Group, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &decoding{cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(d.ended)
		for wait := minBackoff; ; wait = min(2*wait, maxBackoff) {
			begun := time.Now()
			err := Decode(ctx, o, counter)
			if ctx.Err() != nil {
				return
			}
			if time.Since(begun) > maxBackoff {
				wait = minBackoff
			}
			o.Logger.Warn("decoding has ended", "key", o.Key, "error", err, "again_in", wait)
			if sleep(ctx, wait) != nil {
				return
			}
		}
	}()
	return d
}

func (d *decoding) stop() {
	if d != nil {
		d.cancel()
		<-d.ended
	}
}
