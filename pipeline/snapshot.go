package pipeline

import (
	"bytes"
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
	"github.com/cfpipe/cfpipe/packetring"
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

// Snapshot returns the newest picture of a key as a file: the newest frame of its frame ring where that lies in host memory, or on a GPU
// that this process has open; else what decoding from the last keyframe of its packet ring to its end gives; else the newest frame on
// the GPU. (CUDA takes longer to start than a decoder takes from the keyframe on.) Errors: ErrNoKey, ErrNoPackets, os.ErrDeadlineExceeded
// when no picture came in time.
func Snapshot(ctx context.Context, o SnapshotOptions) ([]byte, SnapshotInfo, error) {
	patience := o.WaitForKey
	if patience <= 0 {
		patience = 5 * time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, patience+time.Second)
	defer cancel()
	still, info, err := frameStill(bounded, o, !cudavmm.InUse(o.Device))
	onGPU := errors.Is(err, cudavmm.ErrUnavailable) || errors.Is(err, cudavmm.ErrOtherDevice)
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

// snapshotThreads bounds the pictures that are decoded in parallel: the way from the keyframe is shorter.
const snapshotThreads = 12

// packetStill decodes from the last keyframe to the newest picture.
func packetStill(ctx context.Context, o SnapshotOptions) (still av.Still, info SnapshotInfo, err error) {
	sub, err := Subscribe(ctx, SubscribeOptions{
		RuntimeDir: o.RuntimeDir, Key: o.Key, Name: "snapshot", NoFollow: true, Logger: o.Logger, WaitForKey: o.WaitForKey,
	})
	if err != nil {
		return still, info, err
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	i := sub.Info()
	if err := notSound(o.Key, i.CodecID); err != nil {
		return still, info, err
	}
	packets, err := newestGOP(ctx, sub)
	if err != nil {
		return still, info, err
	}
	d, err := decode.Open(decode.Options{CodecID: i.CodecID, Extradata: i.Extradata, Mode: decode.CPU, Threads: min(snapshotThreads, runtime.NumCPU()), Logger: o.Logger})
	if err != nil {
		return still, info, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var kept keptPicture
	if info.Seq, err = kept.newest(ctx, d, packets); err != nil {
		return still, info, err
	}
	for kept.pixels == nil { // the ring is empty, or holds none that decodes
		p, err := sub.Next(ctx)
		if err == nil {
			info.Seq = p.Seq
			err = d.Decode(decodePacket(p), kept.keep)
		}
		if err == nil {
			err = d.Drain(kept.keep)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t := d.Stats()
			err = fmt.Errorf("of %d packets none gave a picture (%d passed over while waiting for a keyframe, %d damaged): %w", t.Packets, t.Skipped, t.Errors, err)
		}
		if err != nil {
			return still, info, err
		}
	}
	still = kept.still()
	return still, SnapshotInfo{From: "packets", Seq: info.Seq, PTS: kept.pts, Width: still.Width, Height: still.Height}, nil
}

// newestGOP copies what the ring holds from the last keyframe on: decoding takes a while, and the ring does not wait.
func newestGOP(ctx context.Context, sub *Subscription) (packets []packetring.Packet, err error) {
	for last, newest := uint64(0), sub.Stats().GlobalSeq; last < newest; {
		p, err := sub.Next(ctx)
		if errors.Is(err, ErrEnded) {
			break
		}
		if err != nil {
			return nil, err
		}
		if p.Flags&(packetring.FlagKey|packetring.FlagCorrupt) == packetring.FlagKey {
			packets = packets[:0]
		}
		p.Data = bytes.Clone(p.Data)
		packets, last = append(packets, p), p.Seq
	}
	return packets, nil
}

// keptPicture is a copy of a picture.
type keptPicture struct {
	layout decode.Layout
	pts    int64
	pixels []byte // nil: there is none yet
}

func (k *keptPicture) keep(p *decode.Picture) error {
	if len(k.pixels) < p.Layout.Size() {
		k.pixels = make([]byte, p.Layout.Size())
	}
	k.layout, k.pts = p.Layout, p.PTS
	return p.CopyTo(k.pixels)
}

// newest keeps the packets' last picture and returns the number of the packet it came in. Pictures that it does not need are not decoded,
// unless it is damaged, and the last one before it has to be found.
func (k *keptPicture) newest(ctx context.Context, d *decode.Decoder, packets []packetring.Packet) (seq uint64, err error) {
	last := 0
	for i, p := range packets {
		if p.PTS >= packets[last].PTS {
			last = i
		}
	}
	for _, alone := range []bool{true, false} {
		keep := k.keep
		if alone {
			keep = func(p *decode.Picture) error {
				if p.PTS != packets[last].PTS {
					return nil
				}
				return k.keep(p)
			}
		}
		for i, p := range packets[:min(last+1, len(packets))] {
			q := decodePacket(p)
			q.RefOnly, seq = alone && i != last, p.Seq
			if err := errors.Join(ctx.Err(), d.Decode(q, keep)); err != nil {
				return seq, err
			}
		}
		if err := d.Drain(keep); err != nil || k.pixels != nil {
			return seq, err
		}
	}
	return seq, nil
}

func (k *keptPicture) still() av.Still {
	chroma := k.layout.ChromaOffset()
	format := av.NV12
	if k.layout.Format != decode.NV12 {
		format = av.P010
	}
	return av.Still{Format: format, Width: k.layout.Width, Height: k.layout.Height, Planes: []av.StillPlane{
		{Data: k.pixels[:chroma], Pitch: k.layout.Pitch}, {Data: k.pixels[chroma:k.layout.Size()], Pitch: k.layout.Pitch},
	}}
}
