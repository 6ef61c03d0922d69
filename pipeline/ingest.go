package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/packetring"
)

const (
	// The ring of a video holds a GOP of several seconds: 16 MiB are 33 s at 4 Mbit/s and 16 s at 8 Mbit/s; the slots are as many
	// as the format allows (41 s at 25 frames a second), since an empty one costs 64 bytes. Of MJPEG at 80 Mbit/s it holds 1.6 s,
	// and every picture of it stands alone.
	defaultIngestSlots = packetring.MaxSlots
	defaultIngestBytes = 16 << 20
	// An access unit may fill a quarter of the ring, and at most what an 8K keyframe needs.
	maxIngestPacket = 8 << 20
	// The ring of an audio: 1 MiB are 30 s of AAC at 256 kbit/s, 2 min of G.711, 5 s of 48 kHz stereo L16.
	audioBytes, audioMaxPacket = 1 << 20, 64 << 10

	// Reconnecting. A connection counts as good once it has delivered for goodFor; a camera that flaps stays at the longer waits.
	minBackoff, maxBackoff = time.Second, time.Minute
	goodFor                = 5 * time.Second
	// After a refused login the wait is at least so many times the shortest one: cameras lock an account after 3 to 10 failures
	// within some minutes.
	loginBackoff = 30

	maxVideoKey = 63 - len(AudioSuffix)
)

// SourceSuffix names the packets of a key that is published in protocol 1, which has none.
const SourceSuffix = "-source"

// IngestOptions say what is published under which key. Key and Source must be set.
type IngestOptions struct {
	RuntimeDir string // "" = $CUFRAMES_RUNTIME_DIR, else framering.DefaultRuntimeDir
	Key        string
	Group      string
	// Protocol is the dialect of KEY: 4, 2 or 1; 0 = 4. Protocol 1 has no packets: the video's are published as KEY-source then, in
	// protocol 4, and Decode must be set.
	Protocol uint32
	NoAudio  bool // publish no KEY-audio

	Source media.Source
	Name   string // of the source, for logs; without credentials
	Live   bool   // connect again whenever it ends; else its end is the end

	PacketSlots int // of the video's packet ring; 0 = 1024
	PacketBytes int // of its data; 0 = 16 MiB

	// Decode puts decoded pictures of the video under the same key; nil = none. Its Key, Publisher and what concerns both stages are
	// filled in.
	Decode  *DecodeOptions
	Decoded *DecodeCounter // the counts of that; may be nil

	Duration time.Duration // stop after so much; 0 = never
	// Stagger is the span over which sources that start together are spread: each waits a random part of it first.
	Stagger time.Duration
	// Backoff replaces the shortest wait between two connections; 0 = 1 s. The longest is 60 times that.
	Backoff time.Duration

	Progress func(IngestStats) // called about once a second when set
	Logger   *slog.Logger      // nil = silent
}

// Ingest owns a source and publishes what it delivers: one publication per track, which lives on while the source is away.
type Ingest struct {
	o     IngestOptions
	log   *slog.Logger
	sink  *ingestSink
	state ingestState
	good  time.Duration // goodFor

	delivered bool // a connection has brought packets
}

// NewIngest checks the options. The error Is framering.ErrInvalidArg when they cannot work.
func NewIngest(o IngestOptions) (*Ingest, error) {
	longest := maxVideoKey + len(AudioSuffix)
	if !o.NoAudio {
		longest = maxVideoKey
	}
	if o.Protocol == 1 {
		if o.Decode == nil {
			return nil, fmt.Errorf("protocol 1 has frames alone: decoding must be on: %w", framering.ErrInvalidArg)
		}
		longest = min(longest, maxVideoKey+len(AudioSuffix)-len(SourceSuffix)) // KEY-source must be a key
	}
	if framering.CheckKey(o.Key) != nil || len(o.Key) > longest {
		return nil, &framering.KeyError{Key: o.Key, Max: longest}
	}
	if err := checkRing(o.PacketSlots, o.PacketBytes); err != nil {
		return nil, err
	}
	if o.PacketSlots == 0 {
		o.PacketSlots = defaultIngestSlots
	}
	if o.PacketBytes == 0 {
		o.PacketBytes = defaultIngestBytes
	}
	if o.Backoff <= 0 {
		o.Backoff = minBackoff
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	in := &Ingest{o: o, log: o.Logger.With("key", o.Key), good: goodFor}
	in.sink = newIngestSink(in)
	return in, nil
}

// MaxUnit is the largest access unit that the video's ring will take, for sources that have to know.
func (o IngestOptions) MaxUnit() int {
	n := o.PacketBytes
	if n == 0 {
		n = defaultIngestBytes
	}
	return min(n, max(n/4, 64<<10), maxIngestPacket)
}

// Run publishes until the context ends (its error is returned), the duration is over or a source that is not live ends (nil), or
// something fails that another attempt cannot mend: the key is taken (*KeyTakenError), there is no room in shared
// memory, the source is of a kind that is not supported and has not worked before.
func (in *Ingest) Run(ctx context.Context) error {
	if err := in.check(ctx); err != nil {
		return fmt.Errorf("ingest %s: %w", in.o.Key, err)
	}
	defer in.sink.close()
	if in.o.Duration > 0 {
		outer := ctx
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, in.o.Duration)
		defer cancel()
		err := in.run(ctx)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil && !errors.Is(outer.Err(), context.DeadlineExceeded) {
			return nil
		}
		return err
	}
	return in.run(ctx)
}

func (in *Ingest) run(ctx context.Context) error {
	stop := in.progress(ctx)
	defer stop()
	if in.o.Stagger > 0 {
		if err := sleep(ctx, rand.N(in.o.Stagger)); err != nil {
			return err
		}
	}
	backoff := in.o.Backoff
	for {
		in.state.connecting()
		begun := time.Now()
		err := in.o.Source.Run(ctx, in.sink)
		came := !in.sink.first.IsZero()
		in.delivered = in.delivered || came
		good := in.sink.connectionEnded()
		in.state.ended(err)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case in.sink.fatal != nil:
			return fmt.Errorf("ingest %s: %w", in.o.Key, in.sink.fatal)
		case !in.o.Live:
			return err
		case errors.Is(err, media.ErrUnsupported) && !in.delivered:
			return err // later it is a camera that starts up, or is being set up
		}
		if good >= in.good {
			backoff = in.o.Backoff
		}
		if err == nil {
			err = errors.New("the source has ended")
		}
		wait := min(backoff/2+rand.N(backoff), maxBackoff) // 0.5 to 1.5 times: cameras that fail together do not come back together
		what := "cannot connect"
		switch {
		case errors.Is(err, media.ErrLogin):
			what = "the camera refuses the login; tried again slowly, since cameras lock accounts"
			wait = max(wait, loginBackoff*in.o.Backoff+rand.N(in.o.Backoff))
		case came:
			what = "connection lost"
		}
		in.log.Warn(what, "source", in.o.Name, "error", err, "after", time.Since(begun).Round(time.Millisecond), "again_in", wait.Round(time.Millisecond))
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		backoff = min(2*backoff, 60*in.o.Backoff, maxBackoff)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// progress calls Progress in the background until the returned function is called.
func (in *Ingest) progress(ctx context.Context) (stop func()) {
	if in.o.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(ctx, time.Second) == nil {
			in.o.Progress(in.Stats())
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
