package packetring

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// waits are the ways to wait: near a writer of this process, and as for one elsewhere.
var waits = map[string]ReaderOptions{
	"near":   {},
	"shared": {stranger: true},
	"direct": {Wait: WaitDirect},
	"busy":   {Wait: WaitBusy},
}

func eachWait(t *testing.T, f func(t *testing.T, o ReaderOptions)) {
	for name, o := range waits {
		t.Run(name, func(t *testing.T) {
			testenv.CheckLeaks(t)
			testenv.Watchdog(t, time.Minute)
			f(t, o)
		})
	}
}

func TestPublishAndRead(t *testing.T) {
	eachWait(t, func(t *testing.T, o ReaderOptions) {
		w := create(t, uniqueKey(t), Config{CodecID: 27, Extradata: []byte("sps pps"), Slots: 128, DataSize: 1 << 20})
		r := open(t, w.Path(), o)
		require.Equal(t, Info{CodecID: 27, Extradata: []byte("sps pps"), Slots: 128, DataSize: 1 << 20, Protocol: 4, ProducerPID: os.Getpid()}, r.Info())
		_, ok, err := r.TryNext()
		require.NoError(t, err)
		require.False(t, ok)

		const n = 500
		turn := make(chan struct{}, 100) // at most 100 of 128 slots ahead: nothing may be lost
		var wg sync.WaitGroup
		wg.Go(func() {
			for range n {
				turn <- struct{}{}
				publishNext(t, w, 100)
			}
		})
		for seq := uint64(1); seq <= n; seq++ {
			p, err := r.Next(t.Context())
			require.NoError(t, err)
			require.Equal(t, seq, p.Seq)
			require.NoError(t, checkPacket(p))
			require.Zero(t, p.Flags&FlagDiscontinuity)
			<-turn
		}
		wg.Wait()
		require.Equal(t, Stats{Read: n, Bytes: n * 100, FirstSeq: 1, LastSeq: n, GlobalSeq: n}, r.Stats())
		require.Equal(t, WriterStats{Packets: n, Bytes: n * 100, Keyframes: n/keyEvery + 1}, w.Stats())
	})
}

// A reader without data sees the same packets, and the same losses.
func TestNoData(t *testing.T) {
	testenv.CheckLeaks(t)
	w := create(t, uniqueKey(t), Config{Slots: 8, DataSize: 1 << 16})
	r := open(t, w.Path(), ReaderOptions{NoData: true})
	publishNext(t, w, 100)
	p, err := r.Next(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, p.Seq)
	require.NotZero(t, p.Flags&FlagKey)
	require.Empty(t, p.Data)
	for range 40 {
		publishNext(t, w, 100)
	}
	var last Packet
	for more := true; more; {
		p, more, err = r.TryNext()
		require.NoError(t, err)
		if more {
			require.Empty(t, p.Data)
			last = p
		}
	}
	s := r.Stats()
	require.NotZero(t, s.Lost)
	require.EqualValues(t, 41, s.Read+s.Lost)
	require.Zero(t, s.Bytes)
	require.EqualValues(t, 41, last.Seq)
}

func TestShutdownDrains(t *testing.T) {
	eachWait(t, func(t *testing.T, o ReaderOptions) {
		w := create(t, uniqueKey(t), Config{})
		r := open(t, w.Path(), o)
		publishNext(t, w, 50)
		publishNext(t, w, 50)
		_, err := r.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, w.Close())
		p, err := r.Next(t.Context())
		require.NoError(t, err, "what was published is still handed out")
		require.Equal(t, uint64(2), p.Seq)
		_, err = r.Next(t.Context())
		require.ErrorIs(t, err, ErrShutdown)
		require.NotErrorIs(t, err, ErrGone)
		_, err = w.Publish(Packet{})
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, w.SetExtradata(nil), ErrClosed)
		_, err = Open(w.Path(), o)
		require.ErrorIs(t, err, os.ErrNotExist)
	})
}

