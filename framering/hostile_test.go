package framering

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// raw is a peer that sends bytes.
type raw struct {
	t testing.TB
	c *net.UnixConn
	p *peer
}

func rawDial(t testing.TB, dir, key string) *raw {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: SocketPath(dir, key), Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	r := &raw{t: t, c: c, p: newPeer(c, &protocol4, true)}
	r.p.deadline = time.Now().Add(60 * time.Second)
	return r
}

func framed(t testing.TB, msgs ...message) (b []byte) {
	t.Helper()
	for _, m := range msgs {
		var err error
		b, err = appendMessage(b, m, &protocol4)
		require.NoError(t, err)
	}
	return b
}

func (r *raw) send(b []byte) {
	r.t.Helper()
	_, err := r.c.Write(b)
	require.NoError(r.t, err)
}

// expect receives messages of these types.
func (r *raw) expect(types ...MsgType) (last inbound) {
	r.t.Helper()
	for _, typ := range types {
		in, err := r.p.receive()
		require.NoError(r.t, err)
		require.Equal(r.t, typ, in.typ)
		in.close()
		last = in
	}
	return last
}

// expectError receives ERROR with the code, and then the end.
func (r *raw) expectError(code Code) {
	r.t.Helper()
	m, err := parseError(r.expect(msgError).payload)
	require.NoError(r.t, err)
	require.Equal(r.t, code, m.Code)
	r.expectEnd()
}

func (r *raw) expectEnd() {
	r.t.Helper()
	_, err := r.p.receive()
	require.ErrorIs(r.t, err, io.EOF)
}

func TestHostilePeers(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	p := publishPatient(t, PublisherOptions{RuntimeDir: dir, Key: key}, true, 2*time.Second)
	witness := subscribe(t, dir, key, WantsPackets)

	hello := helloRequest{Version: 4, Name: "x", Flags: WantsPackets}
	attacks := map[string]func(r *raw){
		"silence": func(r *raw) { r.expectError(ErrTimeout) },
		"slow loris": func(r *raw) {
			for _, b := range framed(r.t, hello) {
				if _, err := r.c.Write([]byte{b}); err != nil {
					break // closed already, as it should be
				}
				time.Sleep(100 * time.Millisecond) // the pace of the attack
			}
			_, err := r.p.receive()
			require.Error(r.t, errors.Join(err, firstError(r)))
		},
		"silence after HELLO": func(r *raw) {
			r.send(framed(r.t, hello))
			r.expect(msgHelloResp)
			r.expectError(ErrTimeout)
		},
		"PING does not buy time": func(r *raw) {
			end := time.Now().Add(10 * time.Second)
			for time.Now().Before(end) {
				if _, err := r.c.Write(framed(r.t, ping{})); err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
			r.t.Error("still there after 10 s")
		},
		"huge length": func(r *raw) {
			r.send([]byte{1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF})
			r.expectError(ErrProtocol)
		},
		"length one too long": func(r *raw) {
			r.send([]byte{1, 0, 0, 0, 0x01, 0x10, 0, 0})
			r.expectError(ErrProtocol)
		},
		"garbage": func(r *raw) {
			r.send([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))
			r.expectError(ErrProtocol)
		},
		"wrong order": func(r *raw) {
			r.send(framed(r.t, subscribeRequest{4}))
			r.expectError(ErrProtocol)
		},
		"HELLO twice": func(r *raw) {
			r.send(framed(r.t, hello, hello))
			r.expect(msgHelloResp)
			r.expectError(ErrProtocol)
		},
		"SUBSCRIBE twice": func(r *raw) {
			r.send(framed(r.t, hello, subscribeRequest{4}, subscribeRequest{4}))
			r.expect(msgHelloResp, msgSubscribeResp, msgVMMFDs)
			r.expectError(ErrProtocol)
		},
		"publisher's messages": func(r *raw) {
			r.send(framed(r.t, shutdownNotice{}))
			r.expectError(ErrProtocol)
		},
		"unknown type": func(r *raw) {
			r.send([]byte{0x20, 0, 0, 0, 0, 0, 0, 0})
			r.expectError(ErrProtocol)
		},
		"malformed HELLO": func(r *raw) {
			b := framed(r.t, hello)
			binary.LittleEndian.PutUint32(b[12:], 1000)
			r.send(b)
			r.expectError(ErrProtocol)
		},
		"half-close": func(r *raw) {
			r.send(framed(r.t, hello))
			require.NoError(r.t, r.c.CloseWrite())
			r.expect(msgHelloResp)
			r.expectEnd()
		},
		"half a message, then the end": func(r *raw) {
			r.send(framed(r.t, hello)[:11])
			require.NoError(r.t, r.c.CloseWrite())
			r.expectError(ErrProtocol)
		},
		"half a message when ready": func(r *raw) {
			r.send(framed(r.t, hello, subscribeRequest{4}))
			r.expect(msgHelloResp, msgSubscribeResp, msgVMMFDs)
			r.send([]byte{0xF0, 0})
			r.expectError(ErrTimeout)
		},
		"never reads": func(r *raw) {
			r.send(framed(r.t, hello, subscribeRequest{4}))
			b := framed(r.t, ping{make([]byte, 4000)})
			require.NoError(r.t, r.c.SetWriteDeadline(time.Now().Add(20*time.Second)))
			for {
				if _, err := r.c.Write(b); err != nil {
					require.NotErrorIs(r.t, err, os.ErrDeadlineExceeded, "the publisher must end it")
					return
				}
			}
		},
		"descriptor flood": func(r *raw) {
			f, err := os.Open("/dev/null")
			require.NoError(r.t, err)
			defer f.Close()
			fds := make([]int, 250)
			for i := range fds {
				fds[i] = int(f.Fd())
			}
			b := framed(r.t, ping{})
			r.send(framed(r.t, hello, subscribeRequest{4}))
			r.expect(msgHelloResp, msgSubscribeResp, msgVMMFDs)
			for range 3 {
				require.NoError(r.t, shm.SendFDs(r.c, b, fds))
				r.expect(msgPong)
			}
			r.send(framed(r.t, subscribeRequest{4}))
			r.expectError(ErrProtocol)
		},
	}
	t.Run("attacks", func(t *testing.T) {
		for name, attack := range attacks {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				attack(rawDial(t, dir, key))
				require.NoError(t, witness.Err(), "the witness is not disturbed")
			})
		}
	})
	var conns []*raw
	for range maxSessions + 20 {
		conns = append(conns, rawDial(t, dir, key))
	}
	refused := 0
	for _, c := range conns {
		m, err := parseError(c.expect(msgError).payload)
		require.NoError(t, err)
		if m.Code == ErrBusy {
			refused++
		}
	}
	require.GreaterOrEqual(t, refused, 20)
	require.NoError(t, witness.Ping())
	require.NoError(t, witness.Err())
	require.NoError(t, witness.Close())
	eventuallyEmpty(t, p)
}

