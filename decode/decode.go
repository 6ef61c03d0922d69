// Package decode turns the packets of a camera into pictures in frame slots: with the GPU's NVDEC or on the CPU, through
// FFmpeg's decoders. It crops, unifies pixel formats to NV12 and P010, and carries on at the next keyframe after damage.
package decode

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"

	"github.com/cfpipe/cfpipe/cudavmm"
	_ "github.com/cfpipe/cfpipe/internal/av" // FFmpeg's messages go where it says, not to standard error
	"github.com/cfpipe/cfpipe/internal/media"
)

var (
	// ErrUnsupported says that a stream cannot be decoded in the way asked for; the text says what is missing.
	ErrUnsupported = media.ErrUnsupported
	// ErrDecoder says that a decoder failed again and again, also after it was opened anew.
	ErrDecoder = errors.New("decoder failed")
)

// decoders holds FFmpeg's decoders of each codec.
var decoders = map[uint32]struct{ cpu, cuda string }{
	media.H264:  {"h264", "h264"},
	media.HEVC:  {"hevc", "hevc"},
	media.AV1:   {"libdav1d", "av1"}, // FFmpeg's own av1 decodes on GPUs only
	media.MJPEG: {"mjpeg", "mjpeg"},
	media.VP8:   {"vp8", "vp8"},
	media.VP9:   {"vp9", "vp9"},
	media.MPEG1: {"mpeg1video", ""},
	media.MPEG2: {"mpeg2video", ""},
	media.MPEG4: {"mpeg4", ""},
}

// Knows says whether there is a decoder for a codec.
func Knows(codecID uint32) bool { _, ok := decoders[codecID]; return ok }

// Mode chooses the decoder.
type Mode int

const (
	Auto Mode = iota // NVDEC where it is there and can decode the stream, else the CPU
	CUDA             // NVDEC or an error
	CPU
)

