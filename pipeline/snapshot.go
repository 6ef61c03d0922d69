package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/av"
)

// SnapshotOptions describe a still picture of a key. Key must be set.
type SnapshotOptions struct {
	RuntimeDir string
	Key        string
	Format     av.StillFormat
	Quality    int           // JPEG: 1 (best) to 31; 0 = 3
	WaitForKey time.Duration // how long to wait for the key, and for a picture; 0 = not for the key, 5 s for a picture
	Device     int
	Logger     *slog.Logger
}

// SnapshotInfo says what a snapshot shows.
type SnapshotInfo struct {
	From          string // "frames" or "packets"
	Seq           uint64 // of the frame or packet
	PTS           int64  // Unix ns
	Width, Height int
}

// Snapshot returns the newest picture of a key as a file: the newest frame of its frame ring in host memory, else what decoding from the
// last keyframe of its packet ring to its end gives, else the newest frame in GPU memory. (CUDA takes longer to start than a
// decoder takes from the keyframe on.) Errors: ErrNoKey, ErrNoPackets, os.ErrDeadlineExceeded when no picture came in time.
func Snapshot(ctx context.Context, o SnapshotOptions) ([]byte, SnapshotInfo, error) {
	patience := o.WaitForKey
	if patience <= 0 {
		patience = 5 * time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, patience+time.Second)
	defer cancel()
	still, info, err := frameStill(bounded, o, true)
	onGPU := errors.Is(err, cudavmm.ErrUnavailable)
	if onGPU || errors.Is(err, ErrNoFrames) {
		still, info, err = packetStill(bounded, o)
	}
	if onGPU && errors.Is(err, ErrNoPackets) {
		still, info, err = frameStill(bounded, o, false)
	}
	if err == nil {
		var b []byte
		if b, err = av.EncodeStill(still, o.Format, o.Quality); err == nil {
			return b, info, nil
		}
	}
	return nil, info, fmt.Errorf("snapshot of %s: %w", o.Key, err)
}

var stillFormats = map[framering.Format]av.PixelFormat{
	framering.NV12: av.NV12, framering.P010: av.P010, framering.P016: av.P016, framering.YUV420P: av.YUV420P, framering.RGB24: av.RGB24,
	framering.BGR24: av.BGR24, framering.RGBA32: av.RGBA, framering.BGRA32: av.BGRA, framering.GRAY8: av.Gray8,
}

// frameStill copies the newest frame.
func frameStill(ctx context.Context, o SnapshotOptions, hostOnly bool) (still av.Still, info SnapshotInfo, err error) {
	s, err := SubscribeFrames(ctx, FrameSubscribeOptions{
		RuntimeDir: o.RuntimeDir, Key: o.Key, Name: "snapshot", Newest: true, Device: o.Device, HostOnly: hostOnly, Logger: o.Logger, WaitForKey: o.WaitForKey,
	})
	if err != nil {
		return still, info, err
	}
	c := frameCopier{device: s.Device}
	defer func() { err = errors.Join(err, c.close(), s.Close()) }()
	for {
		f, err := s.Next(ctx)
		if err != nil {
			return still, info, err
		}
		meta := s.Meta()
		var pixels []byte
		if err = c.use(meta); err == nil {
			pixels = make([]byte, c.size)
			err = c.copy(pixels, f)
		}
		if err = errors.Join(err, f.Release()); errors.Is(err, framering.ErrFrameOverrun) {
			continue
		}
		if err != nil {
			return still, info, err
		}
		format, ok := stillFormats[meta.Format]
		if !ok {
			return still, info, fmt.Errorf("%s: %w", meta.Format, framering.ErrFormat)
		}
		still = av.Still{Format: format, Width: int(meta.Width), Height: int(meta.Height), Planes: packedPlanes(c.planes, pixels)}
		return still, SnapshotInfo{From: "frames", Seq: f.Seq, PTS: f.PTS, Width: still.Width, Height: still.Height}, nil
	}
}

func packedPlanes(planes []framering.Plane, pixels []byte) (all []av.StillPlane) {
	for _, p := range planes {
		n := p.Bytes * p.Lines
		all = append(all, av.StillPlane{Data: pixels[:n], Pitch: p.Bytes})
		pixels = pixels[n:]
	}
	return all
}

const (
	snapshotThreads = 8 // pictures decoded in parallel: the way from the keyframe is shorter
	// snapshotTail is how many packets from the newest one on pictures are kept: more than a decoder holds back, by its threads and
	// by the order of B-frames.
	snapshotTail = snapshotThreads + 17
)

// packetStill decodes from the last keyframe to the newest packet.
func packetStill(ctx context.Context, o SnapshotOptions) (still av.Still, info SnapshotInfo, err error) {
	sub, err := Subscribe(ctx, SubscribeOptions{
		RuntimeDir: o.RuntimeDir, Key: o.Key, Name: "snapshot", NoFollow: true, Logger: o.Logger, WaitForKey: o.WaitForKey,
	})
	if err != nil {
		return still, info, err
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	newest := sub.Stats().GlobalSeq
	i := sub.Info()
	if err := notSound(o.Key, i.CodecID); err != nil {
		return still, info, err
	}
	d, err := decode.Open(decode.Options{CodecID: i.CodecID, Extradata: i.Extradata, Mode: decode.CPU, Threads: min(snapshotThreads, runtime.NumCPU()), Logger: o.Logger})
	if err != nil {
		return still, info, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var slot cudavmm.Buffer
	defer func() {
		if slot != nil {
			err = errors.Join(err, slot.Close())
		}
	}()
	var layout decode.Layout
	keep := func(p *decode.Picture) error {
		if slot != nil && info.Seq+snapshotTail < newest {
			return nil // a newer one comes
		}
		if slot == nil || p.Layout != layout {
			if slot != nil {
				_ = slot.Close()
				slot = nil
			}
			b, err := cudavmm.Host{}.Alloc("cuframes-snapshot", p.Layout.Size())
			if err != nil {
				return err
			}
			slot, layout = b, p.Layout
		}
		info.PTS, info.From = p.PTS, "packets"
		return p.Store(slot)
	}
	// To the newest packet, and on until there is a picture (the ring may be empty, or hold none that decodes).
	for info.Seq < newest || slot == nil {
		p, err := sub.Next(ctx)
		if errors.Is(err, ErrEnded) && slot != nil {
			break
		}
		if err != nil {
			return still, info, err
		}
		info.Seq = p.Seq
		err = d.Decode(decodePacket(p), keep)
		if err == nil && info.Seq >= newest && slot == nil {
			err = d.Drain(keep)
		}
		if err != nil {
			return still, info, err
		}
	}
	if err := d.Drain(keep); err != nil {
		return still, info, err
	}
	pixels := append([]byte(nil), slot.Bytes()[:layout.Size()]...)
	still = av.Still{Format: av.NV12, Width: layout.Width, Height: layout.Height, Planes: []av.StillPlane{
		{Data: pixels[:layout.ChromaOffset()], Pitch: layout.Pitch}, {Data: pixels[layout.ChromaOffset():], Pitch: layout.Pitch},
	}}
	if layout.Format != decode.NV12 {
		still.Format = av.P010
	}
	info.Width, info.Height = layout.Width, layout.Height
	return still, info, nil
}