func firstError(r *raw) error {
	_, err := r.p.receive()
	return err
}

// TestHostilePublisher: what a subscriber meets when the other side lies.
func TestHostilePublisher(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	f, err := os.Open("/dev/null")
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() }) // not deferred: the subtests run in parallel, after this function
	flood := make([]int, 200)
	for i := range flood {
		flood[i] = int(f.Fd())
	}
	resp := helloResponse{Version: 4, RingSize: 3, Meta: nv12, ShmPath: "cuframes-x"}
	vmm := vmmFDs{Count: 3, FrameSize: 4 << 20, Granularity: 2 << 20}
	for name, c := range map[string]struct {
		talk func(r *raw)
		err  error // nil: no particular one
		ok   bool
	}{
		"good": {ok: true, talk: func(r *raw) {
			r.send(framed(t, resp, subscribeResponse{Bit: 1}))
			require.NoError(t, shm.SendFDs(r.c, framed(t, vmm), flood[:3]))
		}},
		"descriptors beside the payload": {ok: true, talk: func(r *raw) { // as an implementation that sends header and payload apart
			r.send(framed(t, resp, subscribeResponse{Bit: 1}))
			b := framed(t, vmm)
			r.send(b[:8])
			require.NoError(t, shm.SendFDs(r.c, b[8:], flood[:3]))
		}},
		"descriptor flood": {err: ErrProtocol, talk: func(r *raw) {
			r.send(framed(t, resp, subscribeResponse{Bit: 1}))
			require.NoError(t, shm.SendFDs(r.c, framed(t, vmm), flood))
		}},
		"17 descriptors in parts": {err: ErrProtocol, talk: func(r *raw) {
			r.send(framed(t, resp, subscribeResponse{Bit: 1}))
			for _, b := range framed(t, vmm)[:17] {
				require.NoError(t, shm.SendFDs(r.c, []byte{b}, flood[:1]))
			}
		}},
		"descriptors too early": {err: ErrNotFound, talk: func(r *raw) {
			require.NoError(t, shm.SendFDs(r.c, framed(t, helloResponse{Result: ErrNotFound}), flood[:9]))
		}},
		"too few descriptors": {err: ErrProtocol, talk: func(r *raw) {
			r.send(framed(t, resp, subscribeResponse{Bit: 1}))
			require.NoError(t, shm.SendFDs(r.c, framed(t, vmm), flood[:2]))
		}},
		"no descriptors": {err: ErrProtocol, talk: func(r *raw) { r.send(framed(t, resp, subscribeResponse{Bit: 1}, vmm)) }},
		"huge length":    {err: ErrProtocol, talk: func(r *raw) { r.send([]byte{2, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F}) }},
		"garbage":        {err: ErrProtocol, talk: func(r *raw) { r.send([]byte("\r\n\r\n\r\n\r\n220 mail.example ESMTP")) }},
		"refusal":        {err: ErrCUDA, talk: func(r *raw) { r.send(framed(t, errorNotice{Code: ErrCUDA, Message: "no \x1b[31mGPU"})) }},
		"shutting down":  {err: ErrDisconnected, talk: func(r *raw) { r.send(framed(t, shutdownNotice{ReasonUpgrade})) }},
		"the end":        {err: ErrDisconnected, talk: func(r *raw) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, key := place(t)
			said := foreignSocket(t, dir, key, func(conn *net.UnixConn) {
				r := &raw{t: t, c: conn, p: newPeer(conn, &protocol4, false)}
				r.expect(msgHelloReq)
				c.talk(r)
				if c.ok {
					_, _ = io.Copy(io.Discard, conn)
				}
			})
			s, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsFrames})
			if c.ok {
				require.NoError(t, err)
				require.NoError(t, s.Close())
			} else {
				require.ErrorIs(t, err, c.err)
				require.NotContains(t, err.Error(), "\x1b")
			}
			wait(t, said, "the publisher")
		})
	}
}

