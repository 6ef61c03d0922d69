package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/packetring"
)

// BridgeOptions describe a bridge: what Key has, published again as NewKey in another dialect. Key and NewKey must be set.
type BridgeOptions struct {
	RuntimeDir string // "" = $CUFRAMES_RUNTIME_DIR, else framering.DefaultRuntimeDir
	Key        string // in whatever dialect
	NewKey     string
	Group      string // of NewKey's publisher, see PublishOptions
	Protocol   uint32 // of NewKey: 4, 2 or 1; 0 = 4

	Device     int              // GPU of frames
	FrameSlots int              // of NewKey's frame ring; 0 = as many as Key has
	Policy     framering.Policy // towards slow readers of NewKey's frames
	AckTimeout time.Duration    // see framering.FrameOptions
	WaitForKey time.Duration    // see SubscribeOptions
	NoFollow   bool             // end with the publisher of Key
	Logger     *slog.Logger     // nil = silent

	// Ready is called when NewKey can be subscribed to, once for each publication; nil = nobody asks.
	Ready func()
}

// Bridge copies packets byte for byte with their times and flags, and frames by one copy within the GPU (or within host memory, to
// protocol 4 alone), until ctx ends, which is no error. A reader of NewKey misses what the bridge missed: that packet carries
// FlagDiscontinuity as everywhere. Protocol 1 has no packets; they are left out there.
func Bridge(ctx context.Context, o BridgeOptions) error {
	b := &bridge{o: o, log: o.Logger}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.log = b.log.With("key", o.Key, "new_key", o.NewKey)
	if err := errors.Join(framering.CheckKey(o.Key), framering.CheckKey(o.NewKey)); err != nil {
		return err
	}
	if o.Key == o.NewKey {
		return fmt.Errorf("bridge %s to itself: --key is to be another name: %w", o.Key, framering.ErrInvalidArg)
	}
	err := b.run(ctx)
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) || o.NoFollow && errors.Is(err, ErrEnded) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bridge %s to %s: %w", o.Key, o.NewKey, err)
	}
	return nil
}

type bridge struct {
	o   BridgeOptions
	log *slog.Logger
}

// errNextPublication says that what the key has now needs another publication.
var errNextPublication = errors.New("the stream has changed")

func (b *bridge) run(ctx context.Context) error {
	sub, err := Subscribe(ctx, SubscribeOptions{
		RuntimeDir: b.o.RuntimeDir, Key: b.o.Key, Name: "bridge", Start: StartOldest, WaitForKey: b.o.WaitForKey, NoFollow: b.o.NoFollow,
		Logger: b.o.Logger,
	})
	if errors.Is(err, ErrNoPackets) {
		return b.framesAlone(ctx)
	}
	if err != nil {
		return err
	}
	defer sub.Close()
	if b.o.Protocol == 1 {
		b.log.Warn("protocol 1 has no packets: frames alone are bridged")
		return b.framesAlone(ctx)
	}
	var first packetring.Packet // of the next publication
	for {
		if first, err = b.publication(ctx, sub, first); !errors.Is(err, errNextPublication) {
			return err
		}
	}
}