func TestSleeperHearsOfShutdown(t *testing.T) {
	eachWait(t, func(t *testing.T, o ReaderOptions) {
		w := create(t, uniqueKey(t), Config{})
		r := open(t, w.Path(), o)
		time.AfterFunc(10*time.Millisecond, func() { _ = w.Close() })
		_, err := r.Next(t.Context())
		require.ErrorIs(t, err, ErrShutdown)
	})
}

func TestNextEnds(t *testing.T) {
	eachWait(t, func(t *testing.T, o ReaderOptions) {
		w := create(t, uniqueKey(t), Config{})
		r := open(t, w.Path(), o)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, err := r.Next(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		_, err = r.Next(ctx)
		require.ErrorIs(t, err, context.Canceled)

		ended := make(chan error)
		go func() {
			_, err := r.Next(t.Context())
			ended <- err
		}()
		time.AfterFunc(5*time.Millisecond, func() { _ = r.Close() })
		require.ErrorIs(t, <-ended, ErrClosed)
		_, _, err = r.TryNext()
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, r.Seek(SeekLive), ErrClosed)
		require.NoError(t, r.Close())
		require.Equal(t, Stats{FirstSeq: 1}, r.Stats())
	})
}

// A reader that is told nothing finds out by itself that a writer does not wake, and then polls it.
func TestSilentWriter(t *testing.T) {
	eachWait(t, func(t *testing.T, o ReaderOptions) {
		for _, locked := range []bool{true, false} {
			key := uniqueKey(t)
			w := create(t, key, Config{})
			path := w.Path()
			if !locked {
				path = copyUnlocked(t, w)
			}
			r := open(t, path, o)
			var view ring
			seg, err := shm.Open(path, shm.OpenOptions{})
			require.NoError(t, err)
			view, err = openRing(seg.Bytes())
			require.NoError(t, err)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				x := publication{ring: &view}
				for tick := time.NewTicker(time.Millisecond); ; {
					select {
					case <-stop:
						return
					case <-tick.C:
					}
					p := stamp(x.seq + 1)
					p.Data = payload(nil, p.Seq, 64)
					for x.begin(p); x.next(); {
					}
					x.end()
				}
			}()
			for n := 0; n < 20 || o.Wait != WaitBusy && !r.wait.polling; n++ {
				p, err := r.Next(t.Context())
				require.NoError(t, err)
				require.NoError(t, checkPacket(p))
			}
			close(stop)
			<-stopped
			require.NoError(t, r.Close())
			require.NoError(t, seg.Close())
		}
	})
}

// copyUnlocked puts a copy of w's ring under another name, as a writer without a lock would have made it.
func copyUnlocked(t *testing.T, w *Writer) string {
	t.Helper()
	key := uniqueKey(t)
	path := shm.Dir + "/" + shm.Prefix + key + "-packets"
	require.NoError(t, os.WriteFile(path, w.seg.Bytes(), 0o600))
	t.Cleanup(func() { _ = os.Remove(path) })
	return path
}

