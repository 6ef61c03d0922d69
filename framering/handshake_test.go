package framering

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

// memoryOf is frame memory of n descriptors that are never used as such.
type memoryOf []int

func (m memoryOf) FDs() []int          { return m }
func (m memoryOf) Granularity() uint64 { return 2 << 20 }

// fakeSeats hands out bits from a list.
type fakeSeats struct {
	o    offer
	bits []int
	seq  uint64
}

func (f *fakeSeats) offer() offer { return f.o }
func (f *fakeSeats) join(helloRequest) (int, uint64, Code) {
	if len(f.bits) == 0 {
		return 0, 0, ErrTooMany
	}
	b := f.bits[0]
	f.bits = f.bits[1:]
	return b, f.seq, OK
}

func (f *fakeSeats) bell() int { return -1 }

func bothRings() *fakeSeats {
	return &fakeSeats{
		o: offer{
			ringSize: 3, meta: nv12, shmPath: "/dev/shm/cuframes-cam1", memory: memoryOf{100, 101, 102},
			packetPath: "cuframes-cam1-packets", codecID: 27, initialSeq: 50,
		},
		bits: []int{7}, seq: 90,
	}
}

func packetsOnly() *fakeSeats {
	f := bothRings()
	f.o.ringSize, f.o.meta, f.o.memory = 0, FrameMeta{}, nil
	return f
}

// inboundOf frames a message as the peer's conn would hand it over.
func inboundOf(t testing.TB, o outbound) inbound {
	t.Helper()
	b, err := appendMessage(nil, o.msg, &protocol4)
	require.NoError(t, err)
	return inbound{typ: o.msg.msgType(), payload: b[frameHeaderSize:], fds: append([]int(nil), o.fds...)}
}

// talk runs both sides against each other, message by message, and returns the types that were sent in order.
func talk(t testing.TB, c *subscriberSide, p *publisherSide) (log []MsgType) {
	t.Helper()
	toP := []outbound{c.start()}
	for len(toP) > 0 {
		var toC []outbound
		for _, o := range toP {
			log = append(log, o.msg.msgType())
			toC = append(toC, p.handle(inboundOf(t, o))...)
		}
		toP = nil
		for _, o := range toC {
			log = append(log, o.msg.msgType())
			in := inboundOf(t, o)
			toP = append(toP, c.handle(&in)...)
		}
	}
	return log
}

func TestHandshake(t *testing.T) {
	whole := []MsgType{msgHelloReq, msgHelloResp, msgSubscribeReq, msgSubscribeResp, msgVMMFDs}
	refused := []MsgType{msgHelloReq, msgHelloResp}
	spent := bothRings()
	spent.bits = nil
	closing := bothRings()
	closing.o.shutDown = true
	noPackets := bothRings()
	noPackets.o.packetPath = ""
	for _, c := range []struct {
		name  string
		seats *fakeSeats
		hello helloRequest
		log   []MsgType
		fds   int
		err   error
	}{
		{name: "zero flags mean frames", seats: bothRings(), log: whole, fds: 3},
		{name: "frames", seats: bothRings(), hello: helloRequest{Flags: WantsFrames}, log: whole, fds: 3},
		{name: "packets", seats: bothRings(), hello: helloRequest{Flags: WantsPackets}, log: whole},
		{name: "both", seats: bothRings(), hello: helloRequest{Flags: WantsFrames | WantsPackets}, log: whole, fds: 3},
		{name: "strict order", seats: bothRings(), hello: helloRequest{Mode: StrictOrder}, log: whole, fds: 3},
		{name: "reserved flag bits", seats: bothRings(), hello: helloRequest{Flags: 0xFFFFFFFE}, log: whole},
		{name: "packets of a packet-only publisher", seats: packetsOnly(), hello: helloRequest{Flags: WantsPackets}, log: whole},
		{name: "frames of a packet-only publisher", seats: packetsOnly(), log: refused, err: ErrNotFound},
		{name: "both of a packet-only publisher", seats: packetsOnly(), hello: helloRequest{Flags: 3}, log: refused, err: ErrNotFound},
		{name: "no packet ring", seats: noPackets, hello: helloRequest{Flags: WantsPackets}, log: refused, err: ErrNotFound},
		{name: "unknown mode", seats: bothRings(), hello: helloRequest{Mode: 2}, log: refused, err: ErrInvalidArg},
		{name: "shutting down", seats: closing, log: refused, err: ErrDisconnected},
		{name: "no bit left", seats: spent, log: whole[:4], err: ErrTooMany},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := &subscriberSide{dialect: &protocol4, hello: c.hello}
			pub := &publisherSide{dialect: &protocol4, seats: c.seats}
			require.Equal(t, c.log, talk(t, sub, pub))
			if c.err != nil {
				require.Equal(t, subscriberClosed, sub.state)
				require.Equal(t, publisherClosed, pub.state)
				require.ErrorIs(t, sub.err, c.err)
				require.ErrorIs(t, pub.err, c.err)
				var remote *RemoteError
				require.True(t, errors.As(sub.err, &remote))
				return
			}
			require.Equal(t, subscriberReady, sub.state)
			require.Equal(t, publisherReady, pub.state)
			require.Equal(t, 7, sub.bit)
			require.EqualValues(t, 90, sub.initialSeq)
			require.Equal(t, "cuframes-cam1", sub.shmName)
			require.Equal(t, "cuframes-cam1-packets", sub.packetName)
			require.EqualValues(t, 27, sub.resp.CodecID)
			require.EqualValues(t, 50, sub.resp.InitialPacketSeq)
			require.Len(t, sub.fds, c.fds)
			if c.fds > 0 {
				require.Equal(t, vmmFDs{Count: 3, FrameSize: 4 << 20, Granularity: 2 << 20}, sub.vmm)
			}
		})
	}
}