// publication bridges one publication's worth: as long as the stream is the same.
func (b *bridge) publication(ctx context.Context, sub *Subscription, first packetring.Packet) (packetring.Packet, error) {
	if first.Data == nil {
		var err error
		if first, err = sub.Next(ctx); err != nil { // only now the extradata is sure to be there
			return packetring.Packet{}, err
		}
	}
	info := sub.Info()
	pub, err := Publish(PublishOptions{
		RuntimeDir: b.o.RuntimeDir, Key: b.o.NewKey, Group: b.o.Group, Protocol: b.o.Protocol, Logger: b.o.Logger,
		Packets: packetring.Config{CodecID: info.CodecID, Extradata: info.Extradata, Slots: info.Slots, DataSize: info.DataSize, MaxPacket: info.DataSize},
	})
	if err != nil {
		return first, err
	}
	b.ready()
	fctx, stop := context.WithCancel(ctx)
	var frames sync.WaitGroup
	frames.Go(func() {
		if err := b.frames(fctx, pub.Control(), -1); fctx.Err() == nil && err != nil {
			b.log.Warn("frames are not bridged", "error", err)
		}
	})
	generation := sub.Generation()
	first, err = b.packets(ctx, sub, pub, first, generation)
	if errors.Is(err, ErrEnded) && b.o.NoFollow { // the frames have ended with it, and are read to their end
		frames.Wait()
	}
	stop()
	frames.Wait()
	reason := framering.ReasonNormal
	switch {
	case errors.Is(err, errNextPublication):
		reason = framering.ReasonUpgrade
	case err != nil && ctx.Err() == nil && !errors.Is(err, ErrEnded):
		reason = framering.ReasonError
	}
	return first, errors.Join(err, pub.Close(reason))
}

// packets copies until the stream is another one; that one's first packet is returned.
func (b *bridge) packets(ctx context.Context, sub *Subscription, pub *Publication, p packetring.Packet, generation int) (packetring.Packet, error) {
	info := sub.Info()
	late := len(info.Extradata) == 0
	for {
		if late && p.Flags&packetring.FlagKey != 0 {
			if x := sub.Info().Extradata; len(x) > 0 {
				if err := pub.SetExtradata(x); err != nil {
					return p, err
				}
				late = false
			}
		}
		if _, err := pub.Packet(p); err != nil {
			return p, err
		}
		var err error
		if p, err = sub.Next(ctx); err != nil {
			return packetring.Packet{}, err
		}
		if g := sub.Generation(); g != generation {
			generation = g
			if i := sub.Info(); i.CodecID != info.CodecID || string(i.Extradata) != string(info.Extradata) || i.DataSize > info.DataSize {
				p.Data = append([]byte(nil), p.Data...)
				return p, errNextPublication
			}
		}
	}
}

// framesAlone bridges a key without packets.
func (b *bridge) framesAlone(ctx context.Context) (err error) {
	gid, err := framering.GroupID(b.o.Group)
	if err != nil {
		return err
	}
	p, err := framering.NewPublisher(framering.PublisherOptions{
		RuntimeDir: b.o.RuntimeDir, Key: b.o.NewKey, GID: gid, Protocol: b.o.Protocol, Logger: b.o.Logger,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(framering.ReasonNormal)) }()
	if err := p.Serve(); err != nil {
		return err
	}
	b.ready()
	return b.frames(ctx, p, b.o.WaitForKey)
}

func (b *bridge) ready() {
	if b.o.Ready != nil {
		b.o.Ready()
	}
}

// frames copies frames into p until the key ends.
func (b *bridge) frames(ctx context.Context, p *framering.Publisher, wait time.Duration) (err error) {
	sub, err := SubscribeFrames(ctx, FrameSubscribeOptions{
		RuntimeDir: b.o.RuntimeDir, Key: b.o.Key, Name: "bridge", Mode: framering.StrictOrder, Newest: true, Device: b.o.Device,
		WaitForKey: wait, NoFollow: b.o.NoFollow, Logger: b.o.Logger,
	})
	if err != nil {
		return err
	}
	c := &frameBridge{b: b, p: p, sub: sub}
	defer func() { err = errors.Join(err, c.close(), sub.Close()) }()
	for {
		f, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		if err := c.frame(ctx, f); err != nil {
			return err
		}
	}
}

// frameBridge is the copy of frames.
type frameBridge struct {
	b      *bridge
	p      *framering.Publisher
	sub    *FrameSubscription
	meta   framering.FrameMeta
	onGPU  bool
	device *cudavmm.Device // nil before the first frame that needs it
	stream *cudavmm.Stream
	stills *stills // likewise
	writer *framering.FrameWriter
	lost   uint64
}