func TestOverrun(t *testing.T) {
	testenv.CheckLeaks(t)
	w := create(t, uniqueKey(t), Config{Slots: 20, DataSize: 1 << 16})
	r := open(t, w.Path(), ReaderOptions{})
	strict := open(t, w.Path(), ReaderOptions{ReportOverruns: true})
	next := func(r *Reader) Packet {
		p, ok, err := r.TryNext()
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, checkPacket(p))
		return p
	}
	for range 3 {
		publishNext(t, w, 100)
	}
	require.Equal(t, uint64(1), next(r).Seq)
	require.Equal(t, uint64(1), next(strict).Seq)
	for range 40 { // 43 in all, the ring has 24..43, its keyframes are 29, 36 and 43
		publishNext(t, w, 100)
	}
	_, _, err := strict.TryNext()
	require.ErrorIs(t, err, ErrOverrun)
	for _, r := range []*Reader{r, strict} {
		p := next(r)
		require.Equal(t, uint64(29), p.Seq)
		require.Equal(t, FlagKey|FlagDiscontinuity|FlagLastInAU, p.Flags)
		require.Equal(t, Stats{Read: 2, Lost: 27, Overruns: 1, Bytes: 200, FirstSeq: 1, LastSeq: 29, GlobalSeq: 43}, r.Stats())
		p = next(r)
		require.Equal(t, uint64(30), p.Seq)
		require.Equal(t, FlagLastInAU, p.Flags)
	}

	// By bytes instead of slots, and without a keyframe in what is left: waits for the next one.
	for range 3 {
		publishNext(t, w, 30000) // 44..46, of which two are whole
	}
	_, ok, err := r.TryNext()
	require.NoError(t, err)
	require.False(t, ok)
	for range 3 {
		publishNext(t, w, 30000) // 47..49
	}
	_, ok, err = r.TryNext()
	require.NoError(t, err)
	require.False(t, ok)
	publishNext(t, w, 100) // 50: KEY
	p := next(r)
	require.Equal(t, uint64(50), p.Seq)
	require.Equal(t, FlagKey|FlagDiscontinuity|FlagLastInAU, p.Flags)
	s := r.Stats()
	require.Equal(t, s.LastSeq-s.FirstSeq+1, s.Read+s.Lost)
	require.Equal(t, uint64(2), s.Overruns)
	require.Equal(t, uint64(3+1), s.Read)
}

func TestSeek(t *testing.T) {
	testenv.CheckLeaks(t)
	w := create(t, uniqueKey(t), Config{Slots: 20})
	r := open(t, w.Path(), ReaderOptions{})
	first := func(p Position) uint64 {
		require.NoError(t, r.Seek(p))
		got, ok, err := r.TryNext()
		require.NoError(t, err)
		if !ok {
			return 0
		}
		require.Zero(t, got.Flags&FlagDiscontinuity)
		return got.Seq
	}
	at := func(ns int64) Position { return SeekTime(time.Unix(0, ns)) }

	require.Zero(t, first(SeekLive))
	require.Zero(t, first(SeekOldest))
	require.Zero(t, first(at(0)))
	for range 45 { // the ring has 26..45; keyframes 29, 36 and 43, with pts 29001, 36001 and 43001
		publishNext(t, w, 100)
	}
	require.Equal(t, uint64(43), first(SeekLive))
	require.Equal(t, uint64(29), first(SeekOldest))
	require.Equal(t, uint64(29), first(at(0)), "older than everything")
	require.Equal(t, uint64(29), first(at(36000)))
	require.Equal(t, uint64(36), first(at(36001)))
	require.Equal(t, uint64(36), first(at(43000)))
	require.Equal(t, uint64(43), first(SeekTime(time.Now())))
	require.Zero(t, r.Stats().Lost, "a seek loses nothing")

	// No keyframe in the ring: the next one, and what lies in front of it was not wanted.
	for seq := w.GlobalSeq() + 1; seq <= 70; seq++ {
		_, err := w.Publish(Packet{Data: []byte("x")})
		require.NoError(t, err)
	}
	require.Zero(t, first(SeekLive))
	_, err := w.Publish(Packet{Data: []byte("x")})
	require.NoError(t, err)
	_, err = w.Publish(Packet{Data: []byte("key"), Flags: FlagKey})
	require.NoError(t, err)
	p, ok, err := r.TryNext()
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, uint64(72), p.Seq)
	require.Zero(t, p.Flags&FlagDiscontinuity)
	require.Zero(t, r.Stats().Lost)
	require.Equal(t, uint64(72), r.Stats().FirstSeq)
}

