package mux

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
)

const (
	// defaultFlush is the length of a fragment: what a crash may cost, against some hundred bytes of overhead each.
	defaultFlush = time.Second
	// minFlush keeps streams with a keyframe every few pictures from a fragment each.
	minFlush = defaultFlush / 2
	// defaultInterval stands in for the duration of a packet when nothing tells it.
	defaultInterval = 40 * time.Millisecond
	// maxInterval bounds the duration given to the last packet in front of a gap.
	maxInterval = time.Second
)

// WriterOptions describe one output.
type WriterOptions struct {
	Format Format
	Video  media.Track
	Audio  *media.Track // nil: none; check with HoldsAudio first
	// Key is the access unit of a keyframe: its parameter sets describe the pictures.
	Key   []byte
	Out   io.Writer // an io.Seeker too when Seek is set
	Seek  bool      // the output is a file that may be patched (index, duration)
	Start int64     // Unix ns that is time zero of the output
	// Title and Cause are what the output says of itself beside its time: a recording's key, and why it began. "" = nothing.
	Title, Cause string
	// Live hands every packet to Out as soon as the format allows. Otherwise Out is written once per Flush interval.
	Live  bool
	Flush time.Duration // default 1 s
	// Discontinuous marks the beginning of a transport stream as such.
	Discontinuous bool
	// OnFlush is called after all bytes up to a point from which the output can be played are in Out.
	OnFlush func() error
}

// Writer writes one file or stream. The packets of a track come in decoding order. Not safe for concurrent use.
type Writer struct {
	o     WriterOptions
	out   *av.Output // nil for AnnexB
	hold  bool       // keep a packet per track until the next one tells its duration
	every int64      // ns between flushes
	audio av.OutputStream
	track [2]heldTrack

	head   *patchLast // of an MP4 file: its beginning is changed at the end
	counts *Counts    // which the output says at its end

	early []earlySound // of MP4: waits for the first picture
	begun bool         // the first picture was handed to the muxer

	flushed   int64 // DTS of the packet that began what is not flushed yet
	unflushed bool
}

// earlySound is sound whose turn comes when the first picture has been written: the muxer takes the time of the packet that it gets first for the
// beginning of the file, and pictures in front of it would lose their place.
type earlySound struct {
	p        media.Packet
	duration int64
}

// maxEarly bounds what waits: 10 s and more of sound, for a camera that sends one picture and no second one.
const maxEarly = 512

// heldTrack is a track of a Writer: the packet that waits for its duration.
type heldTrack struct {
	p        media.Packet // Data is buf
	buf      []byte
	held     bool
	interval int64 // the newest step from packet to packet
	last     int64 // DTS taken last
	started  bool
}

// The tracks of a Writer.
const (
	VideoTrack = 0
	AudioTrack = 1
)

// NewWriter opens the output and writes its header. Errors name what the format cannot hold.
func NewWriter(o WriterOptions) (*Writer, error) {
	w := &Writer{o: o, every: int64(o.Flush)}
	if w.every <= 0 {
		w.every = int64(defaultFlush)
	}
	if o.Format == AnnexB {
		return w, nil
	}
	muxer, err := muxerFor(o.Format, o.Video.CodecID)
	if err != nil {
		return nil, err
	}
	video, err := outputStream(o.Format, o.Video, o.Key)
	if err != nil {
		return nil, fmt.Errorf("video: %w", err)
	}
	streams := []av.OutputStream{video}
	if o.Audio != nil {
		if err := HoldsAudio(o.Format, o.Audio.CodecID); err != nil {
			return nil, err
		}
		if w.audio, err = outputStream(o.Format, *o.Audio, nil); err != nil {
			return nil, fmt.Errorf("audio: %w", err)
		}
		if muxer == "mp4" && quickTimeAudio(o.Audio.CodecID) {
			muxer = "mov"
		}
		streams = append(streams, w.audio)
	}
	if w.marked() {
		if _, err := o.Out.Write(tsBegin); err != nil {
			return nil, err
		}
	}
	to := o.Out
	if out, ok := o.Out.(io.WriteSeeker); ok && o.Format == MP4 && o.Seek {
		w.head = &patchLast{out: out}
		to = w.head
	}
	options, metadata := muxerOptions(o)
	w.hold = o.Format == FMP4 || o.Format == MP4 || !o.Live
	w.out, err = av.NewOutput(av.OutputOptions{
		Format: muxer, Key: o.Title, Options: options, Metadata: metadata, Streams: streams, Writer: to, Seek: o.Seek,
	})
	if err != nil {
		return nil, err
	}
	if o.Live {
		if o.Format == FMP4 || o.Format == MKV {
			w.every = min(w.every, int64(liveFlush))
		} else {
			w.every = 0
		}
	}
	return w, nil
}

