package quictransport

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync"
	"syscall"
	"time"
)

// Linux's UDP_SEGMENT (udp(7)): quic-go hands the kernel up to 20 KiB of datagrams in one call, the kernel takes 64 KiB. A tensor goes
// out in a third of the calls where three such batches travel as one; the receiver is woken less often, and acknowledges less often.
const (
	udpSegment = 103

	quicBatch = 20 << 10 // quic-go's buffer for a batch: one that has no room left for a datagram is likely to be followed by another
	gsoMost   = 60 << 10 // three of them; the kernel's limit is 64 KiB with headers, and 64 datagrams
	// gsoHold is how long a full batch waits for the next one, which usually follows in some 20 µs. Batches that are not full never wait.
	gsoHold = 100 * time.Microsecond
)

// gsoConn is the UDP socket of one connection whose WriteMsgUDP, which quic-go calls, joins full batches.
type gsoConn struct {
	*groConn

	mu    sync.Mutex
	held  []byte // full batches that wait
	oob   []byte // theirs
	peer  *net.UDPAddr
	timer *time.Timer
	err   error // of batches that were held, for the next call: quic-go does without segmentation then, or gives up
}

// joinBatches is for the socket of a client: a server's, which many connections share, would make them wait for each other.
func joinBatches(c net.PacketConn) net.PacketConn {
	gro, ok := c.(*groConn)
	if !ok {
		return c
	}
	g := &gsoConn{groConn: gro, held: make([]byte, 0, gsoMost)}
	g.timer = time.AfterFunc(gsoHold, func() { // nothing is held yet
		g.mu.Lock()
		defer g.mu.Unlock()
		g.flush()
	})
	return g
}

// WriteMsgUDP sends b in order with what is held. An error may be that of an earlier call.
func (c *gsoConn) WriteMsgUDP(b, oob []byte, peer *net.UDPAddr) (int, int, error) {
	size := sendSize(oob)
	full := size > 0 && len(b)%size == 0 && len(b)+size > quicBatch && len(b) <= gsoMost
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.held) > 0 && (size == 0 || len(c.held)+len(b) > gsoMost || !bytes.Equal(oob, c.oob) || c.peer.AddrPort() != peer.AddrPort()) {
		c.flush()
	}
	if c.err != nil {
		err := c.err
		c.err = nil
		return 0, 0, err
	}
	if len(c.held) == 0 {
		if !full {
			return c.UDPConn.WriteMsgUDP(b, oob, peer)
		}
		c.oob, c.peer = append(c.oob[:0], oob...), peer
		c.timer.Reset(gsoHold)
	}
	c.held = append(c.held, b...)
	if !full || len(c.held)+len(b) > gsoMost {
		c.flush()
	}
	return len(b), len(oob), nil
}

// flush sends what is held; c.mu is held too.
func (c *gsoConn) flush() {
	if len(c.held) == 0 {
		return
	}
	c.timer.Stop()
	_, _, c.err = c.UDPConn.WriteMsgUDP(c.held, c.oob, c.peer)
	c.held = c.held[:0]
}

// sendSize finds the size of the datagrams in a batch among the control messages, 0 when it is a single one.
func sendSize(oob []byte) int {
	data := controlMessage(oob, udpSegment)
	if len(data) < 2 {
		return 0
	}
	return int(binary.NativeEndian.Uint16(data))
}

// controlMessage returns the data of the first control message of UDP of a kind.
func controlMessage(oob []byte, kind uint32) []byte {
	const headerLen = syscall.SizeofCmsghdr
	for len(oob) >= headerLen {
		length := binary.NativeEndian.Uint64(oob) // cmsg_len of a 64-bit system
		if length < headerLen || length > uint64(len(oob)) {
			return nil
		}
		if binary.NativeEndian.Uint32(oob[8:]) == solUDP && binary.NativeEndian.Uint32(oob[12:]) == kind {
			return oob[headerLen:length]
		}
		next := (length + 7) &^ 7
		if next >= uint64(len(oob)) {
			return nil
		}
		oob = oob[next:]
	}
	return nil
}
