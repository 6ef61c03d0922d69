package av

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/asticode/go-astiav"

	"github.com/cfpipe/cfpipe/internal/media"
)

// InputOptions describe an input that FFmpeg opens.
type InputOptions struct {
	URL      string            // a file, a URL, or "-" for Reader
	Format   string            // forces FFmpeg's demuxer; "" = found by looking at the data
	Options  map[string]string // options of the demuxer and the protocol
	Reader   io.Reader         // what "-" reads; default os.Stdin
	Loop     bool              // begin again at the end; time goes on
	Realtime bool              // deliver at the speed of the timestamps
	NoAudio  bool
	Logger   *slog.Logger
}

// ioTimeout bounds how long a network input may be silent.
const ioTimeout = 10 * time.Second

// Input is any input that FFmpeg can open, as a media.Source: access units with Unix timestamps on one continuous clock,
// anchored at the moment the first packet is read. Not safe for concurrent use.
type Input struct {
	o     InputOptions
	log   *slog.Logger
	clock inputClock
}

// NewInput returns the input; Run opens it.
func NewInput(o InputOptions) *Input {
	in := &Input{o: o, log: o.Logger}
	if in.log == nil {
		in.log = slog.New(slog.DiscardHandler)
	}
	in.clock.realtime = o.Realtime
	return in
}

// Run opens the input and delivers it to the sink until its end (nil), an error, or until ctx is done (ctx's error). With Loop
// there is no end. Errors name the input without its credentials.
func (in *Input) Run(ctx context.Context, sink media.Sink) error {
	in.clock.restart()
	for first := true; ; first = false {
		err := in.pass(ctx, sink)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if errors.Is(err, errSink) {
				return errors.Unwrap(err)
			}
			return fmt.Errorf("input %s: %w", Mask(in.o.URL), err)
		}
		if !in.o.Loop {
			return nil
		}
		if first && in.clock.packets == 0 {
			return fmt.Errorf("input %s: %w: no packets", Mask(in.o.URL), ErrInvalidData)
		}
	}
}

// pass plays the input from its start to its end, and again as long as it can be wound back.
func (in *Input) pass(ctx context.Context, sink media.Sink) error {
	d, err := in.open(ctx)
	if err != nil {
		return err
	}
	defer d.close()
	tracks := make([]media.Track, len(d.tracks))
	for i, t := range d.tracks {
		tracks[i] = t.Track
	}
	if err := sink.Tracks(tracks); err != nil {
		return sinkError{err}
	}
	for {
		if err := d.play(ctx, sink); err != nil {
			return err
		}
		in.clock.nextLoop()
		if !in.o.Loop || !d.rewind() {
			return nil
		}
	}
}

// demuxer is an open input.
type demuxer struct {
	in          *Input
	fc          *astiav.FormatContext
	interrupter *astiav.IOInterrupter
	stop        func() // once
	pump        *pump
	io          *astiav.IOContext
	pkt         *astiav.Packet
	tracks      []*inputTrack
	byStream    map[int]int // index of the stream → of the track
}

func (in *Input) open(ctx context.Context) (_ *demuxer, err error) {
	d := &demuxer{in: in, byStream: map[int]int{}}
	d.fc = astiav.AllocFormatContext()
	d.pkt = astiav.AllocPacket()
	d.interrupter = astiav.NewIOInterrupter()
	d.interruptBy(ctx)
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	var format *astiav.InputFormat
	if in.o.Format != "" {
		if format = astiav.FindInputFormat(in.o.Format); format == nil {
			return nil, fmt.Errorf("format %q: %w", in.o.Format, media.ErrUnsupported)
		}
	}
	url := in.o.URL
	options := astiav.NewDictionary()
	defer options.Free()
	set := maps.Clone(in.o.Options)
	if set == nil {
		set = map[string]string{}
	}
	switch {
	case url == "-":
		r := in.o.Reader
		if r == nil {
			r = os.Stdin
		}
		d.pump = newPump(ctx, r, nil)
		url = ""
	case isPipe(url):
		f, err := openPipe(ctx, url)
		if err != nil {
			return nil, err
		}
		d.pump = newPump(ctx, f, f)
		url = ""
	case strings.Contains(url, "://"):
		if _, ok := set["rw_timeout"]; !ok {
			set["rw_timeout"] = fmt.Sprint(ioTimeout.Microseconds())
		}
	}
	if d.pump != nil {
		if in.o.Loop {
			return nil, errors.New("a pipe cannot be played in a loop")
		}
		if d.io, err = astiav.AllocIOContext(pumpChunk, false, d.pump.read, nil, nil); err != nil {
			return nil, err
		}
		d.fc.SetPb(d.io)
	}
	d.fc.SetFlags(d.fc.Flags().Add(astiav.FormatContextFlagGenPts))
	for k, v := range set {
		if err := options.Set(k, v, 0); err != nil {
			return nil, wrap("set option "+k, err)
		}
	}
	if err := d.fc.OpenInput(url, format, options); err != nil {
		d.fc = nil // freed by the failed call
		if err = wrap("open", err); errors.Is(err, ErrInvalidData) {
			err = fmt.Errorf("%w: it begins like no format that is known here, or is damaged or cut off", err)
		}
		return nil, err
	}
	if err := d.fc.FindStreamInfo(nil); err != nil {
		return nil, wrap("find streams", err)
	}
	return d, d.choose()
}