// marked says whether the output is a file that tells a whole one from one that was cut off by marks.
func (w *Writer) marked() bool { return w.o.Format == TS && w.o.Seek }

// liveFlush is the length of fragments and clusters of streams that someone watches.
const liveFlush = 100 * time.Millisecond

func muxerOptions(o WriterOptions) (options, metadata map[string]string) {
	options = map[string]string{"avoid_negative_ts": "disabled"} // all times are ≥ 0 already
	metadata = Origin{Key: o.Title, Cause: o.Cause, Start: time.Unix(0, o.Start)}.metadata(o.Format)
	add := func(m map[string]string) { maps.Copy(options, m) }
	switch o.Format {
	case FMP4:
		// frag_discont writes each fragment's own time, so that audio which begins later than the video keeps its offset.
		flags := "+empty_moov+default_base_moof+frag_custom+frag_discont"
		if !o.Seek {
			flags += "+skip_trailer" // no index of all fragments is kept for a stream without end
		}
		add(map[string]string{"movflags": flags, "use_editlist": "0"})
	case MP4:
		// Without edit lists (this muxer gives them no length here) a track that begins late keeps its offset by a longer first
		// sample, which make_zero asks for.
		add(map[string]string{
			"movflags": "+hybrid_fragmented+empty_moov+default_base_moof+frag_custom", "use_editlist": "0", "avoid_negative_ts": "make_zero",
		})
	case MKV:
		if !o.Seek {
			options["live"] = "1"
		}
	case TS:
		if o.Discontinuous {
			options["mpegts_flags"] = "+initial_discontinuity"
		}
	case FLV:
		options["flvflags"] = "no_duration_filesize" // nothing can be patched
		metadata = nil
	case NUT:
		if !o.Seek {
			options["write_index"] = "0" // it would grow without end
		}
		metadata = nil
	}
	return options, metadata
}

// Write adds a packet; its Data is not kept. Pictures whose DTS does not rise are moved by a tick. Sound that does not come behind what is written of
// its track is left out: its time is taken, as that of a camera that was connected again and tells another time.
func (w *Writer) Write(track int, p media.Packet) error {
	if w.out == nil {
		return w.writeRaw(track, p)
	}
	if track == AudioTrack && w.o.Audio == nil {
		return nil
	}
	t := &w.track[track]
	if t.started {
		if w.behind(track, p.DTS) {
			if track == AudioTrack {
				return nil
			}
			p.DTS = t.last + 1
		}
		t.interval = p.DTS - t.last
	}
	p.PTS = max(p.PTS, p.DTS)
	t.last, t.started = p.DTS, true
	if !w.hold {
		return w.put(track, p, 0)
	}
	if t.held {
		if err := w.put(track, t.p, t.interval); err != nil {
			return err
		}
	}
	t.buf = append(t.buf[:0], p.Data...)
	t.p, t.held = p, true
	t.p.Data = t.buf
	return nil
}

// behind says whether a packet of this DTS would not come behind what was written of its track.
func (w *Writer) behind(track int, dts int64) bool {
	return w.track[track].started && dts <= w.track[track].last
}

// put hands a packet to the muxer, with the fragment in front of it flushed where one ends.
func (w *Writer) put(track int, p media.Packet, duration int64) error {
	if w.begun || w.o.Format != MP4 {
		return w.hand(track, p, duration)
	}
	if track == AudioTrack && len(w.early) < maxEarly {
		p.Data = slices.Clone(p.Data)
		w.early = append(w.early, earlySound{p, duration})
		return nil
	}
	w.begun = true
	early := w.early
	w.early = nil
	if track == VideoTrack {
		if err := w.hand(track, p, duration); err != nil {
			return err
		}
	}
	for _, s := range early {
		if err := w.hand(AudioTrack, s.p, s.duration); err != nil {
			return err
		}
	}
	if track == AudioTrack {
		return w.hand(track, p, duration)
	}
	return nil
}

