package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/nnrp"
)

// pings counts the PINGs and PONGs that c's end of the connection has sent.
func pings(t *testing.T, c *memConn) (ping, pong int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range c.sent {
		h, err := nnrp.ParseHeader(b)
		require.NoError(t, err)
		switch h.Type {
		case nnrp.MsgPing:
			ping++
		case nnrp.MsgPong:
			pong++
		}
	}
	return ping, pong
}

func TestTailProbe(t *testing.T) {
	const delay = 10 * time.Millisecond
	for _, x := range []struct {
		name       string
		delay      time.Duration
		frames     int           // one after another
		gap        time.Duration // between them
		work       time.Duration // of the engine
		client     int           // PINGs
		server     int
		serverPong int
	}{
		{name: "not wanted", frames: 3, gap: time.Second, work: time.Millisecond},
		// The client's PING comes before the result has gone out, whose probe is then the server's own.
		{name: "slow engine", delay: delay, frames: 3, gap: time.Second, work: 100 * time.Millisecond, client: 3, server: 3, serverPong: 3},
		// The server's PONG follows the result.
		{name: "fast engine", delay: delay, frames: 3, gap: time.Second, work: delay / 4, client: 3, serverPong: 3},
		// The PONG may be in the packet of the result.
		{name: "result and PONG at once", delay: delay, frames: 3, gap: time.Second, work: delay * 3 / 4, client: 3, server: 3, serverPong: 3},
		{name: "frames in a row", delay: delay, frames: 20, gap: delay / 2, work: delay / 4, client: 1, serverPong: 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, &engine{}, Policy{Concurrent: 32})
				client, server := s.conn, s.conn.peer
				client.probe, server.probe = x.delay, x.delay
				c := open(t, s)
				for range x.frames {
					_, err := c.Submit(t.Context(), picture("x", nnrp.ClassKeyframe, 0), SubmitOptions{})
					require.NoError(t, err)
					go func() {
						time.Sleep(x.work)
						for _, f := range s.e.take() {
							require.True(t, f.Start())
							f.Reply(answer(f))
						}
					}()
					time.Sleep(x.gap)
				}
				time.Sleep(time.Second)
				for range x.frames {
					require.Equal(t, Delivered, nextOf(t, c).State)
				}
				ping, pong := pings(t, client)
				require.Equal(t, x.client, ping, "the client's probes")
				require.Equal(t, x.server, pong, "its answers")
				ping, pong = pings(t, server)
				require.Equal(t, x.server, ping, "the server's probes")
				require.Equal(t, x.serverPong, pong, "its answers")
				s.end(t, c)
			})
		})
	}
}
