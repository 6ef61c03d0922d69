package framering

import (
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// Every version that a subscriber may say against every version that a publisher may be.
func TestVersionMatrix(t *testing.T) {
	ringless := bothRings()
	ringless.o.packetPath = ""
	for _, c := range []struct {
		publisher *dialect
		seats     *fakeSeats
		version   uint32
		flags     Flags
		result    Code
		actual    uint32 // proto_version_actual
		packets   bool
	}{
		{publisher: &protocol1, version: 0, result: ErrProtocol},
		{publisher: &protocol1, version: 1, actual: 1},
		{publisher: &protocol1, version: 2, result: ErrProtocol},
		{publisher: &protocol1, version: 2, flags: WantsPackets, result: ErrProtocol},
		{publisher: &protocol1, version: 3, result: ErrProtocol},
		{publisher: &protocol1, version: 4, result: ErrProtocol},
		{publisher: &protocol1, version: 5, result: ErrProtocol},

		{publisher: &protocol2, version: 0, result: ErrProtocol},
		{publisher: &protocol2, version: 1, actual: 2},
		{publisher: &protocol2, version: 2, actual: 2, packets: true},
		{publisher: &protocol2, version: 2, flags: WantsPackets, actual: 2, packets: true},
		{publisher: &protocol2, version: 3, result: ErrProtocol},
		{publisher: &protocol2, version: 4, result: ErrProtocol},
		{publisher: &protocol2, version: 5, result: ErrProtocol},

		// Without a packet ring it is one of protocol 1 to who asks for frames.
		{publisher: &protocol2, seats: ringless, version: 1, actual: 1},
		{publisher: &protocol2, seats: ringless, version: 2, actual: 1},
		{publisher: &protocol2, seats: ringless, version: 2, flags: WantsPackets, result: ErrNoPacketRing},
		{publisher: &protocol2, seats: ringless, version: 4, result: ErrProtocol},

		{publisher: &protocol4, version: 1, result: ErrProtocol},
		{publisher: &protocol4, version: 2, result: ErrProtocol},
		{publisher: &protocol4, version: 2, flags: WantsPackets, result: ErrProtocol},
		{publisher: &protocol4, version: 3, result: ErrProtocol},
		{publisher: &protocol4, version: 4, actual: 4, packets: true},
		{publisher: &protocol4, version: 5, result: ErrProtocol},
		{publisher: &protocol4, seats: ringless, version: 4, flags: WantsPackets, result: ErrNotFound},
	} {
		t.Run(fmt.Sprintf("%d to %d flags %d", c.version, c.publisher.version, c.flags), func(t *testing.T) {
			seats := c.seats
			if seats == nil {
				seats = bothRings()
			}
			if c.publisher == &protocol1 {
				seats.o.packetPath = "" // EnablePackets does nothing there
			}
			pub := &publisherSide{dialect: c.publisher, seats: seats}
			out := pub.handle(inboundOf(t, outbound{msg: helloRequest{Version: c.version, Flags: c.flags}}))
			require.Len(t, out, 1)
			resp := out[0].msg.(helloResponse)
			require.Equal(t, c.result, resp.Result)
			require.Equal(t, c.actual, resp.Version)
			require.Equal(t, c.packets, resp.PacketPath != "")
			require.Equal(t, c.result == OK, pub.state == wantSubscribe)
			if c.result == ErrProtocol {
				require.ErrorContains(t, pub.err, fmt.Sprintf("subscriber speaks protocol %d, this publisher %d", c.version, c.publisher.version))
			}
		})
	}
}

// Subscribers in every version against publishers in every version, over sockets: who does not fit is refused and learns what the other
// side speaks, and who asks in no version of its own takes the publisher's.
func TestVersionsOverSockets(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	for _, publisher := range []uint32{1, 2, 4} {
		for _, packets := range []bool{false, true} {
			dir, key := place(t)
			p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key, Protocol: publisher}, packets)
			announced := publisher
			if publisher == 2 && !packets {
				announced = 1
			}
			require.Equal(t, announced, p.Header().Version)
			for _, version := range []uint32{0, 1, 2, 4} {
				name := fmt.Sprintf("%d to %d, packets %v", version, publisher, packets)
				s, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets, Protocol: version})
				fits := packets && publisher != 1 && (version == 0 || version == publisher)
				if fits {
					require.NoError(t, err, name)
					require.Equal(t, publisher, s.Protocol)
					require.EqualValues(t, 41, s.InitialPacketSeq)
					require.NoError(t, s.Close())
					continue
				}
				require.Error(t, err, name)
				switch {
				case version == 1 || version == 0 && announced == 1:
					require.ErrorIs(t, err, ErrNoPacketRing, name)
				case version == 2 && publisher == 2:
					require.ErrorIs(t, err, ErrNoPacketRing, name)
				case version == 0 || version == publisher: // 4
					require.ErrorIs(t, err, ErrNotFound, name)
				default:
					require.ErrorIs(t, err, ErrProtocol, name)
					require.ErrorContains(t, err, fmt.Sprintf("the publisher speaks protocol %d", announced), name)
				}
			}
			require.NoError(t, p.Close(ReasonNormal))
		}
	}
}

// A frame SHM of protocol 3 or 5: the subscriber names it without a handshake.
func TestVersionsNobodySpeaks(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key, Protocol: 2}, true)
	for _, version := range []uint32{3, 5} {
		p.ring.block.hdr.protoVersion.Store(version)
		_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets})
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, fmt.Sprintf("the publisher speaks protocol %d", version))
	}
	p.ring.block.hdr.protoVersion.Store(2)
}

