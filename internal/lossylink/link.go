//go:build linux

package lossylink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// Link is a path between two network namespaces of this process: a TUN device on either side, and goroutines that carry the packets.
// Unlike a Proxy it also carries the kernel's own TCP, with its retransmissions. It needs CAP_NET_ADMIN, CAP_SYS_ADMIN and the ip
// program.
type Link struct {
	ends [2]*end
	wg   sync.WaitGroup
}

// end is a thread that lives in a namespace of its own, and the TUN device there.
type end struct {
	tun  *os.File
	work chan func()
	done chan struct{}
}

// New makes the path.
func New(o Options) (*Link, error) {
	if o.Queue == 0 {
		o.Queue = 1000
	}
	l := &Link{}
	for i, addr := range []string{AddrA, AddrB} {
		e, err := newEnd(addr)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		l.ends[i] = e
	}
	l.carry(l.ends[0], l.ends[1], o, 1)
	l.carry(l.ends[1], l.ends[0], o, 2)
	return l, nil
}

func newEnd(addr string) (*end, error) {
	e := &end{work: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go e.live(addr, ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	return e, nil
}

// live is the thread. It is never unlocked: the runtime ends it with the goroutine, and the namespace with it.
func (e *end) live(addr string, ready chan<- error) {
	runtime.LockOSThread()
	defer close(e.done)
	if err := e.setUp(addr); err != nil {
		ready <- err
		return
	}
	ready <- nil
	for f := range e.work {
		f()
	}
}

// ifreq of TUNSETIFF: name, flags.
type ifreq struct {
	name  [16]byte
	flags uint16
	_     [22]byte
}

const (
	tunSetIff = 0x400454ca
	iffTun    = 0x0001
	iffNoPI   = 0x1000
	mtu       = "1500"
)

func (e *end) setUp(addr string) error {
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		return fmt.Errorf("%w: unshare: %w", ErrUnavailable, err)
	}
	fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("%w: /dev/net/tun: %w", ErrUnavailable, err)
	}
	r := ifreq{flags: iffTun | iffNoPI}
	copy(r.name[:], "lossy0")
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), tunSetIff, uintptr(unsafe.Pointer(&r))); errno != 0 {
		_ = syscall.Close(fd)
		return fmt.Errorf("%w: TUNSETIFF: %w", ErrUnavailable, errno)
	}
	e.tun = os.NewFile(uintptr(fd), "/dev/net/tun")
	ip := exec.Command("ip", "-batch", "-") // inherits this thread's namespace
	ip.Stdin = strings.NewReader("addr add " + addr + "/24 dev lossy0\nlink set lossy0 mtu " + mtu + " up\nlink set lo up\n")
	if out, err := ip.CombinedOutput(); err != nil {
		return errors.Join(fmt.Errorf("%w: ip: %w: %s", ErrUnavailable, err, out), e.tun.Close())
	}
	return nil
}

// lineQueue is the longest wait for a line with a Rate.
const lineQueue = 100 * time.Millisecond

// carry moves packets one way, in order.
func (l *Link) carry(from, to *end, o Options, salt uint64) {
	q := make(chan delayed, o.Queue)
	r := rand.New(rand.NewPCG(o.Seed, salt))
	l.wg.Go(func() {
		defer close(q)
		buf := make([]byte, 4096)
		var free time.Time // when the line has sent what is in front
		for {
			n, err := from.tun.Read(buf)
			if err != nil {
				return
			}
			now := time.Now()
			if o.Rate > 0 {
				if free.Before(now) {
					free = now
				}
				if free.Sub(now) > lineQueue { // the router's queue is full
					continue
				}
				free = free.Add(time.Duration(float64(n) / o.Rate * 1e9))
				now = free
			}
			if r.Float64() < o.Loss {
				continue
			}
			select {
			case q <- delayed{now.Add(o.OneWay), append([]byte(nil), buf[:n]...)}:
			default:
			}
		}
	})
	l.wg.Go(func() {
		for d := range q {
			time.Sleep(time.Until(d.due)) // the delay of the path
			_, _ = to.tun.Write(d.b)
		}
	})
}

// On runs f on the thread of one end (0 or 1): sockets that f itself makes, not goroutines that it starts, are in that end's network.
func (l *Link) On(ctx context.Context, end int, f func() error) error {
	result := make(chan error, 1)
	select {
	case l.ends[end].work <- func() { result <- f() }:
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-result
}

// Close takes the path down. Sockets on it live on without one.
func (l *Link) Close() error {
	var err error
	for _, e := range l.ends {
		if e != nil {
			err = errors.Join(err, e.tun.Close())
		}
	}
	l.wg.Wait()
	for _, e := range l.ends {
		if e != nil {
			close(e.work)
			<-e.done
		}
	}
	return err
}
