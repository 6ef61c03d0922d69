package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// board is a page of words that the processes of a measurement share, one cache line each: readiness, start, stop, progress.
type board struct{ seg *shm.Segment }

const (
	boardLines = 256
	lineSize   = 64

	lineReady = iota - 2 // helpers that are ready
	lineGo               // 1: start, 2: stop; a futex word
	lineBare             // futex word of the bare wake-ups
	lineStamp            // ns at which the bare word was changed
	lineFirst            // for reader 0, 1 …: its progress, and the progress at which it wakes the writer, 0 = none
)

func newBoard() (*board, error) {
	seg, err := shm.CreateLocked(fmt.Sprintf("%sbench-%d-board", shm.Prefix, os.Getpid()), boardLines*lineSize, shm.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return &board{seg}, nil
}

func openBoard(path string) (*board, error) {
	seg, err := shm.Open(path, shm.OpenOptions{MinSize: boardLines * lineSize})
	if err != nil {
		return nil, err
	}
	return &board{seg}, nil
}

func (b *board) word(line int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&b.seg.Bytes()[line*lineSize]))
}

func (b *board) futex(line int) *uint32 {
	return (*uint32)(unsafe.Pointer(&b.seg.Bytes()[line*lineSize]))
}

func (b *board) set(line int, v uint64) {
	b.word(line).Store(v)
	shm.FutexWake(b.futex(line))
}

// ready tells the others that this process is, and waits for the start.
func (b *board) ready() {
	b.word(lineReady).Add(1)
	for b.word(lineGo).Load() == 0 {
		_ = shm.FutexWait(b.futex(lineGo), 0, time.Second)
	}
}

func (b *board) stopped() bool { return b.word(lineGo).Load() >= 2 }

// await waits until n processes are ready, of which p is the last one started.
func (b *board) await(ctx context.Context, n int, p *process) error {
	for b.word(lineReady).Load() < uint64(n) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ended:
			if err := p.result(nil); err != nil {
				return err
			}
			return fmt.Errorf("bench: %s ended before it was ready", p.role)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// pause is what a benchmark does while its helpers work.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// mallocs returns the number of heap objects this process has ever made.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
