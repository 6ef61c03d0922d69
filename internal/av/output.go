package av

//#include "native.h"
import "C"

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"runtime/cgo"
	"syscall"
	"unsafe"

	"github.com/asticode/go-astiav"

	"github.com/cfpipe/cfpipe/internal/media"
)

// defaultOutputBuffer is what collects between two calls of the writer: a fragment of a second of a 4 Mbit/s camera goes
// out in two writes.
const defaultOutputBuffer = 256 << 10

// OutputStream is one stream of an Output.
type OutputStream struct {
	media.Track
	Width, Height int    // video
	FrameSize     int    // audio: samples per packet where the codec fixes them, else 0
	Tag           uint32 // the container's codec tag; 0 = the container's choice
}

// OutputOptions describe an Output.
type OutputOptions struct {
	Format   string            // name of the libavformat muxer
	Key      string            // whose stream it is, which FFmpeg's messages about it tell; "" = nobody's
	Options  map[string]string // its options
	Metadata map[string]string
	Streams  []OutputStream
	Writer   io.Writer // an io.Seeker too when Seek is set
	Seek     bool      // the muxer may go back and patch what it wrote
	Buffer   int       // bytes collected between two writes; default 256 KiB
}

// Output is a libavformat muxer that writes into a Go writer. Not safe for concurrent use.
type Output struct {
	fc     *astiav.FormatContext
	c      *C.AVFormatContext
	pb     *C.AVIOContext
	pkt    *C.AVPacket
	handle cgo.Handle
	bases  []timeBase

	w   io.Writer
	err error // the writer's first error; the muxer sees EIO
}

type timeBase struct {
	num, den int64
	last     int64 // dts written last
	started  bool
}

// OutputPacket is one packet for an Output; times are ns from the start of the output.
type OutputPacket struct {
	Stream       int
	PTS, DTS     int64
	Duration     int64 // 0 = unknown
	Key, Corrupt bool
	Data         []byte // not kept after Write
}

// NewOutput opens the muxer and writes the header (which may stay in the buffer until Flush).
func NewOutput(o OutputOptions) (*Output, error) {
	fc, err := astiav.AllocOutputFormatContext(nil, o.Format, "")
	if err != nil {
		return nil, wrap("open muxer "+o.Format, err)
	}
	out := &Output{fc: fc, c: formatPointer(fc), w: o.Writer}
	out.handle = cgo.NewHandle(out)
	logAs(unsafe.Pointer(out.c), o.Key)
	if err := out.open(o); err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

func (o *Output) open(opts OutputOptions) error {
	size := opts.Buffer
	if size == 0 {
		size = defaultOutputBuffer
	}
	seek := C.int(0)
	if opts.Seek {
		if _, ok := opts.Writer.(io.Seeker); !ok {
			return errors.New("open muxer: the writer cannot seek")
		}
		seek = 1
	}
	o.pkt = C.av_packet_alloc()
	o.pb = C.cfav_open_io(C.uintptr_t(o.handle), C.int(size), seek)
	if o.pkt == nil || o.pb == nil {
		return errors.New("open muxer: out of memory")
	}
	C.cfav_attach(o.c, o.pb)
	for i, s := range opts.Streams {
		if err := o.addStream(s); err != nil {
			return fmt.Errorf("open muxer %s: stream %d (%s): %w", opts.Format, i, astiav.CodecID(s.CodecID).Name(), err)
		}
	}
	for k, v := range opts.Metadata {
		ck, cv := C.CString(k), C.CString(v)
		C.cfav_metadata(o.c, ck, cv)
		C.free(unsafe.Pointer(ck))
		C.free(unsafe.Pointer(cv))
	}
	dict := astiav.NewDictionary()
	defer dict.Free()
	for k, v := range opts.Options {
		if err := dict.Set(k, v, 0); err != nil {
			return wrap("open muxer "+opts.Format, err)
		}
	}
	if err := o.fail("write header", wrap("write "+opts.Format+" header", o.fc.WriteHeader(dict))); err != nil {
		return err
	}
	for k := range opts.Options {
		if dict.Get(k, nil, 0) != nil {
			return fmt.Errorf("open muxer %s: it has no option %q", opts.Format, k)
		}
	}
	for _, st := range o.fc.Streams() {
		tb := st.TimeBase()
		o.bases = append(o.bases, timeBase{num: int64(tb.Num()), den: int64(tb.Den())})
	}
	return nil
}

func (o *Output) addStream(s OutputStream) error {
	st := o.fc.NewStream(nil)
	if st == nil {
		return errors.New("out of memory")
	}
	p := C.cfav_params{
		codec_id: C.int(s.CodecID), width: C.int(s.Width), height: C.int(s.Height),
		sample_rate: C.int(s.ClockRate), channels: C.int(s.Channels), frame_size: C.int(s.FrameSize),
	}
	if s.Kind == media.Audio {
		p.codec_type = C.AVMEDIA_TYPE_AUDIO
		if s.CodecID == media.G726 {
			p.bits_per_coded_sample = C.int(max(s.BitsPerSample, 0))
			if s.BitsPerSample == 0 {
				p.bits_per_coded_sample = 4
			}
		}
		if s.ClockRate <= 0 || s.Channels <= 0 {
			return fmt.Errorf("%d Hz, %d channels", s.ClockRate, s.Channels)
		}
	} else {
		p.codec_type = C.AVMEDIA_TYPE_VIDEO
	}
	C.cfav_set_params(streamPointer(st), &p)
	par := st.CodecParameters()
	par.SetCodecTag(astiav.CodecTag(s.Tag))
	return par.SetExtraData(s.Extradata)
}

// Write hands one packet to the muxer. DTS must rise within a stream; where two fall into the same tick of the container
// the later one is moved by a tick.
func (o *Output) Write(p OutputPacket) error {
	if o.err != nil {
		return o.err
	}
	if len(p.Data) == 0 {
		return nil
	}
	tb := &o.bases[p.Stream]
	dts := rescale(p.DTS, tb.num, tb.den)
	if tb.started && dts <= tb.last {
		dts = tb.last + 1
	}
	pts := max(rescale(p.PTS, tb.num, tb.den), dts)
	var duration int64
	if p.Duration > 0 {
		duration = max(rescale(p.DTS+p.Duration, tb.num, tb.den)-dts, 0)
	}
	tb.last, tb.started = dts, true
	flags := 0
	if p.Key {
		flags |= int(astiav.PacketFlagKey)
	}
	if p.Corrupt {
		flags |= int(astiav.PacketFlagCorrupt)
	}
	code := C.cfav_write(o.c, o.pkt, (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(p.Data))), C.int(len(p.Data)), C.int(p.Stream),
		C.int64_t(pts), C.int64_t(dts), C.int64_t(duration), C.int(flags))
	return o.fail("write packet", codeError("write packet", int(code)))
}

