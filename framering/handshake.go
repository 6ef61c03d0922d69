package framering

import (
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// The two sides of the handshake (§4) as state machines that do no input or output: what came in goes to handle, what is to
// go out comes back. serve and dial in this file drive them over a conn; the tests drive them by hand.
//
//	subscriber             publisher
//	HELLO_REQ        ──▶
//	                 ◀──   HELLO_RESP        (result < 0: the end)
//	SUBSCRIBE_REQ    ──▶
//	                 ◀──   SUBSCRIBE_RESP    (result < 0: the end)
//	                 ◀──   VMM_FDS + fds     (protocol 4)
//	READY                  READY
//	                 ◀──   EVENT_FD + fd     (protocols 1 and 2; may be left out)
//
// PING is answered in every state and does not extend a deadline.

// conn carries messages of one peer.
type conn interface {
	// receive blocks for the next message. io.EOF says that the peer closed between two messages; an error that Is
	// ErrProtocol says that what came cannot be a message.
	receive() (inbound, error)
	// send writes one message, with descriptors that stay the caller's.
	send(m message, fds []int) error
}

// inbound is a received message. Its descriptors are closed by close unless somebody has taken them (and set fds to nil).
type inbound struct {
	typ     MsgType
	payload []byte // valid until the next receive
	fds     []int
}

func (in *inbound) close() {
	closeFDs(in.fds)
	in.fds = nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = syscall.Close(fd)
	}
}

// outbound is a message to send.
type outbound struct {
	msg message
	fds []int
}

// offer is what a publisher has at the moment of a handshake.
type offer struct {
	ringSize   int // 0 = no frames
	ownership  Ownership
	meta       FrameMeta
	shmPath    string
	memory     frameMemory // nil without frames
	packetPath string      // "" = no packet ring
	codecID    uint32
	initialSeq uint64 // of the packet ring: its last keyframe
	shutDown   bool
}

// seats gives out subscriber bits.
type seats interface {
	// offer says what there is now.
	offer() offer
	// join reserves a bit for the peer of this handshake, or answers ErrTooMany.
	join(h helloRequest) (bit int, frameSeq uint64, code Code)
	// bell returns the eventfd of who has joined, -1 = none.
	bell() int
}

type publisherState int

const (
	wantHello publisherState = iota
	wantSubscribe
	publisherReady
	publisherClosed // the peer is refused or gone; close the connection when what is to go out has gone
)

// publisherSide is the publisher's side for one peer.
type publisherSide struct {
	dialect *dialect
	seats   seats
	state   publisherState
	hello   helloRequest
	offer   offer // as told in HELLO_RESP
	bit     int   // reserved in seats when > 0
	err     error // why state is publisherClosed; nil after UNSUBSCRIBE
}

// handle takes one message and returns what to send.
func (s *publisherSide) handle(in inbound) []outbound {
	if in.typ == msgPing && s.state != publisherClosed {
		return []outbound{{msg: pong{append([]byte(nil), in.payload...)}}}
	}
	switch {
	case in.typ == msgPong && s.state == publisherReady:
		return nil
	case in.typ == msgUnsubscribe && s.state == publisherReady:
		s.state = publisherClosed
		return nil
	case in.typ == msgError && s.state != publisherClosed: // the peer gives up and says why
		s.state = publisherClosed
		m, err := parseError(in.payload)
		if err == nil {
			err = &RemoteError{m.Code, printable(m.Message)}
		}
		s.err = err
		return nil
	case in.typ == msgHelloReq && s.state == wantHello:
		return s.handleHello(in.payload)
	case in.typ == msgSubscribeReq && s.state == wantSubscribe:
		return s.handleSubscribe(in.payload)
	}
	return s.fail(fmt.Errorf("%s out of order: %w", in.typ, ErrProtocol))
}

// fail is the answer to a peer that broke the protocol: ERROR(PROTOCOL), then the end.
func (s *publisherSide) fail(err error) []outbound {
	s.state, s.err = publisherClosed, err
	return []outbound{{msg: newErrorNotice(ErrProtocol, err)}}
}