// ParseMode reads auto, cuda or cpu.
func ParseMode(s string) (Mode, error) {
	for m, name := range []string{"auto", "cuda", "cpu"} {
		if s == name {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("%q: want auto, cuda or cpu", s)
}

func (m Mode) String() string { return [...]string{"auto", "cuda", "cpu"}[m] }

// Options of a Decoder. CodecID alone is required.
type Options struct {
	CodecID   uint32 // FFmpeg's number, as the packet ring carries it
	Extradata []byte // parameter sets; may be empty when the stream carries them
	Mode      Mode
	// Device is the GPU that NVDEC decodes on and that slots may lie on; nil = none. It stays the caller's and must outlive the
	// decoder.
	Device *cudavmm.Device
	// Threads: 0 decodes the slices of a picture in parallel, which delays nothing; n > 1 decodes n pictures in parallel, which is
	// faster and holds each back by n − 1 pictures. On NVDEC 3 are enough: they keep its engine at work while a picture is handed out,
	// which gains a tenth where pictures are decoded in less than a millisecond.
	Threads int
	Logger  *slog.Logger // nil = silent
}

// Packet is one access unit.
type Packet struct {
	Data          []byte
	PTS, DTS      int64 // ns; handed through
	Key           bool
	Corrupt       bool // damaged on its way
	Discontinuity bool // packets are missing in front of it
	RefOnly       bool // its picture is not wanted: it may be left out where no other one refers to it
}

// Stats counts what a Decoder has done.
type Stats struct {
	Packets  uint64 `json:"packets"`  // given to it
	Pictures uint64 `json:"pictures"` // handed out
	Errors   uint64 `json:"errors"`   // damaged packets and pictures, and failures of the decoder
	Skipped  uint64 `json:"skipped"`  // packets passed over while waiting for a keyframe
	Reopened uint64 `json:"reopened"` // decoders opened anew
}

// Decoder decodes one stream. One goroutine uses it.
type Decoder struct {
	o       Options
	log     *slog.Logger
	codec   *codec
	nvdec   bool            // NVDEC decodes
	stream  *cudavmm.Stream // with a Device
	reason  string          // why Auto is not on NVDEC
	waitKey bool            // what comes before the next keyframe cannot be decoded right
	dirty   bool            // the decoder holds references that are damaged: flush before the next keyframe
	failed  int             // failures since the last picture
	staging []byte
	picture Picture
	stats   Stats
}

// maxFailures is how often in a row a decoder may break before Auto gives NVDEC up, and CUDA and CPU end with an error.
const maxFailures = 3

// Open opens a decoder. In mode Auto it returns one on the CPU when NVDEC cannot be used, and Reason says why.
func Open(o Options) (*Decoder, error) {
	if _, ok := decoders[o.CodecID]; !ok {
		return nil, fmt.Errorf("%w: %s", ErrUnsupported, media.CodecName(o.CodecID))
	}
	d := &Decoder{o: o, log: o.Logger, waitKey: true}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if o.Device != nil {
		s, err := o.Device.NewStream()
		if err != nil {
			return nil, fmt.Errorf("open decoder: %w", err)
		}
		d.stream = s
	}
	if err := d.choose(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// choose opens the first decoder.
func (d *Decoder) choose() error {
	if d.o.Mode != CPU {
		err := d.openNVDEC()
		if err == nil || d.o.Mode == CUDA {
			return err
		}
		d.reason = err.Error()
	}
	return d.openCPU()
}

func (d *Decoder) openNVDEC() error {
	if d.o.Device == nil {
		return fmt.Errorf("%w: no GPU", ErrUnsupported)
	}
	name := decoders[d.o.CodecID].cuda
	if name == "" {
		return fmt.Errorf("%w: NVDEC for %s is not in use here", ErrUnsupported, media.CodecName(d.o.CodecID))
	}
	c, err := nvdecCaps(d.o.Device, d.o.CodecID)
	if err != nil {
		return err
	}
	k, err := openCodec(codecOptions{
		name: name, extradata: d.o.Extradata, threads: d.o.Threads,
		caps: c, software: d.o.Mode == Auto, device: d.o.Device, stream: d.stream.Handle(),
	})
	if err != nil {
		return err
	}
	d.codec, d.nvdec, d.reason = k, true, ""
	return nil
}

func (d *Decoder) openCPU() error {
	k, err := openCodec(codecOptions{
		name: decoders[d.o.CodecID].cpu, extradata: d.o.Extradata, threads: d.o.Threads,
		lowDelay: d.o.CodecID == media.AV1 && d.o.Threads == 0, // dav1d holds pictures back otherwise; h264 would lose its order
	})
	if err != nil {
		return err
	}
	d.codec, d.nvdec = k, false
	return nil
}

// sliceThreads bounds the threads that share one picture: more than 4 gain nothing on camera streams.
func sliceThreads() int { return min(4, runtime.NumCPU()) }

// Hardware tells whether NVDEC decodes.
func (d *Decoder) Hardware() bool { return d.nvdec }

// Reason says why mode Auto does not use NVDEC; "" while it does.
func (d *Decoder) Reason() string { return d.reason }

// Stats returns the counts so far.
func (d *Decoder) Stats() Stats { return d.stats }

// Close gives the decoder back. It may be called again.
func (d *Decoder) Close() error {
	if d.codec != nil {
		d.codec.close()
		d.codec = nil
	}
	if d.stream != nil {
		return d.stream.Close()
	}
	return nil
}

// Decode takes one packet and calls emit for each picture that is ready, in presentation order. Damage is no error: it is
// counted, and decoding goes on at the next keyframe. An error is emit's, or says that the stream cannot be decoded.
func (d *Decoder) Decode(p Packet, emit func(*Picture) error) error {
	if d.codec == nil {
		return fmt.Errorf("%w: closed", ErrDecoder)
	}
	d.stats.Packets++
	if len(p.Data) == 0 {
		return nil
	}
	if (p.Discontinuity || p.Corrupt) && !d.waitKey {
		// What is in flight is whole; it was only waiting for its turn.
		if err := d.Drain(emit); err != nil {
			return err
		}
	}
	if p.Corrupt {
		d.damaged()
	}
	if d.waitKey && (!p.Key || p.Corrupt) {
		d.stats.Skipped++
		return nil
	}
	if d.dirty {
		d.codec.flush()
		d.dirty = false
	}
	d.waitKey = false
	return d.feed(p, emit)
}

// feed gives the packet to the decoder, and to the next one when that breaks.
func (d *Decoder) feed(p Packet, emit func(*Picture) error) error {
	for {
		a, err := d.codec.send(p)
		if a == gotPicture {
			a, err = d.receive(emit)
			if a == gotPicture {
				return err // emit's, or none
			}
		}
		switch {
		case d.codec.refused():
			err := d.beyond()
			if d.o.Mode == Auto {
				err = d.fallBack(err)
			}
			if err != nil {
				return err
			}
		case a == badData:
			d.damaged()
			return nil
		default:
			if err := d.reopen(err); err != nil {
				return err
			}
		}
		if !p.Key {
			d.waitKey = true
			return nil
		}
	}
}

// receive hands out what is ready. gotPicture says that all went well, or that emit failed.
func (d *Decoder) receive(emit func(*Picture) error) (answer, error) {
	for {
		a, err := d.codec.receive()
		switch a {
		case wantsMore, atEnd:
			return gotPicture, nil
		case badData:
			d.damaged()
			continue
		case broken:
			return a, err
		}
		err = d.hand(emit)
		d.codec.done()
		if err != nil {
			return gotPicture, err
		}
	}
}

func (d *Decoder) hand(emit func(*Picture) error) error {
	if d.codec.out.corrupt != 0 {
		d.damaged()
	}
	if d.waitKey {
		return nil // a picture made from what is damaged
	}
	if gpu := d.codec.out.on_gpu != 0; gpu != d.nvdec {
		d.moved(gpu)
	}
	if err := d.picture.describe(d); err != nil {
		return err
	}
	d.failed = 0
	d.stats.Pictures++
	return emit(&d.picture)
}

// damaged counts and makes the decoder wait for a keyframe.
func (d *Decoder) damaged() {
	d.stats.Errors++
	d.waitKey, d.dirty = true, true
}

// Drain hands out the pictures that the decoder still holds; the next packet must be a keyframe.
func (d *Decoder) Drain(emit func(*Picture) error) error {
	if d.codec == nil {
		return fmt.Errorf("%w: closed", ErrDecoder)
	}
	d.codec.drain()
	_, err := d.receive(emit)
	d.waitKey, d.dirty = true, true
	return err
}

// beyond says what the stream asks of NVDEC that it cannot do, which the decoder learns from its parameter sets.
func (d *Decoder) beyond() error {
	return fmt.Errorf("%w: the NVDEC of %s cannot decode %s %s", ErrUnsupported, d.o.Device.Info().Name,
		media.CodecName(d.o.CodecID), d.codec.asked())
}

// moved notes that pictures in parallel have gone on elsewhere, in the same context.
func (d *Decoder) moved(gpu bool) {
	if d.nvdec, d.reason = gpu, ""; gpu {
		d.log.Info("decoding on NVDEC again", "codec", media.CodecName(d.o.CodecID))
		return
	}
	d.tellFallBack(d.beyond())
}

func (d *Decoder) fallBack(why error) error {
	d.tellFallBack(why)
	d.codec.close()
	d.codec = nil
	return d.openCPU()
}

func (d *Decoder) tellFallBack(why error) {
	d.reason = why.Error()
	d.log.Warn("decoding on the CPU", "codec", media.CodecName(d.o.CodecID), "reason", d.reason)
}

// reopen replaces a broken decoder.
func (d *Decoder) reopen(cause error) error {
	d.stats.Errors++
	d.stats.Reopened++
	if cause == nil {
		cause = io.ErrUnexpectedEOF
	}
	hardware := d.Hardware()
	if d.failed++; d.failed > maxFailures {
		err := fmt.Errorf("%w: %d times in a row: %w", ErrDecoder, d.failed, cause)
		if !hardware || d.o.Mode == CUDA {
			return err
		}
		d.failed = 0
		return d.fallBack(err)
	}
	d.log.Warn("decoder failed, opening it again", "codec", media.CodecName(d.o.CodecID), "hardware", hardware, "error", cause)
	d.codec.close()
	d.codec = nil
	d.dirty = false
	if !hardware {
		return d.openCPU()
	}
	err := d.openNVDEC()
	if err != nil && d.o.Mode == Auto {
		d.reason = err.Error()
		return d.openCPU()
	}
	return err
}
