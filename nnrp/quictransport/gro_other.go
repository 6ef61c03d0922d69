//go:build !linux

package quictransport

import "net"

func joinDatagrams(c *net.UDPConn) net.PacketConn { return c }

func joinBatches(c net.PacketConn) net.PacketConn { return c }
