package pipeline

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// TestPublisherProcess is no test: it is the publisher that TestSubscriptionFollowsKilledPublishers kills. It publishes
// numbered packets without pause.
func TestPublisherProcess(t *testing.T) {
	dir, key := os.Getenv("PUBLISH_DIR"), os.Getenv("PUBLISH_KEY")
	if key == "" {
		t.Skip("runs as a child process of another test")
	}
	p := mustPublish(t, dir, key)
	data := make([]byte, 4)
	for i := uint32(1); ; i++ {
		binary.LittleEndian.PutUint32(data, i)
		var flags packetring.Flags
		if i%5 == 1 {
			flags = packetring.FlagKey
		}
		if _, err := p.Packet(packetring.Packet{PTS: int64(i), DTS: int64(i), Flags: flags, Data: data}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Microsecond) // the pace of the stream
	}
}

func TestSubscriptionFollowsKilledPublishers(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	start := func() *testenv.Process {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPublisherProcess$")
		cmd.Env = append(os.Environ(), "PUBLISH_DIR="+dir, "PUBLISH_KEY="+key)
		return testenv.StartCmd(t, cmd)
	}
	const rounds = 6
	child := start()
	s, err := Subscribe(t.Context(), SubscribeOptions{RuntimeDir: dir, Key: key, WaitForKey: 20 * time.Second})
	require.NoError(t, err)
	defer s.Close()

	var last, newest uint64
	for round := range rounds {
		// Read a while, then kill in the middle of it and read on.
		for n := 0; s.Generation() == round; n++ {
			p, err := s.Next(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, p.Seq, binary.LittleEndian.Uint32(p.Data))
			if s.Generation() != round { // the first one of the next publisher
				require.EqualValues(t, newest, last, "what the dead one had published was read to the end")
				require.NotZero(t, p.Flags&packetring.FlagDiscontinuity)
				require.NotZero(t, p.Flags&packetring.FlagKey)
				last = p.Seq
				break
			}
			if last != 0 && p.Flags&packetring.FlagDiscontinuity == 0 {
				require.Equal(t, last+1, p.Seq)
			}
			last = p.Seq
			if n == 100 {
				child.Kill()
				snapshot, err := packetring.Inspect(framering.PacketShmName(key))
				require.NoError(t, err)
				require.False(t, snapshot.ShutDown)
				newest = snapshot.GlobalSeq
				child = start()
			}
		}
	}
	require.Equal(t, rounds, s.Stats().Restarts)
}

func TestSubscriptionSilence(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key})
	for round := range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := s.Next(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		cancel()
		feed(t, p, 5*round, 5*round)
		take(t, s, 5*round)
	}
	require.Zero(t, s.Generation())
}

func TestSubscriptionNoFollow(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	feed(t, p, 5, 7)
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key, NoFollow: true})
	require.NoError(t, p.Close(framering.ReasonUpgrade))
	for i := 5; i <= 7; i++ {
		take(t, s, i)
	}
	for range 2 {
		_, err := s.Next(t.Context())
		require.ErrorIs(t, err, ErrEnded)
	}
	require.EqualValues(t, 3, s.Stats().Read)
	require.EqualValues(t, 27, s.Info().CodecID, "the last publisher's")
}

// TestSubscriptionClose ends Next in each of its waits, by Close and by the context.
func TestSubscriptionClose(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	for _, gone := range []bool{false, true} {
		for _, byContext := range []bool{false, true} {
			dir, key := place(t)
			p := mustPublish(t, dir, key)
			s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key})
			if gone {
				require.NoError(t, p.Close(framering.ReasonNormal))
			}
			ctx, cancel := context.WithCancel(t.Context())
			result := make(chan error, 1)
			go func() {
				_, err := s.Next(ctx)
				result <- err
			}()
			testenv.Eventually(t, 5*time.Second, func() error { // it waits: for a packet, or for a publisher
				s.parked.mu.Lock()
				defer s.parked.mu.Unlock()
				if !gone && s.parked.ctx == nil || gone && s.attached() != nil {
					return errors.New("does not wait yet")
				}
				return nil
			})
			if byContext {
				cancel()
				require.ErrorIs(t, <-result, context.Canceled)
			} else {
				require.NoError(t, s.Close())
				require.ErrorIs(t, <-result, os.ErrClosed)
				_, err := s.Next(ctx)
				require.ErrorIs(t, err, ErrSubscriptionClosed)
			}
			cancel()
		}
	}
}