func (w *Writer) hand(track int, p media.Packet, duration int64) error {
	key := track == VideoTrack && p.Flags&media.FlagKey != 0
	if w.unflushed && track == VideoTrack && w.every > 0 {
		if age := p.DTS - w.flushed; age >= w.every || key && age >= min(int64(minFlush), w.every) {
			if err := w.Flush(); err != nil {
				return err
			}
		}
	}
	if track == VideoTrack && !w.unflushed {
		w.flushed, w.unflushed = p.DTS, true
	}
	err := w.out.Write(av.OutputPacket{
		Stream: track, PTS: p.PTS - w.o.Start, DTS: p.DTS - w.o.Start, Duration: duration,
		Key: key || track == AudioTrack, Corrupt: p.Flags&media.FlagCorrupt != 0, Data: p.Data,
	})
	if err == nil && w.every == 0 {
		err = w.out.Push()
	}
	return err
}

// HasAudio says whether the output has an audio track.
func (w *Writer) HasAudio() bool { return w.out != nil && w.o.Audio != nil }

// Flush ends the fragment or cluster and passes all that was handed to the muxer to Out.
func (w *Writer) Flush() error {
	w.unflushed = false
	if w.out != nil {
		if err := w.out.Flush(); err != nil {
			return err
		}
	}
	if w.o.OnFlush != nil {
		return w.o.OnFlush()
	}
	return nil
}

// Finish writes what is held, and the trailer. next is the time (DTS, Unix ns) of the video packet that follows in the next
// file, which ends the last picture of this one; 0 = nothing follows at once. It returns the time at which the output ends.
func (w *Writer) Finish(next int64) (end int64, err error) {
	end = w.End(next)
	if w.out == nil {
		return end, nil
	}
	defer w.Close()
	for i := range w.track {
		if t := &w.track[i]; t.held {
			t.held = false
			if err := w.put(i, t.p, w.lastDuration(i, next)); err != nil {
				return end, err
			}
		}
	}
	if err := w.trailer(); err != nil {
		return end, err
	}
	if w.o.OnFlush != nil {
		return end, w.o.OnFlush()
	}
	return end, nil
}

// End is the time (DTS) at which the video written so far ends.
func (w *Writer) End(next int64) int64 {
	t := &w.track[VideoTrack]
	return t.last + w.lastDuration(VideoTrack, next)
}

func (w *Writer) lastDuration(track int, next int64) int64 {
	t := &w.track[track]
	if track == VideoTrack && next > t.last {
		return next - t.last
	}
	if track == AudioTrack {
		if d := pcmDuration(w.audio, len(t.p.Data)); d > 0 {
			return d
		}
	}
	if t.interval <= 0 || t.interval > int64(maxInterval) {
		return int64(defaultInterval)
	}
	return t.interval
}

// Close frees the output without finishing it: what was not flushed is lost. Idempotent.
func (w *Writer) Close() {
	if w.out != nil {
		w.out.Close()
		w.out = nil
		w.o.Out = nil
	}
}

func (w *Writer) closeIfOpen() {
	if w != nil {
		w.Close()
	}
}

var errRawAudio = errors.New("annexb is video alone")

// temporalDelimiter begins every temporal unit in an AV1 byte stream; the ring's packets come without.
var temporalDelimiter = []byte{0x12, 0x00}

func (w *Writer) writeRaw(track int, p media.Packet) error {
	if track != VideoTrack {
		return errRawAudio
	}
	t := &w.track[VideoTrack]
	if t.started {
		t.interval = p.DTS - t.last
	}
	t.last, t.started = p.DTS, true
	if w.o.Video.CodecID == media.AV1 && (len(p.Data) == 0 || p.Data[0]>>3&15 != 2) {
		t.buf = append(append(t.buf[:0], temporalDelimiter...), p.Data...)
		p.Data = t.buf
	}
	if _, err := w.o.Out.Write(p.Data); err != nil {
		return fmt.Errorf("write packet: %w", err)
	}
	return nil
}
