package session

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Backoff says how long Redial waits between attempts. The zero value: 250 ms to 15 s, doubled each time, reset by a session that
// lived for 10 s.
type Backoff struct {
	Min, Max time.Duration
	Good     time.Duration
}

func (b Backoff) withDefaults() Backoff {
	if b.Min == 0 {
		b.Min = 250 * time.Millisecond
	}
	if b.Max == 0 {
		b.Max = 15 * time.Second
	}
	if b.Good == 0 {
		b.Good = 10 * time.Second
	}
	return b
}

// Redial keeps a session up: it opens one, calls use with it, closes it when use returns, and starts over after a while. It returns
// when ctx ends (nil), when open or use returns ErrStop (nil), or when the server's answer will not change: auth_failed, unsupported_version,
// unsupported_capability. lost is told about every failure and the wait that follows; it may be nil.
func Redial(ctx context.Context, b Backoff, open func(context.Context) (*Client, error), use func(context.Context, *Client) error,
	lost func(error, time.Duration)) error {
	b = b.withDefaults()
	wait := b.Min
	for {
		start := time.Now()
		c, err := open(ctx)
		if err == nil {
			err = use(ctx, c)
			_ = c.Close(ctx)
			if err == nil {
				err = c.Err()
			}
			if err == nil {
				err = errors.New("nnrp: the session ended")
			}
		}
		if errors.Is(err, ErrStop) {
			return nil
		}
		if ctx.Err() != nil {
			return nil
		}
		for _, final := range []error{nnrp.ErrAuthFailed, nnrp.ErrUnsupportedVersion, nnrp.ErrUnsupportedCapability} {
			if errors.Is(err, final) {
				return err
			}
		}
		if c != nil && time.Since(start) >= b.Good {
			wait = b.Min
		}
		pause := wait/2 + rand.N(wait/2+1) // many clients of one server do not come back in step
		if e := asError(err); e != nil && e.RetryAfterMs > 0 {
			pause = max(pause, min(time.Duration(e.RetryAfterMs)*time.Millisecond, b.Max))
		}
		if lost != nil {
			lost(err, pause)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, b.Max)
	}
}

// ErrStop ends Redial.
var ErrStop = errors.New("nnrp: stop")
