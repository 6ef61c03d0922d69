package quictransport

import (
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/net/ipv4"
)

// Linux's UDP_GRO (udp(7)): the kernel hands over datagrams of one sender that came together as one, with their size beside. It is
// the receiving side of the segmentation offload that quic-go sends with, and saves most of the work per packet.
const (
	solUDP = 17
	udpGRO = 104

	groBuffer = 64 << 10 // the most that the kernel joins
	oobBuffer = 256      // packet info, ECN and the segment size
)

// groConn is a UDP socket whose ReadBatch, which quic-go looks for, takes joined datagrams apart.
type groConn struct {
	*net.UDPConn

	// Of the one goroutine that reads.
	buf  []byte
	oob  []byte
	left []byte // datagrams that were received and not handed out yet
	size int    // of each of them, but for the last
	noob int
	peer netip.AddrPort // of out
	out  *net.UDPAddr
}

// joinDatagrams switches UDP_GRO on; where the kernel does not have it (before 5.0), the socket is used as it is.
func joinDatagrams(c *net.UDPConn) net.PacketConn {
	raw, err := c.SyscallConn()
	if err != nil {
		return c
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = syscall.SetsockoptInt(int(fd), solUDP, udpGRO, 1) }); err != nil || serr != nil {
		return c
	}
	return &groConn{UDPConn: c, buf: make([]byte, groBuffer), oob: make([]byte, oobBuffer)}
}

// ReadBatch fills ms with at least one datagram.
func (c *groConn) ReadBatch(ms []ipv4.Message, _ int) (int, error) {
	for len(c.left) == 0 {
		n, noob, _, from, err := c.ReadMsgUDPAddrPort(c.buf, c.oob)
		if err != nil {
			return 0, err
		}
		c.left, c.noob = c.buf[:n], noob
		if c.size = segmentSize(c.oob[:noob]); c.size == 0 {
			c.size = n
		}
		if from != c.peer || c.out == nil { // quic-go keeps the address: one value for each sender in a row
			c.peer, c.out = from, net.UDPAddrFromAddrPort(from)
		}
	}
	i := 0
	for ; i < len(ms) && len(c.left) > 0; i++ {
		p := c.left[:min(c.size, len(c.left))]
		c.left = c.left[len(p):]
		ms[i].N = copy(ms[i].Buffers[0], p)
		ms[i].NN = copy(ms[i].OOB, c.oob[:c.noob])
		if ms[i].NN < c.noob {
			ms[i].NN = 0 // half a control message is none
		}
		ms[i].Addr = c.out
	}
	return i, nil
}

// segmentSize finds the size of the joined datagrams among the control messages, 0 when they are not joined.
func segmentSize(oob []byte) int {
	data := controlMessage(oob, udpGRO)
	if len(data) < 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(data))
}