// TestHandshakeVersions: the mismatch is refused whatever the other side speaks.
func TestHandshakeVersions(t *testing.T) {
	for _, version := range []uint32{0, 1, 2, 3, 5, 0xFFFFFFFF} {
		pub := &publisherSide{dialect: &protocol4, seats: bothRings()}
		out := pub.handle(inboundOf(t, outbound{msg: helloRequest{Version: version}}))
		require.Equal(t, []outbound{{msg: helloResponse{Result: ErrProtocol}}}, out)
		require.Equal(t, publisherClosed, pub.state)

		pub = &publisherSide{dialect: &protocol4, seats: bothRings()}
		pub.handle(inboundOf(t, outbound{msg: helloRequest{Version: 4}}))
		out = pub.handle(inboundOf(t, outbound{msg: subscribeRequest{Version: version}}))
		require.Equal(t, []outbound{{msg: subscribeResponse{Result: ErrProtocol}}}, out)
		require.Zero(t, pub.bit)

		sub := &subscriberSide{dialect: &protocol4}
		in := inboundOf(t, outbound{msg: helloResponse{Version: version, RingSize: 1, Meta: nv12, ShmPath: "cuframes-x"}})
		sub.handle(&in)
		require.ErrorIs(t, sub.err, ErrProtocol)
	}
}

