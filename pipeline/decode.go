package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/packetring"
)

// DecodeOptions describe a decode stage: packet ring of Key → frame ring. Key must be set, and either Publisher or NewKey.
type DecodeOptions struct {
	RuntimeDir string // "" = $CUFRAMES_RUNTIME_DIR, else framering.DefaultRuntimeDir
	Key        string // whose packets are decoded

	Publisher *framering.Publisher // gets the frames; stays the caller's. nil: one of NewKey is made
	NewKey    string
	Group     string // of NewKey's publisher, see PublishOptions
	Protocol  uint32 // likewise

	Mode       decode.Mode
	Device     int              // GPU of modes auto and cuda
	Memory     FrameMemoryKind  // where the frames lie
	Threads    int              // of the CPU's decoder, see decode.Options
	Slots      int              // of the frame ring; 0 = framering.DefaultRingSize
	Policy     framering.Policy // towards slow subscribers
	AckTimeout time.Duration    // see framering.FrameOptions
	WaitForKey time.Duration    // see SubscribeOptions
	NoFollow   bool             // end with the publisher of Key
	Logger     *slog.Logger     // nil = silent
}

// FrameMemoryKind says where decoded frames lie.
type FrameMemoryKind int

const (
	MemoryAuto FrameMemoryKind = iota // where they are decoded
	MemoryHost
	MemoryCUDA
)

// ParseFrameMemory reads auto, host or cuda.
func ParseFrameMemory(s string) (FrameMemoryKind, error) {
	for k, name := range []string{"auto", cudavmm.KindHost, cudavmm.KindCUDA} {
		if s == name {
			return FrameMemoryKind(k), nil
		}
	}
	return 0, fmt.Errorf("frame memory %q: want auto, host or cuda", s)
}

// DecodeStats count what a decode stage has done.
type DecodeStats struct {
	decode.Stats
	Hardware    bool    `json:"hardware"`       // NVDEC decodes now
	Generations int     `json:"generations"`    // of the frame ring
	Lost        uint64  `json:"lost"`           // packets that were overwritten before they were read
	Waited      Seconds `json:"waited_seconds"` // for the ACKs of subscribers
	Dropped     uint64  `json:"dropped"`        // subscribers that owed one for too long
}

// decodeStage is a decode stage at work. Its fields belong to the goroutine of Decode.
type decodeStage struct {
	o       DecodeOptions
	log     *slog.Logger
	control *framering.Publisher
	device  *cudavmm.Device // nil without a GPU
	noGPU   error           // why there is none, where one would have been taken
	decoder *decode.Decoder
	writer  *framering.FrameWriter
	layout  decode.Layout
	onGPU   bool
	stills  *stills // nil as long as no frames lie on the GPU
	stats   *DecodeCounter
	ctx     context.Context
}

// DecodeCounter is where a running decode stage leaves its counts. The zero value is ready.
type DecodeCounter struct {
	mu    sync.Mutex
	stats DecodeStats
}

// Stats returns the counts so far.
func (c *DecodeCounter) Stats() DecodeStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// Decode runs a decode stage until ctx ends or the Publisher of the options is closed, which is no error, or until the stream cannot be decoded. With NoFollow it returns nil
// when the publication has ended. counter may be nil.
func Decode(ctx context.Context, o DecodeOptions, counter *DecodeCounter) error {
	if o.Protocol == 1 || o.Protocol == 2 { // their frames are GPU memory, wherever they were decoded
		if o.Memory == MemoryHost {
			return fmt.Errorf("decode %s: frames of protocol %d lie in GPU memory: %w", o.Key, o.Protocol, framering.ErrInvalidArg)
		}
		o.Memory = MemoryCUDA
	}
	d := &decodeStage{o: o, log: o.Logger, stats: counter, control: o.Publisher, ctx: ctx}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if counter == nil {
		d.stats = &DecodeCounter{}
	}
	err := d.run()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, os.ErrClosed) && o.Publisher != nil {
		return nil // its owner has ended the publication
	}
	if err != nil {
		return fmt.Errorf("decode %s: %w", o.Key, err)
	}
	return nil
}

