package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// startBridge runs a bridge beside the test and returns when NewKey is there; stop ends it.
func startBridge(t *testing.T, o BridgeOptions) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{}, 10)
	ended := make(chan error, 1)
	o.Ready = func() { ready <- struct{}{} }
	go func() { ended <- Bridge(ctx, o) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	return func() {
		cancel()
		require.NoError(t, <-ended)
	}
}

// Packets through 4 → 2 → 4 are byte-equal with their times and flags, late extradata arrives, and a new stream is followed.
func TestBridgePackets(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	config := packetring.Config{CodecID: 27, Slots: 512, DataSize: 1 << 20}
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: config})
	require.NoError(t, err)
	put := func(i int) {
		_, err := pub.Packet(bridgePacket(i))
		require.NoError(t, err)
	}
	put(0)
	stopA := startBridge(t, BridgeOptions{RuntimeDir: dir, Key: key, NewKey: key + "-b", Protocol: 2})
	stopB := startBridge(t, BridgeOptions{RuntimeDir: dir, Key: key + "-b", NewKey: key + "-c"})
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key + "-c", Start: StartOldest})
	require.NoError(t, pub.SetExtradata([]byte("sets")))
	for i := 1; i < 200; i++ {
		put(i)
	}
	require.NoError(t, checkBridged(t.Context(), s, 200))
	require.EqualValues(t, 4, s.Info().Protocol)
	require.Equal(t, []byte("sets"), s.Info().Extradata)
	require.Zero(t, s.Stats().Lost)

	// Another stream under the same key: another publication, which readers follow.
	require.NoError(t, pub.Close(framering.ReasonUpgrade))
	config.CodecID, config.Extradata = 173, []byte("other sets")
	pub, err = Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: config})
	require.NoError(t, err)
	put(0)
	p, err := s.Next(t.Context())
	require.NoError(t, err)
	require.NotZero(t, p.Flags&packetring.FlagDiscontinuity)
	require.EqualValues(t, 173, s.Info().CodecID)
	require.Equal(t, []byte("other sets"), s.Info().Extradata)
	require.Equal(t, bridgePacket(0).Data, p.Data)
	require.Equal(t, bridgePacket(0).PTS, p.PTS)
	require.NoError(t, s.Close())
	stopB()
	stopA()
	require.NoError(t, pub.Close(framering.ReasonNormal))
}

// Frames in host memory from 4 to 4; to protocol 2 they need a GPU, and the error says so.
func TestBridgeFrames(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	p, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	meta, err := framering.MetaOf(framering.NV12, 322, 122)
	require.NoError(t, err)
	w, err := p.StartFrames(framering.FrameOptions{Meta: meta, Memory: cudavmm.Host{}, Policy: framering.StrictWait, AckTimeout: 20 * time.Second})
	require.NoError(t, err)
	require.NoError(t, p.Serve())
	fill := func(b []byte, n uint64) {
		r := rand.NewPCG(n, 3)
		for i := range b {
			if i%8 == 0 {
				n = r.Uint64()
			}
			b[i] = byte(n >> (8 * (i % 8)))
		}
	}
	var seq uint64
	put := func() {
		slot, err := w.Acquire(t.Context())
		require.NoError(t, err)
		fill(slot.Buffer.Bytes()[:meta.FrameSize], slot.Seq)
		seq, err = w.Publish(int64(slot.Seq) * 1000)
		require.NoError(t, err)
	}
	stop := startBridge(t, BridgeOptions{RuntimeDir: dir, Key: key, NewKey: key + "-b", Policy: framering.StrictWait, AckTimeout: 20 * time.Second})
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := len(p.Subscribers()); n != 1 {
			return fmt.Errorf("%d subscribers", n)
		}
		return nil
	})
	put() // the bridge's ring begins with the first frame
	s, err := SubscribeFrames(t.Context(), FrameSubscribeOptions{RuntimeDir: dir, Key: key + "-b", Mode: framering.StrictOrder, Newest: true, WaitForKey: 20 * time.Second})
	require.NoError(t, err)
	want := make([]byte, meta.FrameSize)
	for range 50 {
		f, err := s.Next(t.Context())
		require.NoError(t, err)
		fill(want, uint64(f.PTS/1000))
		require.Equal(t, want, f.Buffer.Bytes()[:meta.FrameSize])
		require.EqualValues(t, seq*1000, f.PTS)
		require.NoError(t, f.Release())
		put()
	}
	require.NoError(t, s.Close())
	stop()
	if _, err := cudavmm.Open(); errors.Is(err, cudavmm.ErrUnavailable) {
		err := Bridge(t.Context(), BridgeOptions{RuntimeDir: dir, Key: key, NewKey: key + "-c", Protocol: 2})
		require.ErrorIs(t, err, cudavmm.ErrUnavailable)
	}
	require.NoError(t, p.Close(framering.ReasonNormal))
}

// EVENT_FD wakes a reader of packets once for each packet, and no wait runs out.
func TestEventFDWakesPackets(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Protocol: 2, Packets: packetring.Config{CodecID: 27, Slots: 32, DataSize: 64 << 10}})
	require.NoError(t, err)
	feed(t, pub, 0, 0)
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key})
	require.EqualValues(t, 2, s.Info().Protocol)
	take(t, s, 0)
	control := s.attached().control
	testenv.Eventually(t, 10*time.Second, func() error {
		if control.PacketBell() == nil {
			return fmt.Errorf("no EVENT_FD yet")
		}
		return nil
	})
	before := control.Rings()
	for i := 1; i <= 100; i++ {
		feed(t, pub, i, i)
		take(t, s, i)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if n := control.Rings() - before; n == 0 || n > 100 {
			return fmt.Errorf("%d wake-ups for 100 packets", n)
		}
		return nil
	})
	require.NoError(t, s.Close())
	require.NoError(t, pub.Close(framering.ReasonNormal))
}
