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
	"github.com/cfpipe/cfpipe/pipeline/still"
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
// that this process has open; else, of frames on a GPU, what their publisher hands out (package still); else what decoding from the last
// keyframe of its packet ring to its end gives; else the newest frame on the GPU, for which CUDA has to start. Errors: ErrNoKey,
// ErrNoPackets, os.ErrDeadlineExceeded when no picture came in time.
func Snapshot(ctx context.Context, o SnapshotOptions) ([]byte, SnapshotInfo, error) {
	patience := o.WaitForKey
	if patience <= 0 {
		patience = 5 * time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, patience+time.Second)
	defer cancel()
	picture, info, err := newestStill(bounded, o)
	if err == nil {
		var b []byte
		if b, err = av.EncodeStill(picture, o.Format, o.Quality); err == nil {
			return b, info, nil
		}
	}
	return nil, info, fmt.Errorf("snapshot of %s: %w", o.Key, err)
}

// newestStill goes the ways that Snapshot names, the quickest first.
func newestStill(ctx context.Context, o SnapshotOptions) (av.Still, SnapshotInfo, error) {
	picture, info, err := frameStill(ctx, o, !cudavmm.InUse(o.Device))
	onGPU := errors.Is(err, cudavmm.ErrUnavailable) || errors.Is(err, cudavmm.ErrOtherDevice)
	switch {
	case onGPU:
		p, err := askStill(ctx, o)
		if err == nil {
			return stillOf(p)
		}
		if o.Logger != nil {
			o.Logger.Debug("the publisher hands out no picture", "key", o.Key, "error", err)
		}
	case !errors.Is(err, ErrNoFrames): // nil too
		return picture, info, err
	}
	picture, info, err = packetStill(ctx, o)
	if onGPU && errors.Is(err, ErrNoPackets) {
		picture, info, err = frameStill(ctx, o, false)
	}
	return picture, info, err
}

// askStill asks the publisher, and leaves at least half of the time that there is to the other ways.
func askStill(ctx context.Context, o SnapshotOptions) (still.Picture, error) {
	if end, ok := ctx.Deadline(); ok {
		half, cancel := context.WithTimeout(ctx, time.Until(end)/2)
		defer cancel()
		ctx = half
	}
	return still.Ask(ctx, o.RuntimeDir, o.Key)
}

// frameStill copies the newest frame.
func frameStill(ctx context.Context, o SnapshotOptions, hostOnly bool) (picture av.Still, info SnapshotInfo, err error) {
	s, err := SubscribeFrames(ctx, FrameSubscribeOptions{
		RuntimeDir: o.RuntimeDir, Key: o.Key, Name: "snapshot", Newest: true, Device: o.Device, HostOnly: hostOnly,
		Logger: o.Logger, WaitForKey: o.WaitForKey,
	})
	if err != nil {
		return picture, info, err
	}
	c := frameCopier{device: s.Device}
	defer func() { err = errors.Join(err, c.close(), s.Close()) }()
	for {
		f, err := s.Next(ctx)
		if err != nil {
			return picture, info, err
		}
		p, err := c.picture(f)
		if err = errors.Join(err, f.Release()); errors.Is(err, framering.ErrFrameOverrun) {
			continue
		}
		if err != nil {
			return picture, info, err
		}
		return stillOf(p)
	}
}

var stillFormats = map[framering.Format]av.PixelFormat{
	framering.NV12: av.NV12, framering.P010: av.P010, framering.P016: av.P016, framering.YUV420P: av.YUV420P, framering.RGB24: av.RGB24,
	framering.BGR24: av.BGR24, framering.RGBA32: av.RGBA, framering.BGRA32: av.BGRA, framering.GRAY8: av.Gray8,
}

// stillOf is the picture of a frame as av.EncodeStill takes it.
func stillOf(p still.Picture) (av.Still, SnapshotInfo, error) {
	planes, err := p.Planes()
	if err != nil {
		return av.Still{}, SnapshotInfo{}, err
	}
	s := av.Still{Format: stillFormats[p.Format], Width: p.Width, Height: p.Height}
	for _, q := range planes {
		s.Planes = append(s.Planes, av.StillPlane{Data: p.Pixels[q.Offset : q.Offset+q.Bytes*q.Lines], Pitch: q.Pitch})
	}
	return s, SnapshotInfo{From: "frames", Seq: p.Seq, PTS: p.PTS, Width: p.Width, Height: p.Height}, nil
}

// snapshotThreads bounds the pictures that are decoded in parallel: the way from the keyframe is shorter.
const snapshotThreads = 12

// packetStill decodes from the last keyframe to the newest picture.
func packetStill(ctx context.Context, o SnapshotOptions) (picture av.Still, info SnapshotInfo, err error) {
	sub, err := Subscribe(ctx, SubscribeOptions{
		RuntimeDir: o.RuntimeDir, Key: o.Key, Name: "snapshot", NoFollow: true, Logger: o.Logger, WaitForKey: o.WaitForKey,
	})
	if err != nil {
		return picture, info, err
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	i := sub.Info()
	if err := notSound(o.Key, i.CodecID); err != nil {
		return picture, info, err
	}
	packets, err := newestGOP(ctx, sub)
	if err != nil {
		return picture, info, err
	}
	d, err := decode.Open(decode.Options{
		CodecID: i.CodecID, Extradata: i.Extradata, Mode: decode.CPU, Threads: min(snapshotThreads, runtime.NumCPU()), Logger: o.Logger,
	})
	if err != nil {
		return picture, info, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	var kept keptPicture
	if info.Seq, err = kept.newest(ctx, d, packets); err != nil {
		return picture, info, err
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
			err = fmt.Errorf("of %d packets none gave a picture (%d passed over while waiting for a keyframe, %d damaged): %w",
				t.Packets, t.Skipped, t.Errors, err)
		}
		if err != nil {
			return picture, info, err
		}
	}
	picture = kept.still()
	return picture, SnapshotInfo{From: "packets", Seq: info.Seq, PTS: kept.pts, Width: picture.Width, Height: picture.Height}, nil
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
