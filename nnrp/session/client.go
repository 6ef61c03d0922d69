package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// ClientOptions configure Open.
type ClientOptions struct {
	// Hello is what the client offers. With Hello.SDK its body is in the public SDKs' order, and tensors go out as payload_kind 1. Bitmaps,
	// versions and counts that are 0 get defaults: version 1, preview1, the tensor profile, raw and Codecs, every dtype and layout, one lane,
	// no cache.
	Hello  nnrp.ClientHello
	Codecs []nnrp.Codec // beside raw
	Logger *slog.Logger // nil = slog.Default()
}

func (o *ClientOptions) hello() nnrp.ClientHello {
	h := o.Hello
	def := func(v *uint32, d uint32) {
		if *v == 0 {
			*v = d
		}
	}
	if h.MinVersionMajor == 0 {
		h.MinVersionMajor = nnrp.VersionMajor
	}
	if h.MaxVersionMajor == 0 {
		h.MaxVersionMajor = nnrp.VersionMajor
	}
	if h.SupportedStageBitmap == 0 {
		h.SupportedStageBitmap = nnrp.StagePreview1
	}
	def(&h.SupportedProfileBitmap, nnrp.ProfileTensorBit)
	kinds := uint32(nnrp.PayloadTensorBit)
	if h.SDK {
		kinds |= nnrp.PayloadTensorBit << nnrp.PayloadTensorSDK
	}
	def(&h.SupportedPayloadKindBitmap, kinds)
	def(&h.SupportedCodecBitmap, codecBitmap(o.Codecs))
	def(&h.SupportedCompressionBitmap, codecBitmap(o.Codecs))
	def(&h.SupportedDTypeBitmap, 0xff)
	def(&h.SupportedLayoutBitmap, 1<<nnrp.NHWC|1<<nnrp.NCHW)
	h.MaxLaneCount = max(h.MaxLaneCount, 1)
	return h
}

// Client is the client's end of a session. Its methods may be called from several goroutines.
type Client struct {
	conn    Conn
	log     *slog.Logger
	control ControlStream
	out     *controlWriter
	tail    *tailProbe
	stop    chan struct{} // ends the control writer
	writing sync.WaitGroup
	peerEnd chan struct{} // closed when the server has ended its half of the control stream
	closing sync.Once
	ctx     context.Context
	cancel  context.CancelCauseFunc
	done    sync.WaitGroup
	codecs  []nnrp.Codec

	slots    chan struct{} // one a frame from Submit to Next
	outcomes chan *Outcome // never full: as many places as slots
	nextID   atomic.Uint32

	mu      sync.Mutex
	state   State
	agreed  *Agreement
	frames  *Frames
	pending map[FrameKey]*Outcome
	waiters []*waiter
	cache   *Cache
	idle    chan struct{} // closed when DRAINING and no frame is left
}

// Outcome is how a frame ended.
type Outcome struct {
	View      uint16
	FrameID   uint32
	State     FrameState // Delivered, Dropped, Cancelled or Expired
	Header    nnrp.Header
	Result    *nnrp.ResultPush // Delivered only; its slices are valid until Release
	Err       *nnrp.Error      // why, where the server said so
	Submitted time.Time
	Took      time.Duration // from Submit to the outcome
	Tag       any           // the caller's, from SubmitOptions

	buf   *[]byte
	life  time.Duration // latency budget
	timer *time.Timer
	told  bool // handed to outcomes; what is left is the frame's place at the server
}

// Release gives the result's memory back.
func (o *Outcome) Release() {
	if o.buf != nil {
		*o.buf = (*o.buf)[:0]
		buffers.Put(o.buf)
		o.buf, o.Result = nil, nil
	}
}

// waiter waits for the answer to a control message.
type waiter struct {
	t     nnrp.MsgType
	trace uint64
	got   chan nnrp.Message // one place
	err   *nnrp.Error
}

// ErrFull: as many frames as agreed are under way (TrySubmit).
var ErrFull = errors.New("nnrp: as many frames as agreed are under way")

// Open runs the handshake as a client. A refusal by the server is an *nnrp.Error; with server_busy it holds RetryAfterMs. The
// connection is closed when Open fails, and by Close.
func Open(ctx context.Context, conn Conn, o ClientOptions) (*Client, error) {
	c := &Client{conn: conn, log: o.Logger, stop: make(chan struct{}), peerEnd: make(chan struct{}),
		idle: make(chan struct{}), codecs: o.Codecs, pending: map[FrameKey]*Outcome{}}
	if c.log == nil {
		c.log = slog.Default()
	}
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	c.tail = newTailProbe(conn, clientProbe, func() { c.datagram(nnrp.MsgPing, nnrp.Header{}) })
	if err := c.handshake(ctx, &o); err != nil {
		c.cancel(err)
		_ = conn.CloseWithError(0, "")
		return nil, err
	}
	c.writing.Go(func() { c.out.run(c.stop) })
	c.done.Go(c.readControl)
	c.done.Go(c.readDatagrams)
	c.done.Go(c.acceptStreams)
	c.done.Go(func() {
		select {
		case <-conn.Done():
			c.cancel(fmt.Errorf("nnrp: connection to %s ended", conn.RemoteAddr()))
		case <-c.ctx.Done():
		}
	})
	return c, nil
}