// interruptBy ends what FFmpeg waits for when ctx ends.
func (d *demuxer) interruptBy(ctx context.Context) {
	d.fc.SetIOInterrupter(d.interrupter)
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		d.interrupter.Interrupt()
	})
	d.stop = func() {
		if !stop() {
			<-done // it writes to what is freed next
		}
	}
}

// choose takes the first video and the first audio stream; a picture attached to music is no video.
func (d *demuxer) choose() error {
	kinds := map[media.Kind]bool{}
	for _, st := range d.fc.Streams() {
		t, ok := newInputTrack(d.in, st)
		if !ok || kinds[t.Kind] || t.Kind == media.Audio && d.in.o.NoAudio {
			st.SetDiscard(astiav.DiscardAll)
			continue
		}
		kinds[t.Kind] = true
		d.byStream[st.Index()] = len(d.tracks)
		d.tracks = append(d.tracks, t)
	}
	if len(d.tracks) == 0 {
		return fmt.Errorf("%w: neither video nor audio", media.ErrUnsupported)
	}
	return nil
}

// play delivers packets until the end of the input.
func (d *demuxer) play(ctx context.Context, sink media.Sink) error {
	for {
		err := d.fc.ReadFrame(d.pkt)
		if ctx.Err() != nil {
			d.pkt.Unref()
			return ctx.Err()
		}
		if err != nil {
			err = wrap("read", err)
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		i, ok := d.byStream[d.pkt.StreamIndex()]
		if ok {
			err = d.deliver(ctx, sink, i)
		}
		d.pkt.Unref()
		if err != nil {
			return err
		}
	}
}

func (d *demuxer) deliver(ctx context.Context, sink media.Sink, i int) error {
	t := d.tracks[i]
	p, changed, ok := t.packet(d.pkt)
	if !ok {
		return nil
	}
	if changed {
		tracks := make([]media.Track, len(d.tracks))
		for k, t := range d.tracks {
			tracks[k] = t.Track
		}
		if err := sink.Tracks(tracks); err != nil {
			return sinkError{err}
		}
	}
	raw, interval := t.times(d.pkt)
	pts, dts, jumped, ok := d.in.clock.stamp(t.Kind, p.Flags&media.FlagKey != 0, raw, interval)
	if !ok {
		return nil
	}
	p.PTS, p.DTS = pts, dts
	if jumped {
		p.Flags |= media.FlagDiscontinuity
	}
	if err := d.in.clock.wait(ctx, dts); err != nil {
		return err
	}
	if err := sink.Packet(i, p); err != nil {
		return sinkError{err}
	}
	return nil
}

// rewind goes back to the start; false when the input cannot do so exactly (a transport stream loses its first packet): it is
// opened again then.
func (d *demuxer) rewind() bool {
	name := d.fc.InputFormat().Name()
	if d.pump != nil || !strings.Contains(name, "mp4") && !strings.Contains(name, "matroska") {
		return false
	}
	for _, t := range d.tracks {
		t.counting = false
	}
	start := d.fc.StartTime()
	if start == noTime {
		start = 0
	}
	return d.fc.SeekFrame(-1, start, astiav.NewSeekFlags(astiav.SeekFlagBackward)) == nil
}

func (d *demuxer) close() {
	d.stop()
	if d.pump != nil {
		d.pump.close()
	}
	if d.fc != nil {
		d.fc.CloseInput()
	}
	if d.io != nil {
		d.io.Free()
	}
	d.pkt.Free()
	d.interrupter.Free()
}

// sinkError carries an error of the sink through, so that it is returned as it is.
type sinkError struct{ err error }

var errSink = errors.New("sink")

func (e sinkError) Error() string        { return e.err.Error() }
func (e sinkError) Unwrap() error        { return e.err }
func (e sinkError) Is(target error) bool { return target == errSink }