// Flush ends the fragment or cluster that is being written and passes all bytes to the writer.
func (o *Output) Flush() error {
	if o.err != nil {
		return o.err
	}
	return o.fail("flush", codeError("flush", int(C.cfav_flush(o.c))))
}

// Push passes the bytes that the muxer has written so far to the writer; an open fragment or cluster stays open.
func (o *Output) Push() error {
	if o.err != nil {
		return o.err
	}
	C.avio_flush(o.pb)
	return o.fail("write packet", nil)
}

// Append passes bytes of the container's own syntax to the writer, behind what the muxer has written. The fragment or cluster in front of
// them is ended.
func (o *Output) Append(b []byte) error {
	if err := o.Flush(); err != nil || len(b) == 0 {
		return err
	}
	C.avio_write(o.pb, (*C.uchar)(unsafe.Pointer(unsafe.SliceData(b))), C.int(len(b)))
	return o.fail("write", nil)
}

// Finish writes the trailer and flushes. Only Close may follow.
func (o *Output) Finish() error {
	if o.err != nil {
		return o.err
	}
	if err := o.fail("write trailer", wrap("write trailer", o.fc.WriteTrailer())); err != nil {
		return err
	}
	C.avio_flush(o.pb)
	return o.fail("write trailer", nil)
}

// Close frees the muxer. Without Finish before it no trailer is written. Idempotent; the writer stays open.
func (o *Output) Close() {
	if o.fc == nil {
		return
	}
	o.err = os.ErrClosed // what is left in the buffer is dropped
	logAs(unsafe.Pointer(o.c), "")
	o.fc.Free()
	C.cfav_close_io(o.pb)
	C.av_packet_free(&o.pkt)
	o.handle.Delete()
	o.fc, o.c, o.pb = nil, nil, nil
}

// fail prefers the writer's error, which says more than the muxer's EIO.
func (o *Output) fail(op string, err error) error {
	if o.err != nil {
		return fmt.Errorf("%s: %w", op, o.err)
	}
	return err
}

//export cfavWrite
func cfavWrite(handle C.uintptr_t, buf *C.uint8_t, size C.int) C.int {
	o := cgo.Handle(handle).Value().(*Output)
	if o.err == nil {
		_, o.err = o.w.Write(unsafe.Slice((*byte)(unsafe.Pointer(buf)), int(size)))
	}
	if o.err != nil {
		return C.int(averror(o.err))
	}
	return size
}

//export cfavSeek
func cfavSeek(handle C.uintptr_t, offset C.int64_t, whence C.int) C.int64_t {
	o := cgo.Handle(handle).Value().(*Output)
	s := o.w.(io.Seeker)
	const seekSize = 0x10000 // AVSEEK_SIZE
	if int(whence)&seekSize != 0 {
		here, err := s.Seek(0, io.SeekCurrent)
		if err != nil {
			return C.int64_t(averror(err))
		}
		end, err := s.Seek(0, io.SeekEnd)
		if err == nil {
			_, err = s.Seek(here, io.SeekStart)
		}
		if err != nil {
			return C.int64_t(averror(err))
		}
		return C.int64_t(end)
	}
	n, err := s.Seek(int64(offset), int(whence)&3)
	if err != nil {
		o.err = err
		return C.int64_t(averror(err))
	}
	return C.int64_t(n)
}

func averror(err error) int {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return -int(errno)
	}
	return -int(syscall.EIO)
}

// rescale turns ns into ticks of num/den seconds, rounded to nearest.
func rescale(ns, num, den int64) int64 {
	neg := ns < 0
	if neg {
		ns = -ns
	}
	d := uint64(num) * 1e9
	hi, lo := bits.Mul64(uint64(ns), uint64(den))
	lo, carry := bits.Add64(lo, d/2, 0)
	q, _ := bits.Div64(hi+carry, lo, d) // times are below 292 years: the quotient fits
	if neg {
		return -int64(q)
	}
	return int64(q)
}
