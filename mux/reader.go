package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
)

// seekBack is how far in front of a time it is looked for a keyframe where the container has no index of them.
const seekBack = 15 * time.Second

// Reader reads a recording back: its access units as they were in the ring, with their Unix times. Not safe for concurrent use.
type Reader struct {
	ctx    context.Context // of the whole reading, as that of a request
	r      io.ReadSeeker
	in     *av.File
	zero   int64 // Unix ns of the file's time zero
	tracks [2]int
	from   int64 // DTS of the keyframe in front of which packets are left out; 0 = none is
	log    *slog.Logger
}

// OpenReader opens a recording; when ctx ends, reading does, with its error. start is when its first picture is shown; it counts where the
// file itself knows no exact time.
func OpenReader(ctx context.Context, r io.ReadSeeker, start time.Time, log *slog.Logger) (*Reader, error) {
	x := &Reader{ctx: ctx, r: r, log: log}
	if err := x.reopen(); err != nil {
		return nil, err
	}
	origin := readOrigin(x.in.Tag)
	x.zero = origin.Start.UnixNano()
	if !origin.Exact {
		_, p, err := x.nextVideo()
		if err != nil {
			x.Close()
			return nil, err
		}
		x.zero = start.UnixNano() - (p.PTS - x.zero)
		if err := x.reopen(); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// reopen begins again at the start of the file.
func (x *Reader) reopen() error {
	x.Close()
	if _, err := x.r.Seek(0, io.SeekStart); err != nil {
		return err
	}
	in, err := av.OpenFile(x.ctx, x.r, x.log)
	if err != nil {
		return err
	}
	x.in, x.tracks, x.from = in, [2]int{-1, -1}, 0
	for i, t := range in.Tracks() {
		if t.Kind == media.Video {
			x.tracks[VideoTrack] = i
		} else {
			x.tracks[AudioTrack] = i
		}
	}
	if x.tracks[VideoTrack] < 0 {
		x.Close()
		return fmt.Errorf("%w: it has no pictures", ErrNoRecording)
	}
	return nil
}

// Video describes the pictures.
func (x *Reader) Video() media.Track { return x.in.Tracks()[x.tracks[VideoTrack]] }

// Audio describes the sound, as far as is known before Next returned some; nil = there is none.
func (x *Reader) Audio() *media.Track {
	if x.tracks[AudioTrack] < 0 {
		return nil
	}
	t := x.in.Tracks()[x.tracks[AudioTrack]]
	return &t
}

// VideoSize is the size of the pictures; 0 when it is not known.
func (x *Reader) VideoSize() (width, height int) { return x.in.VideoSize() }

// Next returns the next packet and its track (VideoTrack, AudioTrack), in the order of the file; Data is valid until the call after. At the end,
// and where the file was cut off, it is io.EOF.
func (x *Reader) Next() (track int, p media.Packet, err error) {
	for {
		i, p, err := x.in.Next()
		if err != nil {
			return 0, p, err
		}
		p.PTS += x.zero
		p.DTS += x.zero
		if i == x.tracks[AudioTrack] {
			track = AudioTrack
		} else {
			track = VideoTrack
		}
		if x.from != 0 {
			if track != VideoTrack || p.Flags&media.FlagKey == 0 || p.DTS < x.from {
				continue
			}
			x.from = 0
		}
		return track, p, nil
	}
}

func (x *Reader) nextVideo() (track int, p media.Packet, err error) {
	for {
		if track, p, err = x.Next(); err != nil || track == VideoTrack {
			return track, p, err
		}
	}
}

// SeekKey goes to the last keyframe that is shown at or before t: the next access unit of video is that one. Where there is none, it goes to the
// start of the file.
func (x *Reader) SeekKey(t time.Time) error {
	at := time.Duration(t.UnixNano() - x.zero)
	for _, begin := range []func() error{
		func() error { return x.in.Seek(max(at, 0)) }, func() error { return x.in.Seek(max(at-seekBack, 0)) }, x.reopen,
	} {
		if begin() != nil {
			if err := x.reopen(); err != nil {
				return err
			}
			continue
		}
		dts, found, err := x.lastKey(t.UnixNano())
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		if err := begin(); err != nil {
			return err
		}
		x.from = dts
		return nil
	}
	return x.reopen()
}

// lastKey reads on until pictures are newer than t, and returns the DTS of the last keyframe that is not.
func (x *Reader) lastKey(t int64) (dts int64, found bool, err error) {
	for {
		_, p, err := x.nextVideo()
		if errors.Is(err, io.EOF) {
			return dts, found, nil
		}
		if err != nil {
			return 0, false, err
		}
		if p.DTS > t {
			return dts, found, nil
		}
		if p.Flags&media.FlagKey != 0 && p.PTS <= t {
			dts, found = p.DTS, true
		}
	}
}

// Close frees the reader; the file stays open. Idempotent.
func (x *Reader) Close() {
	if x.in != nil {
		x.in.Close()
		x.in = nil
	}
}
