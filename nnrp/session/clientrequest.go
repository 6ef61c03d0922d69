package session

import (
	"context"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// request sends a control message and waits for the answer of type t.
func (c *Client) request(ctx context.Context, m nnrp.Message, t nnrp.MsgType) (nnrp.Message, error) {
	w := &waiter{t: t, trace: uint64(c.nextID.Add(1)) | 1<<63, got: make(chan nnrp.Message, 1)}
	c.mu.Lock()
	if c.state != Active {
		c.mu.Unlock()
		return nil, nnrp.NewError(nnrp.CodeInvalidState, "%s in state %s", m.Type(), c.State())
	}
	c.waiters = append(c.waiters, w)
	err := c.out.send(m, c.header(nnrp.Header{TraceID: w.trace})) // under the lock: answers come in the order of requests
	c.mu.Unlock()
	defer c.forget(w)
	if err != nil {
		return nil, err
	}
	select {
	case a := <-w.got:
		if a == nil {
			return nil, w.err
		}
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		return nil, context.Cause(c.ctx)
	}
}

func (c *Client) forget(w *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, x := range c.waiters {
		if x == w {
			c.waiters = append(c.waiters[:i], c.waiters[i+1:]...)
			return
		}
	}
}

// answer wakes the request for type t (0: any) with the trace id; where the server does not echo that, the oldest of the type, or the
// only one there is.
func (c *Client) answer(t nnrp.MsgType, trace uint64, m nnrp.Message, err *nnrp.Error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first *waiter
	for _, w := range c.waiters {
		if t != 0 && w.t != t || len(w.got) > 0 {
			continue
		}
		if w.trace == trace {
			first = w
			break
		}
		if first == nil && (t != 0 || len(c.waiters) == 1) {
			first = w
		}
	}
	if first == nil {
		return false
	}
	first.err = err
	first.got <- m
	return true
}

// Patch sends SESSION_PATCH and returns the answer; what it says is in effect is taken over.
func (c *Client) Patch(ctx context.Context, p *nnrp.SessionPatch) (*nnrp.SessionPatchAck, error) {
	m, err := c.request(ctx, p, nnrp.MsgSessionPatchAck)
	if err != nil {
		return nil, err
	}
	ack := m.(*nnrp.SessionPatchAck)
	c.mu.Lock()
	c.agreed.Patched(ack)
	c.mu.Unlock()
	return ack, nil
}

// Install sends CACHE_PUT and returns the server's CACHE_ACK. A refusal is no error: the object goes inline then.
func (c *Client) Install(ctx context.Context, p *nnrp.CachePut) (*nnrp.CacheAck, error) {
	if !c.Agreement().Cache.Enabled() {
		return nil, nnrp.NewError(nnrp.CodeUnsupportedCapability, "no cache was agreed")
	}
	m, err := c.request(ctx, p, nnrp.MsgCacheAck)
	if err != nil {
		return nil, err
	}
	return m.(*nnrp.CacheAck), nil
}

// Invalidate sends CACHE_INVALIDATE.
func (c *Client) Invalidate(m *nnrp.CacheInvalidate) error {
	return c.out.send(m, c.header(nnrp.Header{}))
}

// Ping measures the round trip on the control stream.
func (c *Client) Ping(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	_, err := c.request(ctx, &nnrp.Bare{Msg: nnrp.MsgPing}, nnrp.MsgPong)
	return time.Since(start), err
}

// Cached returns an object that the server has installed here.
func (c *Client) Cached(namespace uint32, key nnrp.CacheKey) ([]byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cache.Get(namespace, key, time.Now())
}
