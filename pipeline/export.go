package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/mux"
)

// ExportOptions describe a key's packets as one byte stream. Key and Out must be set.
type ExportOptions struct {
	RuntimeDir string
	Key        string
	Format     mux.Format // "" = annexb
	Out        io.Writer
	Start      Start         // where in the ring to begin
	Duration   time.Duration // stop after so much; 0 = no limit
	Count      uint64        // stop after so many access units of video; 0 = no limit
	WaitForKey time.Duration // see SubscribeOptions
	Follow     bool          // go on with the next publisher when this one has ended
	NoAudio    bool
	Logger     *slog.Logger
}

// maxExportGap is the step of time that a stream shows as it is; above it, and back, the stream's time goes on instead.
const maxExportGap = 10 * time.Second

// maxEarly is how far in front of the first keyframe audio still belongs to it, and maxEarlyPackets how many packets of it are kept
// where their times say nothing: 100 ms are 40 of Opus at its shortest.
const (
	maxEarly        = 100 * time.Millisecond
	maxEarlyPackets = 64
)

// Export writes a key's packets to Out as they come, from a keyframe on, until Duration or Count is reached, the publication
// has ended (without Follow), or the reader of Out has gone (all nil), or until ctx is done (ctx's error).
func Export(ctx context.Context, o ExportOptions) error {
	if o.Format == "" {
		o.Format = mux.AnnexB
	}
	e := &exporter{o: o, log: o.Logger}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	in, err := newInterleaver(ctx, interleaverOptions{
		SubscribeOptions: SubscribeOptions{
			RuntimeDir: o.RuntimeDir, Key: o.Key, Name: "packets", Start: o.Start, WaitForKey: o.WaitForKey, NoFollow: !o.Follow,
			Logger: o.Logger,
		},
		NoAudio: o.NoAudio || o.Format == mux.AnnexB,
	})
	if err != nil {
		return err
	}
	defer in.Close()
	if info, ok := in.audioInfo(); ok {
		_ = e.describe(item{Track: audioTrack, Info: &info}) // audio alone never fails a stream
	}
	err = e.run(ctx, in)
	if e.w != nil {
		if _, ferr := e.w.Finish(0); ferr != nil && err == nil {
			err = ferr
		}
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) { // whoever read has seen enough
		return nil
	}
	if err != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("packets of %s: %w", o.Key, err)
	}
	return err
}

type exporter struct {
	o     ExportOptions
	log   *slog.Logger
	w     *mux.Writer
	video media.Track
	audio *media.Track

	begin  int64 // stream time of the first packet
	first  int64 // DTS of the first packet of video
	resume int64 // stream time from which sound is taken again after a step
	offset int64 // stream time = packet time + offset
	last   int64 // stream time (DTS) of the newest video packet
	n      uint64
	early  []media.Packet // audio in front of the first keyframe
}

func (e *exporter) run(ctx context.Context, in *interleaver) error {
	for {
		it, err := in.next(ctx)
		if errors.Is(err, ErrEnded) {
			return nil
		}
		if err != nil {
			return err
		}
		if it.Info != nil {
			if err := e.describe(it); err != nil {
				return err
			}
		}
		if it.Lost > 0 {
			e.log.Warn("packets were lost: the ring had moved on", "track", media.Kind(it.Track), "lost", it.Lost)
		}
		if it.Track == videoTrack {
			if e.o.Count > 0 && e.n >= e.o.Count {
				return nil
			}
			e.n++
		}
		if over, err := e.write(it); over || err != nil {
			return err
		}
	}
}

func (e *exporter) describe(it item) error {
	t := trackOf(*it.Info)
	switch {
	case it.Track == videoTrack:
		if e.video.CodecID != 0 && e.video.CodecID != t.CodecID && e.o.Format != mux.TS {
			return fmt.Errorf("the codec has changed from %s to %s", media.CodecName(e.video.CodecID), media.CodecName(t.CodecID))
		}
		e.video = t
	case mux.HoldsAudio(e.o.Format, t.CodecID) != nil:
		e.log.Warn("the stream goes without audio", "reason", mux.HoldsAudio(e.o.Format, t.CodecID))
	case e.audio == nil:
		e.audio = &t
		if e.w != nil {
			e.log.Warn("audio came after the stream had begun: the stream goes without it")
		}
	}
	return nil
}

// write puts the packet on the stream's own time, which never steps back.
func (e *exporter) write(it item) (over bool, err error) {
	p := mediaPacket(it.Packet)
	p.PTS += e.offset
	p.DTS += e.offset
	if it.Track == audioTrack {
		if e.w == nil && e.begin == 0 && e.audio != nil {
			e.keepEarly(p)
			return false, nil
		}
		if e.w == nil || !e.w.HasAudio() || p.PTS < e.begin || p.PTS < e.resume || p.PTS > e.last+int64(maxExportGap) {
			return false, nil
		}
		return false, e.w.Write(mux.AudioTrack, p)
	}
	if e.w != nil && (p.DTS < e.last || p.DTS > e.last+int64(maxExportGap)) {
		step := e.last + int64(40*time.Millisecond) - p.DTS
		e.offset += step
		p.PTS += step
		p.DTS += step
		e.resume = p.DTS - int64(maxEarly) // sound in front of it has no place in the stream's time
	}
	if e.w != nil && e.o.Format == mux.TS && p.Flags&media.FlagDiscontinuity != 0 && p.Flags&media.FlagKey != 0 {
		if _, err := e.w.Finish(p.DTS); err != nil {
			return false, err
		}
		e.w = nil
	}
	if e.w == nil {
		if p.Flags&media.FlagKey == 0 {
			return false, nil
		}
		if e.begin == 0 {
			e.begin, e.first = p.DTS, p.DTS
			for len(e.early) > 0 && e.early[0].PTS < p.PTS-int64(maxEarly) {
				e.early = e.early[1:]
			}
			if len(e.early) > 0 {
				e.begin = min(e.begin, e.early[0].PTS)
			}
		}
		e.w, err = mux.NewWriter(mux.WriterOptions{
			Format: e.o.Format, Video: e.video, Audio: e.audio, Key: p.Data, Out: e.o.Out, Live: true, Start: e.begin,
			Discontinuous: e.n > 1,
		})
		if err != nil {
			return false, err
		}
		for _, a := range e.early {
			if err := e.w.Write(mux.AudioTrack, a); err != nil {
				return false, err
			}
		}
		e.early = nil
	}
	if e.o.Duration > 0 && p.DTS >= e.first+int64(e.o.Duration) {
		return true, nil
	}
	e.last = p.DTS
	return false, e.w.Write(mux.VideoTrack, p)
}

// keepEarly keeps audio that comes in front of the first keyframe: encoders begin audio a frame early, and that belongs to it.
func (e *exporter) keepEarly(p media.Packet) {
	p.Data = bytes.Clone(p.Data)
	e.early = append(e.early, p)
	for e.early[0].PTS < p.PTS-int64(maxEarly) || len(e.early) > maxEarlyPackets {
		e.early = e.early[1:]
	}
}

// full says whether an error means that a disk or a quota has no room.
func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }
