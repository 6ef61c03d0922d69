package framering

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// maxSessions bounds the connections of a publisher: all subscribers, as many again in their handshake, and room for probes.
const maxSessions = 2*MaxSubscribers + 66

// session is one connection of a publisher.
type session struct {
	p    *Publisher
	peer *peer
	pid  int // 0 = in another PID namespace

	// Under p.mu.
	bit  int   // 0 = none
	fd   int   // of the bell, -1 = none
	ring *ring // the generation that was offered, held until the session ends or turns out to take packets alone
}

func (p *Publisher) accept(l *net.UnixListener) {
	var pause time.Duration
	for {
		c, err := l.AcceptUnix()
		if err == nil {
			pause = 0
			p.welcome(c)
			continue
		}
		select {
		case <-p.stop:
			return
		default:
		}
		// Out of descriptors, most likely: others may close some.
		if pause == 0 {
			p.log.Warn("accepting subscribers fails", "error", err)
		}
		pause = min(max(2*pause, 10*time.Millisecond), time.Second)
		select {
		case <-p.stop:
			return
		case <-time.After(pause):
		}
	}
}

// welcome starts a session, or refuses it when there are too many.
func (p *Publisher) welcome(c *net.UnixConn) {
	s := &session{p: p, fd: -1, peer: newPeer(c, p.dialect, false)}
	s.peer.patience = p.patience
	if cred, err := shm.PeerCred(c); err == nil {
		s.pid = cred.PID
	}
	p.mu.Lock()
	full := len(p.sessions) >= maxSessions
	if full || p.closing {
		p.mu.Unlock()
		if full {
			_ = s.peer.send(errorNotice{Code: ErrBusy, Message: "too many connections"}, nil)
		}
		c.Close()
		return
	}
	p.sessions[s] = struct{}{}
	p.wg.Go(s.run)
	p.mu.Unlock()
}

// run serves the connection until either side ends it.
func (s *session) run() {
	defer s.leave()
	side := &publisherSide{dialect: s.p.dialect, seats: s}
	s.peer.step()
	for {
		in, err := s.peer.receive()
		if err != nil {
			s.failed(side, err)
			return
		}
		before := side.state
		out := side.handle(in)
		in.close()
		for _, o := range out {
			if err := s.peer.send(o.msg, o.fds); err != nil {
				s.p.log.Debug("subscriber does not take its messages", "pid", s.pid, "error", err)
				return
			}
		}
		switch {
		case side.state == publisherClosed:
			if side.err != nil {
				s.p.log.Debug("subscriber refused", "pid", s.pid, "name", printable(cut(side.hello.Name, 100)), "error", side.err)
			}
			return
		case side.state == publisherReady && before != publisherReady:
			s.peer.ready()
			s.p.table.activate(side.bit)
			s.p.log.Debug("subscriber joined", "pid", s.pid, "name", printable(cut(side.hello.Name, 100)), "bit", side.bit)
		case side.state != before:
			s.peer.step()
		}
	}
}

// failed ends a session whose connection gave no whole message.
func (s *session) failed(side *publisherSide, err error) {
	p := s.p
	switch {
	case errors.Is(err, io.EOF):
	case errors.Is(err, ErrProtocol):
		_ = s.peer.send(newErrorNotice(ErrProtocol, err), nil)
		p.log.Debug("subscriber broke the protocol", "pid", s.pid, "error", err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = s.peer.send(errorNotice{Code: ErrTimeout, Message: fmt.Sprintf("silent for %v", p.patience)}, nil)
		p.log.Debug("subscriber is silent", "pid", s.pid, "state", int(side.state))
	}
}

// offer implements seats.
func (s *session) offer() offer {
	p := s.p
	p.mu.Lock()
	packets, closing := p.packets, p.closing
	s.hold(p.ring)
	frames, memory := p.ring.frames, p.ring.memory
	p.mu.Unlock()
	o := offer{
		shmPath: shm.Dir + "/" + ShmName(p.key), packetPath: packets.Path, codecID: packets.CodecID, shutDown: closing,
	}
	if frames != nil {
		o.ringSize, o.ownership, o.meta, o.memory = frames.RingSize, frames.ownership(), frames.Meta, memory
	}
	if packets.InitialSeq != nil {
		o.initialSeq = packets.InitialSeq()
	}
	return o
}

// join implements seats.
func (s *session) join(h helloRequest) (bit int, frameSeq uint64, code Code) {
	p := s.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return 0, 0, ErrDisconnected
	}
	wantsFrames := h.Flags.effective()&WantsFrames != 0
	switch {
	case !wantsFrames:
		s.hold(nil)
	case s.ring != p.ring:
		return 0, 0, ErrBusy // a new generation began within the handshake: what HELLO_RESP said no longer holds
	}
	if s.bit = p.table.join(s.pid, h.Name, wantsFrames, p.frameSeq.Load); s.bit == 0 {
		return 0, 0, ErrTooMany
	}
	if p.dialect.eventFD {
		s.fd = p.bells.add(h.Flags.effective())
	}
	return s.bit, p.table.since[s.bit].Load(), OK
}

// bell implements seats.
func (s *session) bell() int { return s.fd }

// hold keeps the memory of a generation while its descriptors may still be sent; nil lets go. The caller holds p.mu.
func (s *session) hold(r *ring) {
	if s.ring != nil {
		s.ring.users--
		s.ring.release()
	}
	if s.ring = r; r != nil {
		r.users++
	}
}

// leave releases what the session holds.
func (s *session) leave() {
	p := s.p
	s.peer.c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sessions, s)
	s.hold(nil)
	if s.bit != 0 {
		p.table.leave(s.bit)
		s.bit = 0
	}
	if s.fd >= 0 {
		p.bells.remove(s.fd)
		s.fd = -1
	}
}

// end sends a last message and closes the connection; run then leaves.
func (s *session) end(last message) {
	s.p.mu.Lock()
	if s.bit != 0 {
		s.p.table.drain(s.bit)
	}
	maps := s.p.dialect.ipc && s.bit != 0 && s.ring != nil
	s.p.mu.Unlock()
	_ = s.peer.send(last, nil)
	if _, shutdown := last.(shutdownNotice); shutdown && maps {
		// The driver leaves open what happens when memory is freed that others have mapped by its handle: the subscriber closes the
		// connection when it has closed the handles. Until run has left, or for so long, the memory stays.
		if s.peer.c.CloseWrite() == nil {
			time.AfterFunc(handleTimeout, func() { s.peer.c.Close() })
			return
		}
	}
	s.peer.c.Close()
}

// drop ends the subscriber that holds bit with an ERROR. It does not wait for the message to be taken. This is for the frame
// ring, where a subscriber that owes an ACK for too long is dropped.
func (p *Publisher) drop(bit int, code Code, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.sessions {
		if s.bit == bit && !p.closing {
			p.table.drain(bit) // at once: whoever waits for this bit goes on
			p.wg.Go(func() { s.end(errorNotice{Code: code, Message: cut(why, maxErrorText)}) })
		}
	}
}