// frame publishes a copy of f and releases it. A frame that was overwritten within is left out.
func (c *frameBridge) frame(ctx context.Context, f framering.Frame) error {
	meta, onGPU := c.sub.Meta(), f.Buffer.Bytes() == nil
	if c.writer == nil || meta != c.meta || onGPU != c.onGPU {
		if err := c.start(meta, onGPU); err != nil {
			return errors.Join(err, f.Release())
		}
	}
	slot, err := c.writer.Acquire(ctx)
	if err != nil {
		return errors.Join(err, f.Release())
	}
	err = c.copy(slot.Buffer, f)
	err = errors.Join(err, f.Release())
	if errors.Is(err, framering.ErrFrameOverrun) {
		c.writer.Cancel()
		c.lost++
		return nil
	}
	if err != nil {
		c.writer.Cancel()
		return err
	}
	_, err = c.writer.Publish(f.PTS)
	return err
}

// start begins a generation with the frames' layout.
func (c *frameBridge) start(meta framering.FrameMeta, onGPU bool) error {
	legacy := c.b.o.Protocol == 1 || c.b.o.Protocol == 2
	if (onGPU || legacy) && c.stream == nil {
		v, err := cudavmm.OpenDevice(c.b.o.Device)
		if err != nil {
			return err
		}
		if c.stream, err = v.NewStream(); err != nil {
			return errors.Join(err, v.Close())
		}
		c.device = v
	}
	var memory framering.Memory = cudavmm.Host{}
	if onGPU || legacy {
		memory = c.device
	}
	if (onGPU || legacy) && c.stills == nil { // before there are frames: who finds them finds it
		c.stills = serveStills(c.p, c.device, c.b.log)
	}
	slots := c.b.o.FrameSlots
	if slots == 0 {
		slots = c.sub.Slots()
	}
	w, err := c.p.StartFrames(framering.FrameOptions{
		RingSize: slots, Meta: meta, Policy: c.b.o.Policy, AckTimeout: c.b.o.AckTimeout, Memory: memory,
	})
	if err != nil {
		return err
	}
	c.writer, c.meta, c.onGPU = w, meta, onGPU
	c.b.log.Info("frames", "format", meta.Format.String(), "width", meta.Width, "height", meta.Height, "gpu", onGPU || legacy)
	return nil
}

// copy copies the whole slot, padding and all, and waits for it.
func (c *frameBridge) copy(dst framering.Buffer, f framering.Frame) error {
	n := int(c.meta.FrameSize)
	src := cudavmm.Plane{Pointer: f.Buffer.Pointer(), Host: f.Buffer.Bytes(), Pitch: int(c.meta.PitchY)}
	to := cudavmm.Plane{Pointer: dst.Pointer(), Host: dst.Bytes(), Pitch: src.Pitch}
	if src.Host != nil && to.Host != nil {
		return f.CopyTo(to.Host[:n])
	}
	if err := f.WaitOn(c.stream.Handle()); err != nil {
		return err
	}
	// As lines of pitch_y bytes, and what is left behind them.
	lines := n / src.Pitch
	err := c.stream.Copy2D(to, src, src.Pitch, lines)
	if rest := n - lines*src.Pitch; err == nil && rest > 0 {
		err = c.stream.Copy2D(after(to, lines*src.Pitch), after(src, lines*src.Pitch), rest, 1)
	}
	return errors.Join(err, c.stream.Synchronize())
}

// after is the part of a plane behind n bytes.
func after(p cudavmm.Plane, n int) cudavmm.Plane {
	if p.Host != nil {
		p.Host = p.Host[n:]
		return p
	}
	p.Pointer += uintptr(n)
	return p
}

func (c *frameBridge) close() error {
	if c.lost > 0 {
		c.b.log.Warn("frames were overwritten while they were copied, and left out", "frames", c.lost)
	}
	if c.stream == nil {
		return nil
	}
	return errors.Join(c.stills.Close(), c.stream.Close(), c.device.Close())
}