func TestWriterBounds(t *testing.T) {
	testenv.CheckLeaks(t)
	key := uniqueKey(t)
	for _, c := range []Config{
		{Slots: -1}, {Slots: 1025}, {DataSize: -1}, {DataSize: 1 << 32}, {MaxPacket: -1}, {MaxPacket: 9 << 20},
		{DataSize: 100, MaxPacket: 101}, {Extradata: make([]byte, 4097)}, {Protocol: 1}, {Protocol: 5},
	} {
		_, err := Create(key, c)
		require.Error(t, err, "%+v", c)
	}
	for _, bad := range []string{"", "a/b", "ä", "a.b", "a b", string(make([]byte, 64)), fmt.Sprintf("%064d", 1)} {
		_, err := Create(bad, Config{})
		require.ErrorContains(t, err, "key", "%q", bad)
	}

	w := create(t, key, Config{DataSize: 1000})
	_, err := Create(key, Config{})
	require.ErrorIs(t, err, ErrExists)
	_, err = w.Publish(Packet{Data: make([]byte, 1001)})
	require.ErrorIs(t, err, ErrOversized)
	require.Equal(t, WriterStats{Oversized: 1}, w.Stats())
	r := open(t, w.Path(), ReaderOptions{})
	for range 5 { // a packet as large as the ring
		seq := w.GlobalSeq() + 1
		p := Packet{Flags: FlagKey, Data: payload(nil, seq, 1000)}
		_, err = w.Publish(p)
		require.NoError(t, err)
		got, err := r.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, p.Data, got.Data)
	}
	_, err = w.Publish(Packet{Flags: FlagKey})
	require.NoError(t, err)
	got, err := r.Next(t.Context())
	require.NoError(t, err)
	require.Empty(t, got.Data, "an empty packet is a packet")
	require.Equal(t, uint64(6), w.LastKeyframeSeq())

	small := open(t, w.Path(), ReaderOptions{MaxPacket: 999})
	_, err = w.Publish(Packet{Flags: FlagKey, Data: make([]byte, 1000)})
	require.NoError(t, err)
	require.NoError(t, small.Seek(SeekOldest))
	got, err = small.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(6), got.Seq)
	_, ok, err := small.TryNext()
	require.NoError(t, err)
	require.False(t, ok, "a packet beyond the reader's limit is not handed out")
}

func TestExtradata(t *testing.T) {
	testenv.CheckLeaks(t)
	w := create(t, uniqueKey(t), Config{})
	r := open(t, w.Path(), ReaderOptions{})
	require.Nil(t, r.Info().Extradata)
	require.Error(t, w.SetExtradata(make([]byte, 4097)))
	require.NoError(t, w.SetExtradata([]byte("first")))
	require.NoError(t, w.SetExtradata([]byte("second")))
	require.NoError(t, w.SetExtradata(nil))
	require.Nil(t, r.Info().Extradata)
	publishNext(t, w, 50)
	full := payload(nil, 1, 4096)
	require.NoError(t, w.SetExtradata(full), "once after the first packet, when there was none")
	require.Equal(t, full, r.Info().Extradata)
	require.NoError(t, w.SetExtradata(full), "again the same")
	require.ErrorIs(t, w.SetExtradata([]byte("other")), ErrExtradataFixed)
	require.ErrorIs(t, w.SetExtradata(nil), ErrExtradataFixed)
	require.Equal(t, full, r.Info().Extradata)
}

func TestTruncationUnderReaderAndWriter(t *testing.T) {
	eachWait(t, func(t *testing.T, o ReaderOptions) {
		w := create(t, uniqueKey(t), Config{})
		r := open(t, w.Path(), o)
		publishNext(t, w, 4000)
		publishNext(t, w, 4000)
		_, err := r.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, os.Truncate(shm.Dir+"/"+w.Path(), 4096)) // the header's first page stays
		_, err = r.Next(t.Context())
		require.ErrorIs(t, err, ErrFault)
		_, err = w.Publish(Packet{Data: make([]byte, 100)})
		require.ErrorIs(t, err, ErrFault)
		require.NoError(t, os.Truncate(shm.Dir+"/"+w.Path(), 0))
		_, err = r.Next(t.Context())
		require.ErrorIs(t, err, ErrFault)
		require.ErrorIs(t, w.SetExtradata([]byte("x")), ErrFault)
		require.ErrorIs(t, w.Close(), ErrFault)
	})
}

