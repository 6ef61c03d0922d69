package av

//#include <stdlib.h>
//#include "native.h"
import "C"

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"
	"unsafe"

	"github.com/asticode/go-astiav"

	"github.com/cfpipe/cfpipe/internal/media"
)

const (
	// fileChunk is read from a file at once.
	fileChunk = 128 << 10
	// fileFormats are FFmpeg's names of the containers that recordings have. Others name files and addresses of their own (playlists, SDP,
	// concat lists): what lies in a file must not choose them.
	fileFormats = "mov,matroska,mpegts"
	// Bounds of what is read to learn of a file's streams: half a megabyte is a second of 4 Mbit/s.
	fileProbe = "524288"
)

// File is a file that is read packet by packet, with its own times: ns from its time zero. What it reads through decides what it can see:
// nothing is opened by name. Not safe for concurrent use.
type File struct {
	d   *demuxer
	err error // of the reader; FFmpeg sees EIO
}

// OpenFile looks at the streams of an MP4, Matroska or transport stream file; another one is ErrInvalidData. An error of r is returned as
// it is. When ctx ends, reading does, with its error.
func OpenFile(ctx context.Context, r io.ReadSeeker, log *slog.Logger) (_ *File, err error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	d := &demuxer{in: &Input{log: log}, byStream: map[int]int{}}
	f := &File{d: d}
	d.fc = astiav.AllocFormatContext()
	d.pkt = astiav.AllocPacket()
	d.interrupter = astiav.NewIOInterrupter()
	d.interruptBy(ctx)
	C.cfav_refuse_io(formatPointer(d.fc))
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	seek := func(offset int64, whence int) (int64, error) {
		const seekSize, force = 0x10000, 0x20000 // AVSEEK_SIZE, AVSEEK_FORCE
		if whence&seekSize != 0 {
			return f.size(r)
		}
		n, err := r.Seek(offset, whence&^force)
		return n, f.failed(err)
	}
	read := func(b []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, f.failed(err)
		}
		n, err := r.Read(b)
		if n > 0 {
			return n, nil
		}
		if err == nil || errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		return 0, f.failed(err)
	}
	if d.io, err = astiav.AllocIOContext(fileChunk, false, read, seek, nil); err != nil {
		return nil, err
	}
	d.fc.SetPb(d.io)
	d.fc.SetFlags(d.fc.Flags().Add(astiav.FormatContextFlagGenPts))
	options := astiav.NewDictionary()
	defer options.Free()
	for name, value := range map[string]string{"probesize": fileProbe, "format_whitelist": fileFormats, "protocol_whitelist": ""} {
		if err := options.Set(name, value, 0); err != nil {
			return nil, wrap("set option "+name, err)
		}
	}
	if err := d.fc.OpenInput("", nil, options); err != nil {
		d.fc = nil // freed by the failed call
		return nil, f.cause(wrap("open", err))
	}
	if err := d.fc.FindStreamInfo(nil); err != nil {
		return nil, f.cause(wrap("find streams", err))
	}
	return f, d.choose()
}

func (f *File) size(r io.Seeker) (int64, error) {
	here, err := r.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, f.failed(err)
	}
	end, err := r.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = r.Seek(here, io.SeekStart)
	}
	return end, f.failed(err)
}

// failed keeps the reader's error, and gives FFmpeg one that it knows.
func (f *File) failed(err error) error {
	if err == nil {
		return nil
	}
	f.err = err
	return astiav.ErrEio
}

// cause prefers the reader's error, which says more.
func (f *File) cause(err error) error {
	if f.err != nil {
		return f.err
	}
	return err
}

// Tracks returns one video and one audio track at most, in the order of Next's numbers. Parameters that only the packets tell may change
// with Next.
func (f *File) Tracks() []media.Track {
	tracks := make([]media.Track, len(f.d.tracks))
	for i, t := range f.d.tracks {
		tracks[i] = t.Track
	}
	return tracks
}

// VideoSize is the size of the pictures; 0 when there are none.
func (f *File) VideoSize() (width, height int) {
	for _, st := range f.d.fc.Streams() {
		if i, ok := f.d.byStream[st.Index()]; ok && f.d.tracks[i].Kind == media.Video {
			return st.CodecParameters().Width(), st.CodecParameters().Height()
		}
	}
	return 0, 0
}

// Duration is the length that the container tells, or that its last packets do; 0 = not known. It begins with the first packet.
func (f *File) Duration() time.Duration {
	if d := f.d.fc.Duration(); d > 0 {
		return time.Duration(d) * time.Microsecond
	}
	return 0
}

// VideoEnd is the time at which the last picture ends, where the container or its last packets tell; 0 = not known. Sound may end later.
func (f *File) VideoEnd() time.Duration {
	for _, st := range f.d.fc.Streams() {
		if i, ok := f.d.byStream[st.Index()]; ok && f.d.tracks[i].Kind == media.Video && st.Duration() > 0 && st.StartTime() != noTime {
			return time.Duration(ticks(st.StartTime()+st.Duration(), f.d.tracks[i].num, f.d.tracks[i].den))
		}
	}
	return 0
}

// HasDuration says whether Duration is what the file says, and no guess by its size.
func (f *File) HasDuration() bool {
	return f.Duration() > 0 && C.cfav_duration_is_guess(formatPointer(f.d.fc)) == 0
}

// Tag returns an entry of the file's metadata, or of its first program that has it.
func (f *File) Tag(name string) string {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.GoString(C.cfav_tag(formatPointer(f.d.fc), c))
}

// Next reads the next packet; its Data is valid until the call after. The end is io.EOF, also of a file that was cut off.
func (f *File) Next() (track int, p media.Packet, err error) {
	for {
		f.d.pkt.Unref()
		if err := f.d.fc.ReadFrame(f.d.pkt); err != nil {
			if err = f.cause(wrap("read", err)); errors.Is(err, io.EOF) {
				return 0, p, io.EOF
			}
			return 0, p, err
		}
		i, ok := f.d.byStream[f.d.pkt.StreamIndex()]
		if !ok {
			continue
		}
		t := f.d.tracks[i]
		p, _, ok := t.packet(f.d.pkt)
		if !ok {
			continue
		}
		raw, _ := t.times(f.d.pkt)
		p.PTS, p.DTS = raw.pts, raw.dts
		return i, p, nil
	}
}

// Seek goes to a keyframe at or before t; where the container has no index it may land elsewhere, or fail.
func (f *File) Seek(t time.Duration) error {
	for _, tr := range f.d.tracks {
		tr.counting = false
	}
	return f.cause(wrap("seek", f.d.fc.SeekFrame(-1, t.Microseconds(), astiav.NewSeekFlags(astiav.SeekFlagBackward))))
}

// Close frees the file; what it reads through stays open. Idempotent.
func (f *File) Close() {
	if f.d != nil {
		f.d.close()
		f.d = nil
	}
}
