package framering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A new size: subscribers of frames are told, come back and see no picture of the old layout; one of packets notices nothing.
func TestGenerations(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 20*time.Second)
	dir, key := place(t)
	memory := &slotsInMemfds{}
	p, w := publishFrames(t, dir, key, FrameOptions{Meta: smallMeta(t, 64), Memory: memory})
	p.EnablePackets(PacketInfo{Path: PacketShmName(key), CodecID: 27})
	packets, err := Dial(context.Background(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets, Name: "packets"})
	require.NoError(t, err)
	defer packets.Close()
	s, r := readFrames(t, dir, key, StrictOrder, WaitShared)
	put(t, w)
	f, err := r.Next(context.Background())
	require.NoError(t, err)

	for i := range 5 {
		next, err := p.StartFrames(FrameOptions{Meta: smallMeta(t, 128+64*i), Memory: memory, RingSize: 2 + i})
		require.NoError(t, err)
		_, err = w.Acquire(context.Background())
		require.ErrorIs(t, err, os.ErrClosed)
		w = next
		_, err = r.Next(context.Background())
		var shutdown *ShutdownError
		require.ErrorAs(t, err, &shutdown)
		require.Equal(t, ReasonUpgrade, shutdown.Reason)
		require.NoError(t, f.Release(), "the old memory is not written any more")

		s2, r2 := readFrames(t, dir, key, StrictOrder, WaitShared)
		require.EqualValues(t, 1+i, s2.InitialSeq, "numbers go on")
		require.EqualValues(t, 128+64*i, r2.Meta().Width)
		require.EqualValues(t, 2+i, put(t, w))
		f, err = r2.Next(context.Background())
		require.NoError(t, err)
		require.EqualValues(t, 2+i, f.Seq)
		require.NoError(t, s.Close())
		s, r = s2, r2
	}
	require.NoError(t, f.Release())
	require.NoError(t, packets.Err())
	subs := p.Subscribers()
	require.Equal(t, "packets", subs[0].Name)
	require.Equal(t, SubscriberActive, subs[0].State)
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := memory.live.Load(); n != 6 {
			return fmt.Errorf("%d buffers are held, the last generation has 6", n)
		}
		return nil
	})
	pub, err := Inspect(dir, key)
	require.NoError(t, err)
	require.True(t, pub.Alive)
	require.Equal(t, 6, pub.Header.RingSize)
}

// Under StrictWait nobody misses a frame, also where a new generation begins: what is in the old ring is read to its end, and the new
// ring waits for those who come back.
func TestStrictWaitAcrossGenerations(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key := place(t)
	o := FrameOptions{Meta: smallMeta(t, 64), Memory: &slotsInMemfds{}, Policy: StrictWait, AckTimeout: 20 * time.Second}
	p, w := publishFrames(t, dir, key, o)
	const frames = 210
	var wg sync.WaitGroup
	for range 3 {
		s, r := readFrames(t, dir, key, StrictOrder, WaitShared)
		wg.Go(func() {
			for want := uint64(1); want <= frames; {
				f, err := r.Next(context.Background())
				if errors.Is(err, ErrDisconnected) {
					s.Close()
					r.Close()
					if s, err = Dial(context.Background(), DialOptions{RuntimeDir: dir, Key: key, Mode: StrictOrder}); err == nil {
						r, err = s.Frames(FrameReaderOptions{Memory: &slotsInMemfds{}})
					}
					if err != nil {
						t.Error(err)
						return
					}
					continue
				}
				if err != nil || f.Seq != want {
					t.Errorf("frame %d: %v; want %d", f.Seq, err, want)
					return
				}
				if err := f.Release(); err != nil {
					t.Error(err)
				}
				want++
			}
			r.Close()
			s.Close()
		})
	}
	for i := range frames {
		if i%30 == 29 {
			var err error
			w, err = p.StartFrames(o)
			require.NoError(t, err)
		}
		put(t, w)
	}
	wg.Wait()
}

// Many switches under subscribers that come back as fast as they can: nobody ever sees a picture of another layout.
func TestGenerationsUnderLoad(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key := place(t)
	memory := &slotsInMemfds{}
	widths := []int{64, 320, 640}
	p, w := publishFrames(t, dir, key, FrameOptions{Meta: smallMeta(t, 64), Memory: memory})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var read atomic.Int64
	for range 3 {
		wg.Go(func() {
			for ctx.Err() == nil {
				s, err := Dial(ctx, DialOptions{RuntimeDir: dir, Key: key})
				if err != nil {
					continue
				}
				r, err := s.Frames(FrameReaderOptions{Memory: memory})
				for err == nil {
					var f Frame
					if f, err = r.Next(ctx); err != nil {
						break
					}
					dst := make([]byte, r.Meta().FrameSize)
					if e := f.CopyTo(dst); e == nil {
						if n, e := uniform(dst); e != nil || n>>32 != uint64(r.Meta().Width) {
							t.Errorf("width %d: %#x, %v", r.Meta().Width, n, e)
						}
						read.Add(1)
					}
					_ = f.Release()
				}
				if r != nil {
					if e := r.Close(); e != nil {
						t.Error(e)
					}
				}
				s.Close()
			}
		})
	}
	for i := range 60 {
		for range 5 {
			slot, err := w.Acquire(ctx)
			require.NoError(t, err)
			fill(slot.Buffer.Bytes(), uint64(w.Meta().Width)<<32|slot.Seq)
			_, err = w.Publish(0)
			require.NoError(t, err)
		}
		if i%10 == 9 { // let them catch up now and then
			before := read.Load()
			testenv.Eventually(t, 5*time.Second, func() error {
				slot, err := w.Acquire(ctx)
				require.NoError(t, err)
				fill(slot.Buffer.Bytes(), uint64(w.Meta().Width)<<32|slot.Seq)
				_, err = w.Publish(0)
				require.NoError(t, err)
				if read.Load() == before {
					return errors.New("nobody reads")
				}
				return nil
			})
		}
		var err error
		w, err = p.StartFrames(FrameOptions{Meta: smallMeta(t, widths[i%3]), Memory: memory})
		require.NoError(t, err)
	}
	cancel()
	wg.Wait()
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := memory.live.Load(); n != DefaultRingSize {
			return fmt.Errorf("%d buffers are held", n)
		}
		return nil
	})
}

// From a packet-only publisher to one with frames, as a decoder does that learns the size from the stream.
func TestFramesBeginLater(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	defer p.Close(ReasonNormal)
	require.NoError(t, p.Serve())
	_, err = Dial(context.Background(), DialOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, ErrNotFound)
	w, err := p.StartFrames(FrameOptions{Meta: smallMeta(t, 64), Memory: &slotsInMemfds{}})
	require.NoError(t, err)
	_, r := readFrames(t, dir, key, NewestOnly, WaitShared)
	put(t, w)
	f, err := r.Next(context.Background())
	require.NoError(t, err)
	require.NoError(t, f.Release())
}