func (c *Client) handshake(ctx context.Context, o *ClientOptions) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	s, err := c.conn.OpenControl(ctx)
	if err != nil {
		return fmt.Errorf("nnrp: open control stream: %w", err)
	}
	c.control = s
	unblock := context.AfterFunc(ctx, func() { _ = s.SetReadDeadline(time.Unix(1, 0)) })
	defer unblock()
	hello := o.hello()
	b, err := hello.Append(nil, nnrp.Header{})
	if err != nil {
		return err
	}
	_ = s.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := s.Write(b); err != nil {
		return fmt.Errorf("nnrp: write CLIENT_HELLO: %w", err)
	}
	c.state.To(Negotiating)
	buf := make([]byte, nnrp.HeaderLen, 1024)
	limits := nnrp.Limits{SDK: hello.SDK}
	h, err := readHeader(s, buf, &limits, true)
	if err == nil {
		buf, err = readRest(s, buf, int(h.Size())-nnrp.HeaderLen, headTimeout)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("nnrp: read SERVER_HELLO_ACK: %w", err)
	}
	if err := c.state.Accept(false, h.Type, OnControl); err != nil {
		return err
	}
	switch h.Type {
	case nnrp.MsgError:
		var m nnrp.ErrorMessage
		if err := m.Parse(&h, buf[nnrp.HeaderLen:], &limits); err != nil {
			return err
		}
		return m.Err()
	case nnrp.MsgClose:
		return fmt.Errorf("nnrp: the server closed during the handshake: %w", io.EOF)
	}
	var ack nnrp.ServerHelloAck
	if err := ack.Parse(&h, buf[nnrp.HeaderLen:], &limits); err != nil {
		return err
	}
	if c.agreed, err = Agree(&hello, &ack); err != nil {
		return err
	}
	n := int(c.agreed.Concurrent)
	c.frames, c.cache = NewFrames(n), NewCache(c.agreed.Cache)
	c.slots, c.outcomes = make(chan struct{}, n), make(chan *Outcome, n)
	c.out = newControlWriter(s, func(err error) { c.cancel(err) })
	c.state.To(Active)
	return nil
}

// Agreement returns what is in effect now.
func (c *Client) Agreement() Agreement {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.agreed
}

// Codecs returns the codecs that were agreed beside raw.
func (c *Client) Codecs() []nnrp.Codec {
	a := c.Agreement()
	var list []nnrp.Codec
	for _, k := range c.codecs {
		if a.Codecs>>k.ID()&1 != 0 {
			list = append(list, k)
		}
	}
	return list
}

// Done is closed when the session has ended; Err then says why.
func (c *Client) Done() <-chan struct{} { return c.ctx.Done() }

// Err returns why the session has ended, nil while it lives and after an orderly Close.
func (c *Client) Err() error {
	err := context.Cause(c.ctx)
	if errors.Is(err, errSessionEnded) {
		return nil
	}
	return err
}

// State returns the session's state.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Close sends CLOSE, waits until the frames under way have ended (at most a few seconds, or until ctx ends), and closes the connection.
// Outcomes that are there can still be had from Next. It must be called also when the session has ended by itself.
func (c *Client) Close(ctx context.Context) error {
	c.closing.Do(func() { c.close(ctx) })
	return nil
}

func (c *Client) close(ctx context.Context) {
	c.mu.Lock()
	orderly := c.state == Active && c.ctx.Err() == nil
	c.state.To(Draining)
	c.checkIdle()
	c.mu.Unlock()
	if orderly {
		_ = c.out.send(&nnrp.Close{}, c.header(nnrp.Header{}))
		ctx, cancel := context.WithTimeout(ctx, drainTimeout)
		defer cancel()
		for _, step := range [...]<-chan struct{}{c.idle, c.peerEnd} {
			select {
			case <-step:
			case <-ctx.Done():
			case <-c.ctx.Done():
			}
		}
	}
	c.cancel(errSessionEnded)
	c.tail.followed()
	close(c.stop)
	c.writing.Wait()
	_ = c.control.Close()
	_ = c.conn.CloseWithError(0, "")
	c.done.Wait()
	c.mu.Lock()
	c.state.To(Closed)
	left := slices.Collect(maps.Values(c.pending))
	c.mu.Unlock()
	for _, o := range left {
		c.finish(o, Cancelled, nil)
		c.letGo(FrameKey{o.View, o.FrameID})
	}
}

// checkIdle notes that a draining session has no frames left; c.mu is held.
func (c *Client) checkIdle() {
	if c.state >= Draining && c.frames.Live() == 0 {
		select {
		case <-c.idle:
		default:
			close(c.idle)
		}
	}
}

func (c *Client) header(h nnrp.Header) nnrp.Header {
	h.SessionID = c.agreed.SessionID
	return h
}