// TestHandshakeOrder sends every message in every state: what does not belong there is answered with ERROR(PROTOCOL), the
// bit of a subscriber is given at most once, and after the end nothing happens.
func TestHandshakeOrder(t *testing.T) {
	publisherStates := map[publisherState][]message{
		wantHello:      nil,
		wantSubscribe:  {helloRequest{Version: 4}},
		publisherReady: {helloRequest{Version: 4}, subscribeRequest{4}},
	}
	allowed := map[publisherState]map[MsgType]bool{
		wantHello:      {msgHelloReq: true, msgPing: true, msgError: true},
		wantSubscribe:  {msgSubscribeReq: true, msgPing: true, msgError: true},
		publisherReady: {msgUnsubscribe: true, msgPing: true, msgPong: true, msgError: true},
	}
	all := []message{
		helloRequest{Version: 4}, helloResponse{ShmPath: "cuframes-x", Version: 4}, subscribeRequest{4}, subscribeResponse{Bit: 1}, vmmFDs{},
		unsubscribe{}, shutdownNotice{}, ping{[]byte("hi")}, pong{}, errorNotice{Code: ErrInternal}, unknownMessage{},
	}
	for state, before := range publisherStates {
		for _, m := range all {
			pub := &publisherSide{dialect: &protocol4, seats: bothRings()}
			for _, b := range before {
				pub.handle(inboundOf(t, outbound{msg: b}))
			}
			require.Equal(t, state, pub.state)
			out := pub.handle(inboundOf(t, outbound{msg: m}))
			if allowed[state][m.msgType()] {
				for _, o := range out {
					require.NotEqual(t, msgError, o.msg.msgType(), "state %d, %s", state, m.msgType())
				}
				if m.msgType() == msgPing {
					require.Equal(t, []outbound{{msg: pong{[]byte("hi")}}}, out)
					require.Equal(t, state, pub.state)
				}
				continue
			}
			require.Len(t, out, 1, "state %d, %s", state, m.msgType())
			require.Equal(t, ErrProtocol, out[0].msg.(errorNotice).Code)
			require.Equal(t, publisherClosed, pub.state)
			require.ErrorIs(t, pub.err, ErrProtocol)
		}
	}

	resp := helloResponse{Version: 4, RingSize: 3, Meta: nv12, ShmPath: "cuframes-x"}
	subscriberStates := map[subscriberState][]message{
		wantHelloResp:     nil,
		wantSubscribeResp: {resp},
		wantVMMFDs:        {resp, subscribeResponse{Bit: 1}},
	}
	allowedC := map[subscriberState]map[MsgType]bool{
		wantHelloResp:     {msgHelloResp: true},
		wantSubscribeResp: {msgSubscribeResp: true},
		wantVMMFDs:        {msgVMMFDs: true},
	}
	for state, before := range subscriberStates {
		for _, m := range all {
			sub := &subscriberSide{dialect: &protocol4}
			for _, b := range before {
				in := inboundOf(t, outbound{msg: b})
				sub.handle(&in)
			}
			require.Equal(t, state, sub.state)
			in := inboundOf(t, outbound{msg: m})
			out := sub.handle(&in)
			switch m.(type) {
			case ping:
				require.Equal(t, []outbound{{msg: pong{[]byte("hi")}}}, out)
			case pong:
				require.Empty(t, out)
			case errorNotice:
				require.ErrorIs(t, sub.err, ErrInternal)
			case shutdownNotice:
				require.ErrorIs(t, sub.err, ErrDisconnected)
			default:
				if !allowedC[state][m.msgType()] {
					require.ErrorIs(t, sub.err, ErrProtocol, "state %d, %s", state, m.msgType())
					require.Equal(t, ErrProtocol, out[0].msg.(errorNotice).Code)
				}
			}
		}
	}
}

type unknownMessage struct{}

func (unknownMessage) msgType() MsgType                          { return 0x77 }
func (unknownMessage) appendPayload(b []byte, _ *dialect) []byte { return b }