func TestStatsWhileNextSleeps(t *testing.T) {
	eachWait(t, func(t *testing.T, o ReaderOptions) {
		w := create(t, uniqueKey(t), Config{})
		r := open(t, w.Path(), o)
		done := make(chan error)
		go func() {
			_, err := r.Next(t.Context())
			done <- err
		}()
		for range 100 {
			require.Zero(t, r.Stats().Read)
			require.Equal(t, 64, r.Info().Slots)
		}
		publishNext(t, w, 50)
		require.NoError(t, <-done)
	})
}

func TestNoAllocations(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	for name, o := range waits {
		w := create(t, uniqueKey(t), Config{})
		r := open(t, w.Path(), o)
		p := stamp(1)
		p.Data = payload(nil, 1, 5000)
		ctx, cancel := context.WithCancel(t.Context())
		both := func() {
			if _, err := w.Publish(p); err != nil {
				panic(err)
			}
			if _, err := r.Next(ctx); err != nil {
				panic(err)
			}
		}
		both()
		require.Zero(t, testing.AllocsPerRun(200, both), name)
		// An overrun and the way out of it.
		require.Zero(t, testing.AllocsPerRun(20, func() {
			for range 100 {
				if _, err := w.Publish(p); err != nil {
					panic(err)
				}
			}
			if _, err := r.Next(ctx); err != nil {
				panic(err)
			}
		}), name)
		cancel()
	}
}

func TestErrors(t *testing.T) {
	for err, code := range map[error]int32{ErrOversized: -20, ErrOverrun: -23, ErrFormat: -7, ErrShutdown: -11, ErrGone: -11, ErrExtradataFixed: -1} {
		var e *Error
		require.True(t, errors.As(err, &e))
		require.Equal(t, code, e.Code)
	}
	require.ErrorIs(t, ErrGone, ErrShutdown)
	require.Equal(t, "KEY|LAST_IN_AU", (FlagKey | FlagLastInAU).String())
}

// A reader with a bell sleeps on it alone: each packet is one ring, no sleep runs out, and a writer that stops ringing is polled.
func TestBell(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	key := "b-" + rand.Text()[:12]
	w, err := Create(key, Config{Slots: 8, DataSize: 4096, Protocol: 2})
	require.NoError(t, err)
	bell := make(chan struct{}, 1)
	r, err := Open(w.Path(), ReaderOptions{Bell: func() <-chan struct{} { return bell }, stranger: true})
	require.NoError(t, err)
	got := make(chan error)
	read := func(n int) {
		for range n {
			_, err := r.Next(context.Background())
			got <- err
		}
		close(got)
	}
	go read(50)
	for range 50 {
		_, err := w.Publish(Packet{Flags: FlagKey, Data: []byte{1}})
		require.NoError(t, err)
		select {
		case bell <- struct{}{}:
		default: // the reader has found the packet before it heard of the one before
		}
		require.NoError(t, <-got)
	}
	<-got
	require.Zero(t, r.wait.missed, "with the rings no sleep ran out while there was something to read")
	got = make(chan error)
	go read(10)
	begun := time.Now()
	for range 10 { // nobody rings: the first sleeps run out, then the ring is looked at often
		_, err := w.Publish(Packet{Flags: FlagKey, Data: []byte{1}})
		require.NoError(t, err)
		require.NoError(t, <-got)
	}
	<-got
	require.Less(t, time.Since(begun), 8*time.Second)
	require.NotNil(t, r.wait.waiter, "it went back to the futex")
	ended := make(chan error)
	r.wait.polling = false
	go func() { _, err := r.Next(context.Background()); ended <- err }()
	require.NoError(t, r.Close())
	require.ErrorIs(t, <-ended, ErrClosed)
	require.NoError(t, w.Close())
}
