package framering

import (
	"errors"
	"fmt"
	"io"

	"github.com/cfpipe/cfpipe/internal/shm"
)

type subscriberState int

const (
	wantHelloResp subscriberState = iota
	wantSubscribeResp
	wantVMMFDs
	subscriberReady
	subscriberClosed
)

// subscriberSide is the subscriber's side.
type subscriberSide struct {
	dialect *dialect
	hello   helloRequest
	state   subscriberState
	err     error // why state is subscriberClosed

	// What the publisher told; whole in subscriberReady.
	resp       helloResponse
	shmName    string // of resp.ShmPath, checked: a name directly in /dev/shm
	packetName string // of resp.PacketPath, checked; "" = no packet ring
	bit        int
	initialSeq uint64
	vmm        vmmFDs
	fds        []int // of the frame slots, owned by who holds this
	bells      []int // of EVENT_FD, owned by who holds this
}

// start returns the first message.
func (s *subscriberSide) start() outbound {
	s.hello.Version = s.dialect.version
	return outbound{msg: s.hello}
}

// handle takes one message and returns what to send. It takes the descriptors of VMM_FDS out of in.
func (s *subscriberSide) handle(in *inbound) []outbound {
	switch {
	case s.state == subscriberClosed:
		return nil
	case in.typ == msgPing:
		return []outbound{{msg: pong{append([]byte(nil), in.payload...)}}}
	case in.typ == msgPong:
		return nil
	case in.typ == msgError:
		m, err := parseError(in.payload)
		if err != nil {
			return s.fail(err)
		}
		return s.end(&RemoteError{m.Code, printable(m.Message)})
	case in.typ == msgShutdown:
		m, err := parseShutdown(in.payload)
		if err != nil {
			return s.fail(err)
		}
		return s.end(&ShutdownError{m.Reason})
	case in.typ == msgHelloResp && s.state == wantHelloResp:
		return s.handleHello(in.payload)
	case in.typ == msgSubscribeResp && s.state == wantSubscribeResp:
		return s.handleSubscribe(in.payload)
	case in.typ == msgVMMFDs && s.state == wantVMMFDs:
		return s.handleVMMFDs(in)
	case in.typ == msgEventFD && s.state == subscriberReady:
		return s.handleEventFD(in)
	}
	return s.fail(fmt.Errorf("%s out of order: %w", in.typ, ErrProtocol))
}

func (s *subscriberSide) end(err error) []outbound {
	s.state, s.err = subscriberClosed, err
	return nil
}

func (s *subscriberSide) fail(err error) []outbound {
	s.end(err)
	return []outbound{{msg: newErrorNotice(ErrProtocol, err)}}
}

func (s *subscriberSide) handleHello(payload []byte) []outbound {
	m, err := parseHelloResponse(payload, s.dialect)
	if err != nil {
		return s.fail(err)
	}
	if m.Result < 0 {
		return s.end(&RemoteError{Code: m.Result})
	}
	if !s.dialect.answersVersion(m.Version) {
		return s.fail(fmt.Errorf("publisher speaks protocol %d, this subscriber %d: %w", m.Version, s.dialect.version, ErrProtocol))
	}
	flags := s.hello.Flags.effective()
	if s.shmName, err = shmName(m.ShmPath); err != nil && (flags&WantsFrames != 0 || m.ShmPath != "") {
		return s.fail(fmt.Errorf("parse HELLO_RESP: shm_path: %w", err))
	}
	if m.PacketPath != "" {
		if s.packetName, err = shmName(m.PacketPath); err != nil {
			return s.fail(fmt.Errorf("parse HELLO_RESP: packet_shm_path: %w", err))
		}
	} else if flags&WantsPackets != 0 { // a publisher that knows no packets ignores the flag
		return s.end(fmt.Errorf("publisher has no packet ring: %w", s.dialect.noPackets))
	}
	if flags&WantsFrames != 0 {
		if m.RingSize == 0 {
			return s.end(fmt.Errorf("publisher has no frames: %w", ErrNotFound))
		}
		if err := m.Meta.Check(); err != nil {
			return s.fail(fmt.Errorf("parse HELLO_RESP: %w: %w", err, ErrProtocol))
		}
		if o := Ownership(m.Ownership); o > OwnershipExternal || !s.dialect.ipc && o != OwnershipLibrary {
			return s.fail(malformed(msgHelloResp, "ownership_mode %d", m.Ownership))
		}
	}
	s.resp, s.state = m, wantSubscribeResp
	return []outbound{{msg: subscribeRequest{s.dialect.version}}}
}

