package framering

import "fmt"

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
