package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/packetring"
)

// Percentiles of a latency, in microseconds.
type Percentiles struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50_us"`
	P90   float64 `json:"p90_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p999_us"`
	Max   float64 `json:"max_us"`
}

// Wake is the time from just before Publish, payload copies included, to the return of Next in another process, which slept in
// between; and beside it the time from just before a bare futex wake to the return of a bare futex wait in a third process. Both
// are timed by the same publisher in turn, one of each at every tick.
type Wake struct {
	Mode     string      `json:"mode"`
	Rate     int         `json:"packets_per_second"`
	Size     int         `json:"payload_bytes"`
	Ring     Percentiles `json:"ring"`
	Bare     Percentiles `json:"bare_futex"`
	RatioP50 float64     `json:"ratio_p50"`
	RatioP99 float64     `json:"ratio_p99"`
}

// histogram spans 10 ns to 10 s.
func histogram() *hdrhistogram.Histogram { return hdrhistogram.New(10, 10_000_000_000, 3) }

func percentiles(h *hdrhistogram.Histogram) Percentiles {
	us := func(q float64) float64 { return float64(h.ValueAtQuantile(q)) / 1000 }
	return Percentiles{Count: h.TotalCount(), P50: us(50), P90: us(90), P99: us(99), P999: us(99.9), Max: float64(h.Max()) / 1000}
}

type latencyArg struct {
	Board, Ring string
	Key         string
	Mode        packetring.Wait
	Rate, Size  int
	Bare        bool
}

// warmUp is how many of the first wake-ups are not counted.
const warmUp = 20

func (a latencyArg) boardName() string { return a.Board }

func init() {
	// publisher: one packet and one bare wake-up a tick, half a tick apart.
	helper("latency-publisher", func(a latencyArg, b *board) (any, error) {
		w, err := packetring.Create(a.Key, packetring.Config{})
		if err != nil {
			return nil, err
		}
		defer w.Close()
		data := make([]byte, a.Size)
		p := packetring.Packet{Flags: packetring.FlagKey, Data: data}
		err = b.pace(a.Rate, a.Bare, func() error {
			binary.LittleEndian.PutUint64(data, uint64(time.Now().UnixNano()))
			_, err := w.Publish(p)
			return err
		})
		if err != nil {
			return nil, err
		}
		return nil, w.Close()
	})
	helper("latency-reader", func(a latencyArg, b *board) (any, error) {
		r, err := packetring.Open(a.Ring, packetring.ReaderOptions{Wait: a.Mode})
		if err != nil {
			return nil, err
		}
		defer r.Close()
		h := histogram()
		b.ready()
		for n := 0; ; n++ {
			p, err := r.Next(context.Background())
			now := time.Now().UnixNano()
			if err != nil {
				return percentiles(h), nil // the publisher has shut down
			}
			if took := now - int64(binary.LittleEndian.Uint64(p.Data)); n >= warmUp && took >= 0 {
				_ = h.RecordValue(took)
			}
		}
	})
	// bare: the least that a wake-up between two processes can cost here.
	helper("latency-bare", func(_ latencyArg, b *board) (any, error) {
		h := histogram()
		debug.SetGCPercent(-1)
		runtime.LockOSThread()
		word, stamp := b.futex(lineBare), b.word(lineStamp)
		b.ready()
		for n, last := 0, uint32(0); ; n++ {
			for atomic.LoadUint32(word) == last {
				shm.FutexWaitBare(word, last)
			}
			now := time.Now().UnixNano()
			if last = atomic.LoadUint32(word); last == 1<<32-1 {
				return percentiles(h), nil
			}
			if took := now - int64(stamp.Load()); n >= warmUp && took >= 0 {
				_ = h.RecordValue(took)
			}
		}
	})
}

// pace publishes at the rate until the measurement stops; with bare, a futex of the board is woken half way between.
func (b *board) pace(rate int, bare bool, publish func() error) error {
	b.ready()
	half := time.Second / time.Duration(2*rate)
	next := time.Now()
	for !b.stopped() {
		next = sleepUntil(next.Add(half))
		if err := publish(); err != nil {
			return err
		}
		next = sleepUntil(next.Add(half))
		if bare {
			b.word(lineStamp).Store(uint64(time.Now().UnixNano()))
			b.word(lineBare).Add(1)
			shm.FutexWake(b.futex(lineBare))
		}
	}
	b.word(lineBare).Store(1<<32 - 1) // ends the bare waiter
	shm.FutexWake(b.futex(lineBare))
	return nil
}

// sleepUntil sleeps until t and returns it, or the present where that is past.
func sleepUntil(t time.Time) time.Time {
	now := time.Now()
	if now.After(t) {
		return now
	}
	time.Sleep(t.Sub(now))
	return t
}

func (o Packets) latency(ctx context.Context, name string, mode packetring.Wait, rate int) (Wake, error) {
	w := Wake{Mode: name, Rate: rate, Size: o.Size}
	b, err := newBoard()
	if err != nil {
		return w, err
	}
	defer b.seg.Close()
	bare := mode != packetring.WaitBusy // a spinning reader has nothing to do with a wake-up
	a := latencyArg{Board: b.seg.Name(), Key: fmt.Sprintf("bench-%d", os.Getpid()), Mode: mode, Rate: rate, Size: o.Size, Bare: bare}
	a.Ring = shm.Prefix + a.Key + "-packets"
	var procs [3]*process
	defer func() { kill(procs[:]...) }()
	for i, role := range []string{"latency-publisher", "latency-reader", "latency-bare"} {
		if role == "latency-bare" && !bare {
			break
		}
		if procs[i], err = o.start(ctx, role, a); err != nil {
			return w, err
		}
		if err := b.await(ctx, i+1, procs[i]); err != nil { // the reader needs the publisher's ring
			return w, err
		}
	}
	b.set(lineGo, 1)
	if err := pause(ctx, o.Duration); err != nil {
		return w, err
	}
	b.set(lineGo, 2)
	if err := procs[0].result(nil); err != nil {
		return w, err
	}
	if err := procs[1].result(&w.Ring); err != nil {
		return w, err
	}
	if bare {
		if err := procs[2].result(&w.Bare); err != nil {
			return w, err
		}
		w.RatioP50, w.RatioP99 = w.Ring.P50/w.Bare.P50, w.Ring.P99/w.Bare.P99
	}
	return w, nil
}
