package quictransport

import (
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lossyProxy forwards UDP between one client and a server, delays each packet and drops some. It keeps order, as most paths do.
type lossyProxy struct {
	front *net.UDPConn
	wg    sync.WaitGroup
}

type delayed struct {
	due time.Time
	b   []byte
}

func newLossyProxy(t *testing.T, server net.Addr, oneWay time.Duration, loss float64) *lossyProxy {
	front, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	back, err := net.DialUDP("udp", nil, server.(*net.UDPAddr))
	require.NoError(t, err)
	_ = front.SetReadBuffer(4 << 20)
	_ = back.SetReadBuffer(4 << 20)
	p := &lossyProxy{front: front}
	var mu sync.Mutex
	var client *net.UDPAddr
	run := func(read func([]byte) (int, error), write func([]byte), seed uint64) {
		q := make(chan delayed, 4096) // a full queue loses packets, like a router's
		r := rand.New(rand.NewPCG(seed, 1))
		p.wg.Go(func() {
			defer close(q)
			buf := make([]byte, 2048)
			for {
				n, err := read(buf)
				if err != nil {
					return
				}
				if r.Float64() < loss {
					continue
				}
				select {
				case q <- delayed{time.Now().Add(oneWay), append([]byte(nil), buf[:n]...)}:
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
	t.Cleanup(func() {
		_ = front.Close()
		_ = back.Close()
		p.wg.Wait()
	})
	return p
}

func (p *lossyProxy) url() string { return "nnrps://" + p.front.LocalAddr().String() }