// TestFloods: subscribers of several processes come and are killed; no bit, descriptor or mapping is left.
func TestFloods(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	p := publishBoth(t, PublisherOptions{RuntimeDir: dir, Key: key}, true, FrameOptions{RingSize: 2, Meta: NV12Meta(64, 48)})
	witness := subscribe(t, dir, key, WantsPackets)

	var killed []*testenv.Process
	for range 3 {
		c, _ := child(t, "subscribe", dir, key)
		killed = append(killed, c)
	}
	// 1000 in this process: a third says goodbye, a third just closes, a third leaves in the middle of the handshake.
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 250 {
				if (i+worker)%3 == 0 {
					c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: SocketPath(dir, key), Net: "unix"})
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = c.Write(framed(t, helloRequest{Version: 4}, subscribeRequest{4})[:10+i%50])
					c.Close()
					continue
				}
				s, err := Dial(context.Background(), DialOptions{RuntimeDir: dir, Key: key, Flags: Flags(i % 4)})
				if errors.Is(err, ErrTooMany) || errors.Is(err, ErrBusy) {
					continue // the others hold the bits
				}
				if err != nil {
					t.Error(err)
					return
				}
				if (i+worker)%3 == 1 {
					s.peer.c.Close()
				}
				_ = s.Close()
			}
		})
	}
	wg.Wait()
	for _, c := range killed {
		c.Kill()
	}
	require.NoError(t, witness.Err())
	require.NoError(t, witness.Close())
	eventuallyEmpty(t, p)
}

// TestCloseWithStuckSubscribers: Close is bounded by what one subscriber may take, however many there are.
func TestCloseWithStuckSubscribers(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
	var stuck []*raw
	for range 8 {
		r := rawDial(t, dir, key)
		r.send(framed(t, helloRequest{Version: 4, Flags: WantsPackets}, subscribeRequest{4}))
		b := framed(t, ping{make([]byte, 4000)})
		require.NoError(t, r.c.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
		for {
			if _, err := r.c.Write(b); err != nil {
				break
			}
		}
		stuck = append(stuck, r)
	}
	begin := time.Now()
	require.NoError(t, p.Close(ReasonNormal))
	require.Less(t, time.Since(begin), 5*writeTimeout) // 8 of them one after the other
	requireNothingLeft(t, dir, key)
	_ = fmt.Sprint(stuck)
}

// FuzzPublisherStream feeds a publisher's session arbitrary bytes over a real socket: it ends, and no bit is left.
func FuzzPublisherStream(f *testing.F) { fuzzStream(f, 4) }

// FuzzLegacyStream is the same for protocol 2, which also hands out an eventfd.
func FuzzLegacyStream(f *testing.F) { fuzzStream(f, 2) }

func fuzzStream(f *testing.F, version uint32) {
	hello := helloRequest{Version: version, Name: "x", Flags: WantsPackets}
	f.Add(framed(f, hello))
	f.Add(framed(f, hello, subscribeRequest{version}))
	f.Add(framed(f, hello, subscribeRequest{version}, ping{[]byte("hi")}, unsubscribe{}))
	f.Add(framed(f, hello, subscribeRequest{version}, pong{}, errorNotice{Code: ErrIO, Message: "x"}))
	f.Add(framed(f, hello, hello))
	f.Add(framed(f, subscribeRequest{version}))
	f.Add(framed(f, helloRequest{Version: 1}, subscribeRequest{1}))
	f.Add([]byte{1, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	dir, key := place(f)
	p := publish(f, PublisherOptions{RuntimeDir: dir, Key: key, Protocol: version}, true)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: SocketPath(dir, key), Net: "unix"})
		require.NoError(t, err)
		defer c.Close()
		_, _ = c.Write(b) // the publisher may close before it has taken all
		_ = c.CloseWrite()
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = io.Copy(io.Discard, c)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the session must end")
		testenv.Eventually(t, 10*time.Second, func() error {
			if n := len(p.Subscribers()); n > 0 {
				return fmt.Errorf("%d bits left", n)
			}
			return nil
		})
	})
}