func (s *publisherSide) refuseHello(code Code, why string) []outbound {
	s.state, s.err = publisherClosed, fmt.Errorf("%s: %w", why, code)
	return []outbound{{msg: helloResponse{Result: code}}}
}

func (s *publisherSide) handleHello(payload []byte) []outbound {
	m, err := parseHelloRequest(payload, s.dialect)
	if err != nil {
		return s.fail(err)
	}
	if !s.dialect.servesVersion(m.Version) {
		return s.refuseHello(ErrProtocol, fmt.Sprintf("subscriber speaks protocol %d, this publisher %d", m.Version, s.dialect.version))
	}
	spoken := dialectFor(m.Version)
	if !spoken.subscribeFlags {
		m.Flags = 0 // reserved bytes
	}
	s.hello, s.offer = m, s.seats.offer()
	o, flags := &s.offer, m.Flags.effective()
	switch {
	case o.shutDown:
		return s.refuseHello(ErrDisconnected, "publisher is shutting down")
	case m.Mode > StrictOrder:
		return s.refuseHello(ErrInvalidArg, fmt.Sprintf("mode %d", m.Mode))
	case flags&WantsFrames != 0 && o.ringSize == 0:
		return s.refuseHello(ErrNotFound, "subscriber wants frames, there are none")
	case flags&WantsPackets != 0 && o.packetPath == "":
		return s.refuseHello(s.dialect.noPackets, "subscriber wants packets, there are none")
	}
	s.state = wantSubscribe
	resp := helloResponse{
		Version: s.dialect.announced(o.packetPath != ""), RingSize: uint32(o.ringSize), Ownership: uint32(o.ownership), Meta: o.meta,
		ShmPath: o.shmPath,
	}
	if spoken.subscribeFlags { // to others the packet ring is not shown
		resp.PacketPath, resp.CodecID, resp.InitialPacketSeq = o.packetPath, o.codecID, o.initialSeq
	}
	return []outbound{{msg: resp}}
}

func (s *publisherSide) handleSubscribe(payload []byte) []outbound {
	m, err := parseSubscribeRequest(payload)
	if err != nil {
		return s.fail(err)
	}
	refuse := func(code Code, why string) []outbound {
		s.state, s.err = publisherClosed, fmt.Errorf("%s: %w", why, code)
		return []outbound{{msg: subscribeResponse{Result: code}}}
	}
	if m.Version != s.hello.Version {
		return refuse(ErrProtocol, fmt.Sprintf("SUBSCRIBE_REQ of protocol %d after HELLO_REQ of %d", m.Version, s.hello.Version))
	}
	bit, seq, code := s.seats.join(s.hello)
	if code != OK {
		return refuse(code, "no bit for the subscriber")
	}
	s.bit, s.state = bit, publisherReady
	out := []outbound{{msg: subscribeResponse{Bit: uint32(bit), InitialSeq: seq}}}
	if fd := s.seats.bell(); s.dialect.eventFD && fd >= 0 {
		out = append(out, outbound{msg: eventFD{wakeOnSeq}, fds: []int{fd}})
	}
	if !s.dialect.vmmFDs {
		return out
	}
	if !s.wantsFrames() {
		return append(out, outbound{msg: vmmFDs{}})
	}
	g := s.offer.memory.Granularity()
	return append(out, outbound{
		msg: vmmFDs{Count: uint32(s.offer.ringSize), FrameSize: roundUp(s.offer.meta.FrameSize, g), Granularity: g},
		fds: s.offer.memory.FDs(),
	})
}

// wantsFrames is true when the subscriber takes frames and so owes ACKs.
func (s *publisherSide) wantsFrames() bool { return s.hello.Flags.effective()&WantsFrames != 0 }

// roundUp rounds n up to a multiple of the power of two g.
func roundUp(n, g uint64) uint64 {
	if g == 0 {
		return n
	}
	return (n + g - 1) &^ (g - 1)
}

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
