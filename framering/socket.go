package framering

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Time bounds of the control socket. Peers are processes of the same machine: what takes longer is stuck or hostile.
const (
	handshakeTimeout = 5 * time.Second // for each step of the handshake, and for the rest of a message that has begun
	writeTimeout     = 2 * time.Second // for one message to a peer that does not read
	handleTimeout    = time.Second     // for subscribers of frames to close their CUDA IPC handles when these are about to end
)

// peer is a conn over a Unix socket. One goroutine receives; any may send.
type peer struct {
	c   *net.UnixConn
	d   *dialect
	fds bool // take descriptors; false leaves it to the kernel to close what a peer sends

	patience time.Duration // handshakeTimeout
	deadline time.Time     // of the handshake's step, for receive; zero once the peer is ready
	in       []byte

	mu  sync.Mutex // around sending
	out []byte
}

func newPeer(c *net.UnixConn, d *dialect, fds bool) *peer {
	return &peer{c: c, d: d, fds: fds, patience: handshakeTimeout, in: make([]byte, frameHeaderSize, frameHeaderSize+64)}
}

// step begins a step of the handshake; the peer has its patience for it. ready ends the last one.
func (p *peer) step()  { p.deadline = time.Now().Add(p.patience) }
func (p *peer) ready() { p.deadline = time.Time{} }

func (p *peer) receive() (in inbound, err error) {
	defer func() {
		if err != nil {
			in.close()
			in = inbound{}
		}
	}()
	if err := p.c.SetReadDeadline(p.deadline); err != nil {
		return in, err
	}
	p.in = p.in[:frameHeaderSize]
	if err := p.readFull(p.in, &in, true); err != nil {
		return in, err
	}
	typ, n, err := parseFrameHeader((*[frameHeaderSize]byte)(p.in))
	if err != nil {
		return in, err
	}
	in.typ = typ
	if n > cap(p.in)-frameHeaderSize {
		p.in = append(p.in, make([]byte, n)...)
	}
	in.payload = p.in[frameHeaderSize : frameHeaderSize+n]
	return in, p.readFull(in.payload, &in, false)
}

// readFull fills b and collects descriptors. Only before the first byte of a message the peer may take its time.
func (p *peer) readFull(b []byte, in *inbound, first bool) error {
	for done := 0; done < len(b); {
		if (done > 0 || !first) && p.deadline.IsZero() {
			if err := p.c.SetReadDeadline(time.Now().Add(p.patience)); err != nil {
				return err
			}
		}
		var n int
		var err error
		if p.fds {
			var fds []int
			n, fds, err = shm.RecvFDs(p.c, b[done:], maxFDs-len(in.fds))
			in.fds = append(in.fds, fds...)
		} else {
			n, err = p.c.Read(b[done:])
		}
		done += max(n, 0) // ReadMsgUnix gives -1 with some errors
		switch {
		case done == len(b):
			return nil
		case errors.Is(err, shm.ErrTooManyFDs):
			return fmt.Errorf("more than %d descriptors: %w", maxFDs, ErrProtocol)
		case errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET):
			if done == 0 && first {
				return io.EOF
			}
			return fmt.Errorf("the connection ends within a message: %w", ErrProtocol)
		case err != nil:
			return err
		}
	}
	return nil
}

func (p *peer) send(m message, fds []int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	if p.out, err = appendMessage(p.out[:0], m, p.d); err != nil {
		return err
	}
	if err = p.c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if len(fds) > 0 {
		err = shm.SendFDs(p.c, p.out, fds)
	} else {
		_, err = p.c.Write(p.out)
	}
	if err != nil {
		return fmt.Errorf("send %s: %w", m.msgType(), err)
	}
	return nil
}