// TestSubscriberDistrusts: a publisher whose fields contradict each other is refused.
func TestSubscriberDistrusts(t *testing.T) {
	good := helloResponse{Version: 4, RingSize: 3, Meta: nv12, ShmPath: "/dev/shm/cuframes-x"}
	vmm := vmmFDs{Count: 3, FrameSize: 4 << 20, Granularity: 2 << 20}
	for name, c := range map[string]struct {
		resp  func(*helloResponse)
		vmm   func(*vmmFDs)
		fds   int
		flags Flags
		fails bool
	}{
		"good":                           {fds: 3},
		"mapping size not rounded":       {fds: 3, vmm: func(v *vmmFDs) { v.FrameSize = nv12.FrameSize }},
		"packets, descriptors for all":   {fds: 3, flags: WantsPackets, resp: func(r *helloResponse) { r.PacketPath = "cuframes-x-packets" }},
		"packets, relative and absolute": {fds: 3, flags: 3, resp: func(r *helloResponse) { r.PacketPath = "/dev/shm/cuframes-x-packets" }},
		"path elsewhere":                 {fails: true, resp: func(r *helloResponse) { r.ShmPath = "/etc/passwd" }},
		"path that climbs":               {fails: true, resp: func(r *helloResponse) { r.ShmPath = "/dev/shm/cuframes-x/../../etc/passwd" }},
		"no path":                        {fails: true, resp: func(r *helloResponse) { r.ShmPath = "" }},
		"packet path elsewhere":          {fails: true, resp: func(r *helloResponse) { r.PacketPath = "../etc/cuframes-x" }},
		"no size":                        {fails: true, resp: func(r *helloResponse) { r.Meta.Width = 0 }},
		"no ring":                        {fails: true, resp: func(r *helloResponse) { r.RingSize = 0 }},
		"packets that are not there":     {fails: true, flags: WantsPackets},
		"fewer descriptors":              {fails: true, fds: 2},
		"more descriptors":               {fails: true, fds: 4},
		"count is not ring_size":         {fails: true, fds: 2, vmm: func(v *vmmFDs) { v.Count = 2 }},
		"frames smaller than the meta":   {fails: true, fds: 3, vmm: func(v *vmmFDs) { v.FrameSize = 1 << 20 }},
	} {
		t.Run(name, func(t *testing.T) {
			r, v := good, vmm
			if c.resp != nil {
				c.resp(&r)
			}
			if c.vmm != nil {
				c.vmm(&v)
			}
			sub := &subscriberSide{dialect: &protocol4, hello: helloRequest{Flags: c.flags}}
			fds := make([]int, c.fds)
			for i := range fds {
				fds[i] = 1000000 + i // of no open file
			}
			for _, o := range []outbound{{msg: r}, {msg: subscribeResponse{Bit: 1}}, {msg: v, fds: fds}} {
				in := inboundOf(t, o)
				sub.handle(&in)
			}
			if c.fails {
				require.Equal(t, subscriberClosed, sub.state)
				require.Error(t, sub.err)
				require.Empty(t, sub.fds)
			} else {
				require.NoError(t, sub.err)
				require.Equal(t, subscriberReady, sub.state)
			}
		})
	}
}

// scripted is a conn that plays what a publisher says.
type scripted struct {
	in   []inbound
	end  error
	sent []MsgType
	fail error // of send
}

func (s *scripted) receive() (inbound, error) {
	if len(s.in) == 0 {
		return inbound{}, s.end
	}
	in := s.in[0]
	s.in = s.in[1:]
	return in, nil
}

func (s *scripted) send(m message, _ []int) error {
	s.sent = append(s.sent, m.msgType())
	return s.fail
}

func TestSubscribeOver(t *testing.T) {
	resp := inboundOf(t, outbound{msg: helloResponse{Version: 4, ShmPath: "cuframes-x", PacketPath: "cuframes-x-packets"}})
	joined := inboundOf(t, outbound{msg: subscribeResponse{Bit: 3}})
	vmm := inboundOf(t, outbound{msg: vmmFDs{}})
	refusal := inboundOf(t, outbound{msg: errorNotice{Code: ErrBusy, Message: "later"}})
	for _, c := range []struct {
		name string
		conn scripted
		err  error
		sent []MsgType
	}{
		{name: "whole", conn: scripted{in: []inbound{resp, joined, vmm}}, sent: []MsgType{msgHelloReq, msgSubscribeReq}},
		{name: "end after HELLO_RESP", conn: scripted{in: []inbound{resp}, end: io.EOF}, err: ErrDisconnected},
		{name: "end before VMM_FDS", conn: scripted{in: []inbound{resp, joined}, end: io.EOF}, err: ErrDisconnected},
		{name: "garbage", conn: scripted{end: ErrProtocol}, err: ErrProtocol, sent: []MsgType{msgHelloReq, msgError}},
		{name: "refused before it could speak", conn: scripted{in: []inbound{refusal}, fail: io.ErrClosedPipe}, err: ErrBusy},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := subscribeOver(&c.conn, &subscriberSide{dialect: &protocol4, hello: helloRequest{Flags: WantsPackets}})
			if c.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, c.err)
			}
			if c.sent != nil {
				require.Equal(t, c.sent, c.conn.sent)
			}
		})
	}
}
