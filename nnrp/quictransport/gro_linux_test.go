package quictransport

import (
	"bytes"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/ipv4"
)

// TestJoinedDatagrams: what a sender cut into segments arrives as those datagrams, joined by the kernel or not, mixed with others.
func TestJoinedDatagrams(t *testing.T) {
	sock, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer sock.Close()
	c, ok := joinDatagrams(sock).(*groConn)
	if !ok {
		t.Skip("no UDP_GRO in this kernel")
	}
	out, err := net.DialUDP("udp", nil, sock.LocalAddr().(*net.UDPAddr))
	require.NoError(t, err)
	defer out.Close()
	other, err := net.DialUDP("udp", nil, sock.LocalAddr().(*net.UDPAddr))
	require.NoError(t, err)
	defer other.Close()

	// UDP_SEGMENT: ten datagrams of 1000 bytes and one of 10 in one call.
	var big []byte
	for i := range 11 {
		n := 1000
		if i == 10 {
			n = 10
		}
		big = append(big, bytes.Repeat([]byte{byte(i)}, n)...)
	}
	_, _, err = out.WriteMsgUDP(big, segmented(1000), nil)
	require.NoError(t, err)
	_, err = other.Write([]byte("alone"))
	require.NoError(t, err)

	ms := make([]ipv4.Message, 4)
	for i := range ms {
		ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, 1452)}, make([]byte, 128)
	}
	require.NoError(t, sock.SetReadDeadline(time.Now().Add(5*time.Second)))
	var got [][]byte
	var from []string
	for len(got) < 12 {
		n, err := c.ReadBatch(ms, 0)
		require.NoError(t, err)
		require.Positive(t, n)
		for _, m := range ms[:n] {
			got = append(got, append([]byte(nil), m.Buffers[0][:m.N]...))
			from = append(from, m.Addr.String())
		}
	}
	for i := range 10 {
		require.Equal(t, bytes.Repeat([]byte{byte(i)}, 1000), got[i])
		require.Equal(t, out.LocalAddr().String(), from[i])
	}
	require.Equal(t, bytes.Repeat([]byte{10}, 10), got[10])
	require.Equal(t, "alone", string(got[11]))
	require.Equal(t, other.LocalAddr().String(), from[11])

	for _, bad := range [][]byte{nil, make([]byte, 15), make([]byte, 16), bytes.Repeat([]byte{0xff}, 32)} {
		require.Zero(t, segmentSize(bad))
		require.Zero(t, sendSize(bad))
	}
}