func (s *subscriberSide) handleSubscribe(payload []byte) []outbound {
	m, err := parseSubscribeResponse(payload, s.dialect)
	if err != nil {
		return s.fail(err)
	}
	if m.Result < 0 {
		return s.end(&RemoteError{Code: m.Result})
	}
	s.bit, s.initialSeq = int(m.Bit), m.InitialSeq
	if s.state = subscriberReady; s.dialect.vmmFDs {
		s.state = wantVMMFDs
	}
	return nil
}

func (s *subscriberSide) handleVMMFDs(in *inbound) []outbound {
	m, err := parseVMMFDs(in.payload)
	if err != nil {
		return s.fail(err)
	}
	if int(m.Count) != len(in.fds) {
		return s.fail(malformed(msgVMMFDs, "fd_count %d, %d descriptors came", m.Count, len(in.fds)))
	}
	if s.hello.Flags.effective()&WantsFrames == 0 {
		s.state = subscriberReady // descriptors that nobody asked for are closed with in
		return nil
	}
	if m.Count != s.resp.RingSize {
		return s.fail(malformed(msgVMMFDs, "fd_count %d, ring_size is %d", m.Count, s.resp.RingSize))
	}
	if roundUp(m.FrameSize, m.Granularity) < s.resp.Meta.FrameSize {
		return s.fail(malformed(msgVMMFDs, "mappings of %d bytes for frames of %d", m.FrameSize, s.resp.Meta.FrameSize))
	}
	s.vmm, s.fds, s.state = m, in.fds, subscriberReady
	in.fds = nil
	return nil
}

// handleEventFD takes the eventfd of protocols 1 and 2. In protocol 4 the message is out of use and passed over.
func (s *subscriberSide) handleEventFD(in *inbound) []outbound {
	if !s.dialect.eventFD {
		return nil
	}
	m, err := parseEventFD(in.payload)
	if err != nil {
		return s.fail(err)
	}
	if len(in.fds) != 1 {
		return s.fail(malformed(msgEventFD, "%d descriptors came", len(in.fds)))
	}
	if m.Purpose == wakeOnSeq {
		s.bells, in.fds = append(s.bells, in.fds...), nil
	}
	return nil
}

// shmName checks a path that a publisher named and returns the file's name directly in /dev/shm. Both forms are taken,
// absolute and relative to /dev/shm; anything else could make a reader open files that are no rings.
func shmName(path string) (string, error) {
	name, err := shm.BaseName(path)
	if err != nil || printable(name) != name { // names are printed
		return "", fmt.Errorf("%q is no cuframes file directly in /dev/shm: %w", cut(printable(path), 300), ErrProtocol)
	}
	return name, nil
}

// subscribeOver runs the subscriber's side until it is ready. On error nothing is left open; the connection is the caller's.
func subscribeOver(c conn, s *subscriberSide) error {
	out := []outbound{s.start()}
	for {
		var sendErr error
		for _, o := range out {
			if err := c.send(o.msg, o.fds); err != nil && sendErr == nil {
				sendErr = err // read on: the other side may have said why it closed
			}
		}
		switch s.state {
		case subscriberReady:
			return nil
		case subscriberClosed:
			return s.err
		}
		in, err := c.receive()
		if err != nil {
			if errors.Is(err, ErrProtocol) {
				_ = c.send(newErrorNotice(ErrProtocol, err), nil)
			} else if errors.Is(err, io.EOF) {
				err = fmt.Errorf("publisher closed the connection in the handshake: %w", ErrDisconnected)
			}
			return errors.Join(err, sendErr)
		}
		out = s.handle(&in)
		in.close()
	}
}
