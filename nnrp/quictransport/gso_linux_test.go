package quictransport

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// segmented is the control message that quic-go sends a batch with.
func segmented(size uint16) []byte {
	cmsg := make([]byte, 24)
	binary.NativeEndian.PutUint64(cmsg, 18)
	binary.NativeEndian.PutUint32(cmsg[8:], solUDP)
	binary.NativeEndian.PutUint32(cmsg[12:], udpSegment)
	binary.NativeEndian.PutUint16(cmsg[16:], size)
	return cmsg
}

// TestJoinedBatches: full batches travel together, nothing overtakes them, and none waits for one that does not come.
func TestJoinedBatches(t *testing.T) {
	in, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer in.Close()
	if _, ok := joinDatagrams(in).(*groConn); !ok {
		t.Skip("no UDP_GRO in this kernel")
	}
	sock, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer sock.Close()
	out := joinBatches(joinDatagrams(sock)).(*gsoConn)
	peer := in.LocalAddr().(*net.UDPAddr)
	buf := make([]byte, 64<<10)
	read := func() []byte {
		require.NoError(t, in.SetReadDeadline(time.Now().Add(5*time.Second)))
		n, err := in.Read(buf)
		require.NoError(t, err)
		return buf[:n]
	}
	const size = 1452
	batch := func(id byte, n int) []byte { return bytes.Repeat([]byte{id}, n) }
	full := quicBatch / size * size
	write := func(b, oob []byte) {
		n, _, err := out.WriteMsgUDP(b, oob, peer)
		require.NoError(t, err)
		require.Equal(t, len(b), n)
	}
	out.mu.Lock()
	out.timer.Stop()
	out.timer = time.NewTimer(time.Hour) // by hand, below
	out.mu.Unlock()

	for i := range byte(3) { // a third one leaves no room for a fourth
		write(batch(i, full), segmented(size))
	}
	require.Equal(t, joined(batch(0, full), batch(1, full), batch(2, full)), read())
	write(batch(3, full), segmented(size))
	write(batch(4, 2*size+7), segmented(size)) // the end of what there was to send
	require.Equal(t, joined(batch(3, full), batch(4, 2*size+7)), read())
	write(batch(5, size), segmented(size)) // on its own at once
	require.Equal(t, batch(5, size), read())
	write(batch(6, full), segmented(size))
	write(batch(7, 100), nil) // a probe, or the last word of a connection
	require.Equal(t, batch(6, full), read())
	require.Equal(t, batch(7, 100), read())
	write(batch(8, full), segmented(size))
	write(batch(9, quicBatch/1400*1400), segmented(1400))
	require.Equal(t, batch(8, full), read())

	out.mu.Lock()
	out.flush()
	require.Equal(t, batch(9, quicBatch/1400*1400), read())
	out.mu.Unlock()
	alone := joinBatches(joinDatagrams(sock)).(*gsoConn) // with its timer
	n, _, err := alone.WriteMsgUDP(batch(10, full), segmented(size), peer)
	require.NoError(t, err)
	require.Equal(t, full, n)
	require.Equal(t, batch(10, full), read())

	require.NoError(t, sock.Close())
	write(batch(11, full), segmented(size)) // held
	_, _, err = out.WriteMsgUDP(batch(12, 10), nil, peer)
	require.ErrorIs(t, err, net.ErrClosed, "what was held could not be sent")
}

func joined(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
