package lossylink

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// Proxy forwards UDP between clients, one at a time, and a server; it delays each packet and drops some. It keeps order, as most paths
// do, and needs no rights.
type Proxy struct {
	front, back *net.UDPConn
	wg          sync.WaitGroup
}

// NewProxy listens on a free port of the loopback interface.
func NewProxy(server net.Addr, o Options) (*Proxy, error) {
	to, ok := server.(*net.UDPAddr)
	if !ok {
		return nil, fmt.Errorf("lossylink: %s is no UDP address", server)
	}
	front, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("lossylink: %w", err)
	}
	back, err := net.DialUDP("udp", nil, to)
	if err != nil {
		_ = front.Close()
		return nil, fmt.Errorf("lossylink: %w", err)
	}
	_ = front.SetReadBuffer(4 << 20)
	_ = back.SetReadBuffer(4 << 20)
	p := &Proxy{front: front, back: back}
	var mu sync.Mutex
	var client *net.UDPAddr
	run := func(read func([]byte) (int, error), write func([]byte), salt uint64) {
		q := make(chan delayed, max(o.Queue, 1000)) // a full queue loses packets, like a router's
		r := rand.New(rand.NewPCG(o.Seed, salt))
		p.wg.Go(func() {
			defer close(q)
			buf := make([]byte, 2048)
			for {
				n, err := read(buf)
				if err != nil {
					return
				}
				if r.Float64() < o.Loss {
					continue
				}
				select {
				case q <- delayed{time.Now().Add(o.OneWay), append([]byte(nil), buf[:n]...)}:
				default:
				}
			}
		})
		p.wg.Go(func() {
			for d := range q {
				time.Sleep(time.Until(d.due)) // the delay that is simulated
				write(d.b)
			}
		})
	}
	run(func(b []byte) (int, error) {
		n, from, err := front.ReadFromUDP(b)
		mu.Lock()
		client = from
		mu.Unlock()
		return n, err
	}, func(b []byte) { _, _ = back.Write(b) }, 1)
	run(back.Read, func(b []byte) {
		mu.Lock()
		to := client
		mu.Unlock()
		if to != nil {
			_, _ = front.WriteToUDP(b, to)
		}
	}, 2)
	return p, nil
}

// Addr returns the address that stands for the server's.
func (p *Proxy) Addr() net.Addr { return p.front.LocalAddr() }

// Close ends the path.
func (p *Proxy) Close() error {
	err := errors.Join(p.front.Close(), p.back.Close())
	p.wg.Wait()
	return err
}
