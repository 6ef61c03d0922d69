package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

func place(t testing.TB) (dir, key string) {
	t.Helper()
	return testenv.Place(t)
}

func mustPublish(t testing.TB, dir, key string) *Publication {
	t.Helper()
	p, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{
		CodecID: 27, Slots: 32, DataSize: 64 << 10, Extradata: []byte("sps"),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(framering.ReasonNormal)) })
	return p
}

// feed publishes packets numbered n…m of which every fifth is a keyframe, n included when it divides.
func feed(t testing.TB, p *Publication, n, m int) {
	t.Helper()
	for i := n; i <= m; i++ {
		var flags packetring.Flags
		if i%5 == 0 {
			flags = packetring.FlagKey
		}
		_, err := p.Packet(packetring.Packet{PTS: int64(i), DTS: int64(i), Flags: flags, Data: binary.LittleEndian.AppendUint32(nil, uint32(i))})
		require.NoError(t, err)
	}
}

func mustSubscribe(t testing.TB, o SubscribeOptions) *Subscription {
	t.Helper()
	s, err := Subscribe(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// take reads one packet and checks its number.
func take(t testing.TB, s *Subscription, number int) packetring.Packet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	p, err := s.Next(ctx)
	require.NoError(t, err)
	require.EqualValues(t, number, binary.LittleEndian.Uint32(p.Data))
	require.EqualValues(t, number, p.PTS)
	return p
}

func TestSubscriptionStarts(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	feed(t, p, 1, 23)
	for name, c := range map[string]struct {
		start Start
		first int
	}{
		"default": {first: 20}, "live": {StartLive, 20}, "oldest": {StartOldest, 5},
		"at": {StartAt(time.Unix(0, 17)), 15}, "before all": {StartAt(time.Unix(0, 1)), 5},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key, Start: c.start, Name: name})
			for i := c.first; i <= 23; i++ {
				q := take(t, s, i)
				require.Equal(t, i%5 == 0, q.Flags&packetring.FlagKey != 0)
				require.Zero(t, q.Flags&packetring.FlagDiscontinuity)
			}
			require.EqualValues(t, 24-c.first, s.Stats().Read)
			require.Zero(t, s.Stats().Lost)
			require.Zero(t, s.Generation())
			i := s.Info()
			require.EqualValues(t, 27, i.CodecID)
			require.Equal(t, "sps", string(i.Extradata))
			testenv.Eventually(t, 5*time.Second, func() error {
				for _, l := range p.Control().Subscribers() {
					if l.Name == name && l.LastSeenSeq == 23 && l.LastAckNS > 0 {
						return nil
					}
				}
				return errors.New("the table does not show how far the reader is")
			})
		})
	}
}

// TestSubscriptionFollows: publishers end in every way and come back; nothing that was published is missed.
func TestSubscriptionFollows(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	feed(t, p, 5, 9)
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key})
	take(t, s, 5)
	for round := 1; round <= 5; round++ {
		feed(t, p, 10, 12) // left in the ring when its publisher ends
		require.NoError(t, p.Close(framering.ReasonUpgrade))
		p = mustPublish(t, dir, key)
		feed(t, p, 5, 9)
		for i := 6; i <= 12; i++ {
			q := take(t, s, i)
			require.Zero(t, q.Flags&packetring.FlagDiscontinuity, "packet %d of round %d", i, round)
		}
		q := take(t, s, 5)
		require.NotZero(t, q.Flags&packetring.FlagDiscontinuity)
		require.Equal(t, round, s.Generation())
		require.EqualValues(t, 1, q.Seq)
	}
	st := s.Stats()
	require.Zero(t, st.Lost)
	require.EqualValues(t, 1+5*8, st.Read)
	require.Equal(t, 5, st.Restarts)
}

func TestNoKey(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	other, otherKey := dir, key+"-other"
	_, err := Subscribe(t.Context(), SubscribeOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, ErrNoKey)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Contains(t, err.Error(), framering.SocketPath(dir, key))
	mustPublish(t, other, otherKey)
	_, err = Subscribe(t.Context(), SubscribeOptions{RuntimeDir: dir, Key: key, WaitForKey: 30 * time.Millisecond})
	require.ErrorIs(t, err, ErrNoKey)
	require.Contains(t, err.Error(), fmt.Sprintf("(published here: %s)", otherKey))
}

// That the next publisher is waited for is said of who does wait: one that is stopped soon after its publisher has ended does not.
func TestSubscriptionTellsThatItWaits(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	feed(t, p, 0, 9)
	var logs [2]testenv.Log
	var subs [2]*Subscription
	for i := range subs {
		s, err := Subscribe(t.Context(), SubscribeOptions{RuntimeDir: dir, Key: key, Logger: slog.New(slog.NewTextHandler(&logs[i], nil))})
		require.NoError(t, err)
		defer s.Close()
		_, err = s.Next(t.Context())
		require.NoError(t, err)
		subs[i] = s
	}
	require.NoError(t, p.Close(framering.ReasonNormal))
	for i, patience := range []time.Duration{tellWaiting / 4, tellWaiting * 3 / 2} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var err error
		for err == nil {
			_, err = subs[i].Next(ctx)
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Contains(t, logs[i].String(), "the publisher of "+key+" has ended")
	}
	require.NotContains(t, logs[0].String(), "waiting")
	require.Contains(t, logs[1].String(), "waiting for the next publisher of "+key)
}
