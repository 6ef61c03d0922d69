//go:build linux

package lossylink

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestPath(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	l, err := New(Options{OneWay: 10 * time.Millisecond, Loss: 0.02, Seed: 1})
	if errors.Is(err, ErrUnavailable) {
		testenv.NoNamespaces(t, err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	var lis net.Listener
	require.NoError(t, l.On(t.Context(), 0, func() (err error) {
		lis, err = net.Listen("tcp4", AddrA+":0")
		return err
	}))
	defer lis.Close()
	go func() {
		c, err := lis.Accept()
		if err == nil {
			_, _ = io.Copy(c, c)
			_ = c.Close()
		}
	}()
	var c net.Conn
	start := time.Now()
	require.NoError(t, l.On(t.Context(), 1, func() (err error) {
		c, err = net.Dial("tcp4", lis.Addr().String())
		return err
	}))
	defer c.Close()
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond, "a round trip")
	want := make([]byte, 100<<10)
	for i := range want {
		want[i] = byte(i * 7)
	}
	go func() { _, _ = c.Write(want) }()
	got := make([]byte, len(want))
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, want, got, "TCP mends the losses")
	_, err = net.DialTimeout("tcp4", lis.Addr().String(), 200*time.Millisecond)
	require.Error(t, err, "this network is not that network")
}

// TestRate: a burst leaves the path at its rate, and what finds the queue full is lost.
func TestRate(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	l, err := New(Options{Rate: 1e6})
	if errors.Is(err, ErrUnavailable) {
		testenv.NoNamespaces(t, err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	var in, out *net.UDPConn
	require.NoError(t, l.On(t.Context(), 0, func() (err error) {
		in, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(AddrA)})
		return err
	}))
	defer in.Close()
	require.NoError(t, l.On(t.Context(), 1, func() (err error) {
		out, err = net.DialUDP("udp4", nil, in.LocalAddr().(*net.UDPAddr))
		return err
	}))
	defer out.Close()
	start := time.Now()
	for range 400 { // 400 ms of the line
		_, err := out.Write(make([]byte, 972))
		require.NoError(t, err)
	}
	n := 0
	var last time.Duration
	for buf := make([]byte, 1500); ; n++ {
		require.NoError(t, in.SetReadDeadline(time.Now().Add(500*time.Millisecond)))
		if _, err := in.Read(buf); err != nil {
			break
		}
		last = time.Since(start)
	}
	require.Greater(t, n, 90, "the queue holds 100 ms")
	require.Less(t, n, 400)
	require.GreaterOrEqual(t, last, time.Duration(n-1)*time.Millisecond, "%d datagrams of 1 ms each", n)
}
