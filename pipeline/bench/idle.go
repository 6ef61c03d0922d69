package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/packetring"
)

// CPU is what processes of their own use of one core while no packet comes, and while a camera of 4 Mbit/s sends 25 packets a second;
// counted by the kernel (getrusage), start of the process excluded.
type CPU struct {
	Load      string  `json:"load"`
	Publisher float64 `json:"publisher_percent"`
	Shared    float64 `json:"reader_shared_percent"`
	Direct    float64 `json:"reader_direct_percent"`
}

const (
	cameraRate = 25
	cameraSize = 20_000
)

type idleArg struct {
	Board, Ring, Key string
	Mode             packetring.Wait
	Rate             int
}

func (a idleArg) boardName() string { return a.Board }

func init() {
	helper("idle-publisher", func(a idleArg, b *board) (any, error) {
		w, err := packetring.Create(a.Key, packetring.Config{})
		if err != nil {
			return nil, err
		}
		defer w.Close()
		p := packetring.Packet{Flags: packetring.FlagKey, Data: make([]byte, cameraSize)}
		return b.used(func() error {
			if a.Rate == 0 {
				for !b.stopped() {
					_ = shm.FutexWait(b.futex(lineGo), 1, 0)
				}
				return nil
			}
			for next := time.Now(); !b.stopped(); {
				next = sleepUntil(next.Add(time.Second / time.Duration(a.Rate)))
				if _, err := w.Publish(p); err != nil {
					return err
				}
			}
			return nil
		})
	})
	helper("idle-reader", func(a idleArg, b *board) (any, error) {
		r, err := packetring.Open(a.Ring, packetring.ReaderOptions{Wait: a.Mode})
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return b.used(func() error {
			for {
				if _, err := r.Next(context.Background()); err != nil {
					return nil // the publisher has shut down
				}
			}
		})
	})
}

// used returns the CPU time of f in percent of the time it took.
func (b *board) used(f func() error) (float64, error) {
	runtime.GC() // that of the start does not count
	b.ready()
	start, before := time.Now(), cpuTime()
	err := f()
	return 100 * float64(cpuTime()-before) / float64(time.Since(start)), err
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (o Packets) cpu(ctx context.Context, load string, rate int) (CPU, error) {
	c := CPU{Load: load}
	b, err := newBoard()
	if err != nil {
		return c, err
	}
	defer b.seg.Close()
	a := idleArg{Board: b.seg.Name(), Key: fmt.Sprintf("bench-%d", os.Getpid()), Rate: rate}
	a.Ring = shm.Prefix + a.Key + "-packets"
	into := []*float64{&c.Publisher, &c.Shared, &c.Direct}
	procs := make([]*process, len(into))
	defer func() { kill(procs...) }()
	for i := range procs {
		role := "idle-reader"
		if i == 0 {
			role = "idle-publisher"
		}
		a.Mode = []packetring.Wait{0, packetring.WaitShared, packetring.WaitDirect}[i]
		if procs[i], err = o.start(ctx, role, a); err != nil {
			return c, err
		}
		if err := b.await(ctx, i+1, procs[i]); err != nil {
			return c, err
		}
	}
	b.set(lineGo, 1)
	if err := pause(ctx, o.Duration); err != nil {
		return c, err
	}
	b.set(lineGo, 2)
	for i, p := range procs {
		if err := p.result(into[i]); err != nil {
			return c, err
		}
	}
	return c, nil
}