// The packet ring appears after the first subscribers: the header tells from then on.
func TestPacketRingAppears(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key, Protocol: 2}, false)
	_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets})
	require.ErrorIs(t, err, ErrNoPacketRing)
	p.EnablePackets(PacketInfo{Path: PacketShmName(key), CodecID: 27})
	s := subscribe(t, dir, key, WantsPackets)
	require.EqualValues(t, 2, s.Protocol)
	require.Equal(t, PacketShmName(key), s.PacketPath)
}

// EVENT_FD: each publish is one ring for who wants packets, none for others, and nothing is left open.
func TestEventFDRings(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key := place(t)
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key, Protocol: 2}, true)
	var subs []*Subscriber
	for range 3 {
		s := subscribe(t, dir, key, WantsPackets)
		testenv.Eventually(t, 10*time.Second, func() error {
			if s.PacketBell() == nil {
				return fmt.Errorf("no EVENT_FD yet")
			}
			return nil
		})
		<-s.PacketBell() // the one that hanging it gives
		subs = append(subs, s)
	}
	for i := range 50 {
		p.PacketPublished()
		for _, s := range subs {
			<-s.PacketBell()
			require.EqualValues(t, i+1, s.Rings())
		}
	}
	require.NoError(t, subs[0].Close())
	require.Nil(t, subs[0].PacketBell())
	testenv.Eventually(t, 10*time.Second, func() error {
		p.bells.mu.RLock()
		defer p.bells.mu.RUnlock()
		if len(p.bells.list) != 2 {
			return fmt.Errorf("%d bells", len(p.bells.list))
		}
		return nil
	})
	p.bells.ring(WantsFrames) // nobody's
	p.PacketPublished()
	<-subs[1].PacketBell()
	require.EqualValues(t, 51, subs[1].Rings())
	require.Zero(t, testing.AllocsPerRun(100, p.PacketPublished))
}

// A hostile publisher's EVENT_FD: what is no eventfd, none, or too many.
func TestHostileEventFD(t *testing.T) {
	testenv.CheckLeaks(t)
	null := func() int {
		f, err := os.Open("/dev/null")
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return int(f.Fd())
	}
	for n := range 3 {
		sub := &subscriberSide{dialect: &protocol1, state: subscriberReady}
		in := inboundOf(t, outbound{msg: eventFD{1}})
		for range n {
			in.fds = append(in.fds, null())
		}
		sub.handle(&in)
		if n == 1 {
			require.NoError(t, sub.err)
			require.Len(t, sub.bells, 1)
			var d doorbell
			d.init()
			fd, err := shm.NewEventFD() // the number is closed by hang, and must not be the file's
			require.NoError(t, err)
			closeFDs([]int{fd})
			require.Error(t, d.hang(fd))
			require.False(t, d.rung.Load())
			continue
		}
		require.ErrorIs(t, sub.err, ErrProtocol)
	}
	sub := &subscriberSide{dialect: &protocol4, state: subscriberReady}
	in := inboundOf(t, outbound{msg: eventFD{1}})
	require.Empty(t, sub.handle(&in))
	require.NoError(t, sub.err)
}

// A publisher of another implementation, byte by byte from the document: relative paths, a SUBSCRIBE_RESP of 24 bytes,
// EVENT_FD behind it, ERROR at the end.
func TestForeignLegacyPublisher(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key := place(t)
	foreignShm(t, key, MagicLegacy, 2, uint64(os.Getpid()))
	fd, err := shm.NewEventFD()
	require.NoError(t, err)
	defer closeFDs([]int{fd})
	heard := make(chan []byte, 1)
	done := foreignSocket(t, dir, key, func(c *net.UnixConn) {
		b := make([]byte, 200)
		n, _ := c.Read(b)
		heard <- append([]byte(nil), b[:n]...)
		resp, _ := appendMessage(nil, helloResponse{
			Version: 2, ShmPath: ShmName(key), PacketPath: PacketShmName(key), CodecID: 173, InitialPacketSeq: 9,
		}, &protocol2)
		_, _ = c.Write(resp)
		_, _ = c.Read(b)
		_, _ = c.Write(unhex(t, `04 00 00 00  18 00 00 00  00 00 00 00  05 00 00 00  78 56 34 12 `+zeros12))
		_ = shm.SendFDs(c, unhex(t, `20 00 00 00  10 00 00 00  01 00 00 00 `+zeros12), []int{fd})
		_, _ = c.Read(b) // until the subscriber has had its rings
		_, _ = c.Write(unhex(t, `FE 00 00 00  16 00 00 00  F3 FF FF FF  02 00 00 00  6E 6F `+zeros12))
	})
	s, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Name: "cam1", Flags: WantsPackets, CUDADevice: 3})
	require.NoError(t, err)
	require.Equal(t, unhex(t, legacyCases[1].bytes), <-heard)
	require.EqualValues(t, 2, s.Protocol)
	require.EqualValues(t, 0x12345678, s.InitialSeq)
	require.EqualValues(t, 9, s.InitialPacketSeq)
	require.EqualValues(t, 173, s.CodecID)
	testenv.Eventually(t, 10*time.Second, func() error {
		if s.PacketBell() == nil {
			return fmt.Errorf("no EVENT_FD yet")
		}
		return nil
	})
	<-s.PacketBell()
	for i := range 20 {
		require.NoError(t, shm.RingEventFD(fd))
		<-s.PacketBell()
		require.EqualValues(t, i+1, s.Rings())
	}
	require.NoError(t, s.Ping())
	wait(t, s.Done(), "ERROR")
	require.ErrorIs(t, s.Err(), ErrInternal)
	require.NoError(t, s.Close())
	wait(t, done, "the publisher")
}
