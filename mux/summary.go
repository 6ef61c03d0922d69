package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
)

// Summary is what a recording tells of itself when its pictures are not read.
type Summary struct {
	Origin
	Begin, End    time.Duration // of the pictures, from the file's time zero
	Video, Audio  uint32        // codecs; 0 = there is none
	Width, Height int
	// Counts of which a file does not tell are -1: one that was not finished, or is by an older version. MP4 shows all but Lost always.
	Counts
	Bytes int64 // that can be played; what follows was cut off
	// Complete: it has its end, the index, the duration, the mark of a transport stream. One from elsewhere has none, and is complete always.
	Complete bool
}

// ErrNoRecording says that a file is none that can be read.
var ErrNoRecording = errors.New("no recording")

// Summarize reads as little of a file as its container allows: the boxes between the pictures of an MP4, the head and the end of others, in
// whatever state they are. A file that is being written is told of as it is now. When ctx ends, reading does, with its error.
func Summarize(ctx context.Context, f *os.File) (Summary, error) {
	st, err := f.Stat()
	if err != nil {
		return Summary{}, err
	}
	if !st.Mode().IsRegular() {
		return Summary{}, fmt.Errorf("%s: %w: not a plain file", f.Name(), ErrNoRecording)
	}
	var head [8]byte
	if _, err := f.ReadAt(head[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return Summary{}, err
	}
	var s Summary
	if string(head[4:]) == "ftyp" {
		s, err = summarizeMP4(ctx, f, st.Size())
	} else {
		s, err = summarizeStreams(ctx, f, st.Size())
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if s.Video == 0 {
		return s, fmt.Errorf("%s: %w: it has no pictures", f.Name(), ErrNoRecording)
	}
	return s, nil
}

// summarizeStreams asks FFmpeg: Matroska says its duration in its head, the last packets of a transport stream tell it.
func summarizeStreams(ctx context.Context, f *os.File, size int64) (s Summary, err error) {
	s.Counts, s.Bytes = unknownCounts, size
	in, err := av.OpenFile(ctx, io.NewSectionReader(f, 0, size), nil)
	if ctx.Err() != nil {
		if err == nil {
			in.Close()
		}
		return s, ctx.Err()
	}
	if err != nil {
		return s, fmt.Errorf("%w: %w", ErrNoRecording, err)
	}
	defer in.Close()
	s.Origin = readOrigin(in.Tag)
	s.Width, s.Height = in.VideoSize()
	for _, t := range in.Tracks() {
		if t.Kind == media.Video {
			s.Video = t.CodecID
		} else {
			s.Audio = t.CodecID
		}
	}
	if s.Begin, err = firstPicture(in); err != nil {
		return s, err
	}
	ends := in.HasDuration()
	s.Complete = ends && !tsCut(f, size)
	if ends {
		if s.Counts = tsCountsOf(f, size); s.Counts == unknownCounts {
			s.Counts = mkvCountsOf(f, size)
		}
		if s.End = in.VideoEnd(); s.End == 0 { // Matroska tells one duration, from time zero to the end of picture or sound
			s.End = in.Duration()
		}
		return s, nil
	}
	if end, ok := mkvTail(ctx, f, size); ok {
		s.End = end
		return s, nil
	}
	end, ok, err := lastPicture(in)
	if s.End = end; !ok { // the first one is the only one
		s.End = s.Begin + defaultInterval
	}
	return s, err
}

// firstPicture returns when the first picture is shown.
func firstPicture(in *av.File) (time.Duration, error) {
	for {
		track, p, err := in.Next()
		if errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("%w: no picture in it", ErrNoRecording)
		}
		if err != nil {
			return 0, err
		}
		if in.Tracks()[track].Kind == media.Video {
			return time.Duration(p.PTS), nil
		}
	}
}

// lastPicture reads on and returns when the last picture ends; false = there is none.
func lastPicture(in *av.File) (end time.Duration, ok bool, err error) {
	last, step := int64(0), int64(defaultInterval)
	for {
		track, p, err := in.Next()
		if errors.Is(err, io.EOF) {
			return end + time.Duration(step), ok, nil
		}
		if err != nil {
			return 0, false, err
		}
		if in.Tracks()[track].Kind != media.Video {
			continue
		}
		if d := p.DTS - last; ok && d > 0 && d <= int64(maxInterval) {
			step = d
		}
		last, end, ok = p.DTS, max(end, time.Duration(p.PTS)), true
	}
}
