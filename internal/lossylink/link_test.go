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
		t.Skip(err)
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