// TestSubscriptionDropped: a living publisher ends the connection; reading goes on where it was.
func TestSubscriptionDropped(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	feed(t, p, 5, 20)
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key, Start: StartOldest})
	for i := 5; i <= 30; i++ {
		if i%7 == 0 {
			require.NoError(t, s.attached().control.Close())
		}
		if i > 20 {
			feed(t, p, i, i)
		}
		require.Zero(t, take(t, s, i).Flags&packetring.FlagDiscontinuity)
	}
	require.Zero(t, s.Generation())
	require.EqualValues(t, 26, s.Stats().Read)
	require.Zero(t, s.Stats().Lost)
}

func TestSubscriptionCountsLosses(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	feed(t, p, 5, 5)
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key})
	take(t, s, 5)
	feed(t, p, 6, 103) // 99 packets through 32 slots: 72…103 are left, 75 is the oldest keyframe
	q := take(t, s, 75)
	require.NotZero(t, q.Flags&packetring.FlagDiscontinuity)
	require.EqualValues(t, 69, s.Stats().Lost)
	for i := 76; i <= 103; i++ {
		take(t, s, i)
	}
	require.NoError(t, p.Close(framering.ReasonNormal))

	// And 101 packets of the next publisher before the reader looks: seq 70…101 are left, 75 (number 75+4) is no keyframe.
	p = mustPublish(t, dir, key)
	feed(t, p, 5, 105)
	q = take(t, s, 75)
	require.EqualValues(t, 71, q.Seq)
	require.EqualValues(t, 69+70, s.Stats().Lost, "exact over publishers")
	require.EqualValues(t, 1+29+1, s.Stats().Read)
	require.Equal(t, 1, s.Generation())
}

// TestSubscriptionWaits measures how soon a waiting subscriber sees a publisher.
func TestSubscriptionWaits(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	type result struct {
		s   *Subscription
		err error
		at  time.Time
	}
	results := make(chan result)
	go func() {
		s, err := Subscribe(t.Context(), SubscribeOptions{RuntimeDir: dir, Key: key, WaitForKey: -1})
		results <- result{s, err, time.Now()}
	}()
	time.Sleep(300 * time.Millisecond) // past the first pauses: what is measured is the watch
	p := mustPublish(t, dir, key)
	published := time.Now()
	r := <-results
	require.NoError(t, r.err)
	defer r.s.Close()
	t.Logf("subscribed %v after the publisher was ready", r.at.Sub(published))
	require.Less(t, r.at.Sub(published), 10*time.Second)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := Subscribe(ctx, SubscribeOptions{RuntimeDir: dir, Key: key + "-none", WaitForKey: -1})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = Subscribe(t.Context(), SubscribeOptions{RuntimeDir: dir + "/none", Key: key, WaitForKey: 50 * time.Millisecond})
	require.ErrorIs(t, err, ErrNoKey)
	_ = p
}

// TestSubscriptionSurvivesTruncation: a publisher that cuts its own file is left, its successor is followed.
func TestSubscriptionSurvivesTruncation(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	p, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: 27}})
	require.NoError(t, err)
	defer p.Close(framering.ReasonNormal) // fails: its own memory is gone as well
	feed(t, p, 5, 8)
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key, NoFollow: true})
	take(t, s, 5)
	require.NoError(t, os.Truncate(shm.Dir+"/"+framering.PacketShmName(key), 0))
	_, err = s.Next(t.Context())
	require.ErrorIs(t, err, ErrEnded)
	require.ErrorIs(t, err, packetring.ErrFault)
	_ = s.Info()
	_ = s.Stats()
}

func TestSubscribeToFrames(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	c, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	require.NoError(t, c.Serve())
	defer c.Close(framering.ReasonNormal)
	_, err = Subscribe(t.Context(), SubscribeOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, ErrNoPackets)
	require.NotErrorIs(t, err, os.ErrNotExist)
}