func (d *decodeStage) run() (err error) {
	sub, err := Subscribe(d.ctx, SubscribeOptions{
		RuntimeDir: d.o.RuntimeDir, Key: d.o.Key, Name: "decode", WaitForKey: d.o.WaitForKey, NoFollow: d.o.NoFollow, Logger: d.o.Logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	if err := notSound(d.o.Key, sub.Info().CodecID); err != nil {
		return err
	}
	if err := d.openDevice(); err != nil {
		return err
	}
	defer func() {
		if d.device != nil {
			err = errors.Join(err, d.device.Close())
		}
	}()
	if d.control == nil {
		if err := d.claim(); err != nil {
			return err
		}
		defer func() {
			reason := framering.ReasonNormal
			if err != nil {
				reason = framering.ReasonError
			}
			err = errors.Join(err, d.control.Close(reason))
		}()
	}
	defer func() {
		err = errors.Join(err, d.stills.Close())
		if d.decoder != nil {
			err = errors.Join(err, d.decoder.Close())
		}
	}()
	err = d.loop(sub)
	if errors.Is(err, ErrEnded) && d.o.NoFollow {
		return d.drain()
	}
	return err
}

// claim makes the publisher of NewKey. Until the first picture tells the size it has no frames.
func (d *decodeStage) claim() error {
	gid, err := framering.GroupID(d.o.Group)
	if err != nil {
		return err
	}
	if err := awaitKey(d.ctx, d.o.RuntimeDir, d.o.NewKey); err != nil {
		return err
	}
	p, err := framering.NewPublisher(framering.PublisherOptions{
		RuntimeDir: d.o.RuntimeDir, Key: d.o.NewKey, GID: gid, Protocol: d.o.Protocol, Logger: d.o.Logger,
	})
	if err != nil {
		return err
	}
	if err := p.Serve(); err != nil {
		return errors.Join(err, p.Close(framering.ReasonError))
	}
	d.control = p
	return nil
}

// openDevice opens the GPU where the mode or the memory want one.
func (d *decodeStage) openDevice() error {
	if d.o.Mode == decode.CPU && d.o.Memory != MemoryCUDA {
		return nil
	}
	v, err := cudavmm.OpenDevice(d.o.Device)
	if err != nil && d.o.Mode != decode.CUDA && d.o.Memory != MemoryCUDA {
		d.noGPU = err
		return nil
	}
	d.device = v
	return err
}

func (d *decodeStage) loop(sub *Subscription) error {
	generation := -1
	for {
		p, err := sub.Next(d.ctx)
		if err != nil {
			return err
		}
		if g := sub.Generation(); g != generation {
			if err := d.reopen(sub.Info()); err != nil {
				return err
			}
			generation = g
		}
		err = d.decoder.Decode(decodePacket(p), d.publish)
		d.count(sub)
		if err != nil {
			return err
		}
	}
}

// decodePacket is the ring's packet in the words of the decoder.
func decodePacket(p packetring.Packet) decode.Packet {
	return decode.Packet{
		Data: p.Data, PTS: p.PTS, DTS: p.DTS, Key: p.Flags&packetring.FlagKey != 0,
		Corrupt: p.Flags&packetring.FlagCorrupt != 0, Discontinuity: p.Flags&packetring.FlagDiscontinuity != 0,
	}
}

// reopen opens a decoder for the stream of a new publisher.
func (d *decodeStage) reopen(info packetring.Info) error {
	if d.decoder != nil {
		if err := d.drain(); err != nil {
			return err
		}
		if err := d.decoder.Close(); err != nil {
			return err
		}
		d.decoder = nil
	}
	v, err := decode.Open(decode.Options{
		CodecID: info.CodecID, Extradata: info.Extradata, Mode: d.o.Mode, Device: d.device, Threads: d.o.Threads, Logger: d.o.Logger,
	})
	if err != nil {
		return err
	}
	d.decoder = v
	on := []any{"key", d.o.Key, "codec", media.CodecName(info.CodecID), "hardware", v.Hardware()}
	switch {
	case d.noGPU != nil:
		on = append(on, "reason", d.noGPU)
	case v.Reason() != "":
		on = append(on, "reason", v.Reason())
	}
	d.log.Info("decoding", on...)
	return nil
}

// drain publishes the pictures that the decoder still holds.
func (d *decodeStage) drain() error {
	if d.decoder == nil {
		return nil
	}
	return d.decoder.Drain(d.publish)
}

// publish puts a picture into the frame ring; a new size, format or place begins a new generation.
func (d *decodeStage) publish(p *decode.Picture) error {
	if d.writer == nil || p.Layout != d.layout || p.OnGPU != d.onGPU {
		if err := d.start(p); err != nil {
			return err
		}
	}
	slot, err := d.writer.Acquire(d.ctx)
	if err != nil {
		return err
	}
	if p.OnGPU && slot.Buffer.Bytes() == nil { // a copy within the GPU is quick enough to announce
		d.writer.Announce()
	}
	if err := p.Store(slot.Buffer); err != nil {
		d.writer.Cancel()
		return err
	}
	_, err = d.writer.Publish(p.PTS)
	return err
}

// frameFormats names the decoder's formats as the frame ring does.
var frameFormats = map[decode.Format]framering.Format{decode.NV12: framering.NV12, decode.P010: framering.P010, decode.P016: framering.P016}

func (d *decodeStage) start(p *decode.Picture) error {
	meta, err := framering.MetaOf(frameFormats[p.Layout.Format], p.Layout.Width, p.Layout.Height)
	if err != nil {
		return err
	}
	if int(meta.PitchY) != p.Layout.Pitch || int(meta.FrameSize) != p.Layout.Size() {
		return fmt.Errorf("layouts of %s differ: pitch %d, %d bytes and pitch %d, %d bytes", p.Layout, p.Layout.Pitch, p.Layout.Size(), meta.PitchY, meta.FrameSize)
	}
	var memory framering.Memory = cudavmm.Host{}
	kind := cudavmm.KindHost
	if d.o.Memory == MemoryCUDA || d.o.Memory == MemoryAuto && p.OnGPU {
		memory, kind = d.device, cudavmm.KindCUDA
	}
	if kind == cudavmm.KindCUDA && d.stills == nil { // before there are frames: who finds them finds it
		d.stills = serveStills(d.control, d.device, d.log.With("key", d.o.Key))
	}
	w, err := d.control.StartFrames(framering.FrameOptions{
		RingSize: d.o.Slots, Meta: meta, Policy: d.o.Policy, AckTimeout: d.o.AckTimeout, Memory: memory,
	})
	if err != nil {
		return err
	}
	d.writer, d.layout, d.onGPU = w, p.Layout, p.OnGPU
	d.stats.mu.Lock()
	d.stats.stats.Generations++
	n := d.stats.stats.Generations
	d.stats.mu.Unlock()
	d.log.Info("frames", "key", d.o.Key, "format", p.Layout.String(), "memory", kind, "nvdec", p.OnGPU, "generation", n)
	return nil
}

// count leaves the counts for others to read.
func (d *decodeStage) count(sub *Subscription) {
	d.stats.mu.Lock()
	defer d.stats.mu.Unlock()
	s := &d.stats.stats
	s.Stats, s.Hardware, s.Lost = d.decoder.Stats(), d.decoder.Hardware(), sub.Stats().Lost
	if d.writer != nil {
		w := d.writer.Stats()
		s.Waited, s.Dropped = Seconds(w.Waited), w.Dropped
	}
}

// The frame ring takes its memory from these without knowing them.
var (
	_ framering.Memory   = cudavmm.Host{}
	_ framering.Memory   = (*cudavmm.Device)(nil)
	_ framering.Importer = (*cudavmm.Receiver)(nil)

	_ framering.IPCMemory   = (*cudavmm.Device)(nil)
	_ framering.IPCImporter = (*cudavmm.Receiver)(nil)
)

// notSound refuses a key that has none.
func notSound(key string, codec uint32) error {
	if media.IsAudio(codec) {
		return fmt.Errorf("%s is sound (%s): there are no pictures in it", key, media.CodecTitle(codec))
	}
	return nil
}