// A publisher that is ending lets nobody in any more: that is no fault to warn of, unless it goes on.
func TestSubscribeWhileItEnds(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	for _, ends := range []bool{true, false} {
		dir, key := place(t)
		l, err := net.Listen("unix", framering.SocketPath(dir, key))
		require.NoError(t, err)
		var tries atomic.Int32
		var serving sync.WaitGroup
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.Close()
				if tries.Add(1) == 5 && ends {
					l.Close()
				}
			}
		})
		wait := endingGrace / 2
		if !ends {
			wait = 2 * endingGrace
		}
		var log bytes.Buffer
		_, err = Subscribe(t.Context(), SubscribeOptions{RuntimeDir: dir, Key: key, WaitForKey: wait, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.Error(t, err)
		require.GreaterOrEqual(t, tries.Load(), int32(5))
		require.Equal(t, !ends, strings.Contains(log.String(), "level=WARN"), "%s", &log)
		l.Close()
		serving.Wait()
	}
}

// TestSubscriptionConcurrency calls everything that may be called beside Next, while publishers change.
func TestSubscriptionConcurrency(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Microsecond): // the pace of the calls
					_, _, _ = s.Info(), s.Stats(), s.Generation()
				}
			}
		})
	}
	for range 20 {
		feed(t, p, 5, 7)
		for i := 5; i <= 7; i++ {
			take(t, s, i)
		}
		require.NoError(t, p.Close(framering.ReasonNormal))
		p = mustPublish(t, dir, key)
	}
	close(stop)
	wg.Wait()
	require.EqualValues(t, 60, s.Stats().Read)
}

func TestSubscriptionDoesNotAllocate(t *testing.T) {
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key})
	feed(t, p, 5, 5)
	take(t, s, 5)
	data := make([]byte, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	step := func() {
		if _, err := p.Packet(packetring.Packet{Data: data}); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	step() // makes the context to wait with, once
	require.Zero(t, testing.AllocsPerRun(1000, step))
}

func TestPublishFailures(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	_, err := Publish(PublishOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, framering.ErrAlreadyExists)
	_, err = Publish(PublishOptions{RuntimeDir: dir, Key: key + "-2", Group: "no-such-group-here"})
	require.Error(t, err)
	_, err = Publish(PublishOptions{RuntimeDir: dir, Key: key + "-2", Packets: packetring.Config{Slots: 5000}})
	require.Error(t, err)
	keys, err := ListKeys(dir)
	require.NoError(t, err)
	require.Len(t, keys, 1, "what fails leaves nothing")
	require.NoError(t, p.SetExtradata([]byte("sps")))
	require.NoError(t, p.Close(framering.ReasonNormal))
	_, err = p.Packet(packetring.Packet{})
	require.ErrorIs(t, err, os.ErrClosed)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, fmt.Sprint(left))
}

// TestSubscriptionDoesNotSpin: a publisher whose ring says that it has ended, while its socket lets everybody in.
func TestSubscriptionDoesNotSpin(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := mustPublish(t, dir, key)
	f, err := os.OpenFile(shm.Dir+"/"+framering.PacketShmName(key), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{1}, 0x38) // shutdown_flag
	require.NoError(t, err)
	require.NoError(t, f.Close())
	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = s.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Less(t, s.Generation(), 20)
	require.Greater(t, s.Generation(), 2, "it keeps trying")
	_ = p
}

// TestSubscriptionForeignPublisher: its ring has a name of its own, told as an absolute path, holds no lock, and shows no end
// when its publisher ends.
func TestSubscriptionForeignPublisher(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	origin := mustPublish(t, dir, key+"-origin")
	feed(t, origin, 5, 12)
	b, err := os.ReadFile(shm.Dir + "/" + origin.Ring().Path())
	require.NoError(t, err)
	ring := shm.Dir + "/cuframes-" + key + "-elsewhere"
	require.NoError(t, os.WriteFile(ring, b, 0o600))
	c, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	c.EnablePackets(framering.PacketInfo{Path: ring, CodecID: 27})
	require.NoError(t, c.Serve())

	s := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key, Start: StartOldest})
	take(t, s, 5)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	for i := 6; i <= 12; i++ {
		take(t, s, i)
	}
	_, err = s.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded, "alive and silent")
	require.NoError(t, c.Close(framering.ReasonNormal))
	p := mustPublish(t, dir, key)
	feed(t, p, 5, 6)
	require.NotZero(t, take(t, s, 5).Flags&packetring.FlagDiscontinuity)
	take(t, s, 6)
	require.Zero(t, s.Stats().Lost)
}
