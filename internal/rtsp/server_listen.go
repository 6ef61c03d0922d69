package rtsp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
)

// listen binds the TCP ports and the UDP pairs, and hands them to the library when it asks for them: so port 0 works, and a
// taken port is told apart.
func (s *Server) listen() (err error) {
	if s.o.Listen == "" && s.o.ListenTLS == "" {
		return errors.New("RTSP server: no address to listen on")
	}
	s.listener = newListener(s.o.WriteTimeout)
	defer func() {
		if err != nil {
			s.listener.Close()
			s.closeUDP()
		}
	}()
	s.lib.RTSPAddress = ":0" // the library wants one, and gets its connections from the listener
	s.lib.Listen = func(string, string) (net.Listener, error) { return s.listener, nil }
	if s.o.ListenTLS != "" {
		if err := s.listener.listen(s.o.ListenTLS, serverTLS(s.o.Certificate)); err != nil {
			return err
		}
	}
	if s.o.Listen == "" { // what goes over UDP is not encrypted
		return nil
	}
	if err := s.listener.listen(s.o.Listen, nil); err != nil {
		return err
	}
	if s.o.RTPPort >= 0 {
		if s.rtp, s.rtcp, err = listenPair(s.Addr().IP.String(), s.o.RTPPort); err != nil {
			return err
		}
		s.lib.UDPRTPAddress, s.lib.UDPRTCPAddress = s.rtp.LocalAddr().String(), s.rtcp.LocalAddr().String()
	}
	if s.o.Multicast != "" {
		port := s.o.MulticastPort
		if port == 0 {
			a, b, err := listenPair("", 0)
			if err != nil {
				return err
			}
			port = a.LocalAddr().(*net.UDPAddr).Port
			a.Close()
			b.Close()
		}
		s.lib.MulticastIPRange, s.lib.MulticastRTPPort, s.lib.MulticastRTCPPort = s.o.Multicast, port, port+1
	}
	s.lib.ListenPacket = func(network, address string) (net.PacketConn, error) {
		switch address {
		case s.lib.UDPRTPAddress:
			return s.rtp, nil
		case s.lib.UDPRTCPAddress:
			return s.rtcp, nil
		}
		return net.ListenPacket(network, address)
	}
	return nil
}

func (s *Server) closeUDP() {
	if s.rtp != nil {
		s.rtp.Close()
		s.rtcp.Close()
	}
}

func listenError(proto, address string, err error) error {
	why := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		why = "the port is taken by another program (choose another one, or stop it; `ss -ltnup` names it): "
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why = "this host has no such address (`ip addr` shows those it has; leave it out for all of them): "
	case errors.Is(err, os.ErrPermission):
		why = "this user may not, ports below 1024 are root's: choose a larger one: "
	}
	return fmt.Errorf("listen on %s %s: %s%w", proto, address, why, err)
}

// listenPair binds an even UDP port and the one above it, which RTP and RTCP need. port 0 looks for a free pair.
func listenPair(host string, port int) (rtp, rtcp *net.UDPConn, err error) {
	if port%2 != 0 {
		return nil, nil, fmt.Errorf("RTP port %d is odd: RTP takes an even port and RTCP the one above it", port)
	}
	bind := func(port int) (*net.UDPConn, error) {
		address := net.JoinHostPort(host, strconv.Itoa(port))
		c, err := net.ListenPacket("udp", address)
		if err != nil {
			return nil, listenError("UDP", address, err)
		}
		return c.(*net.UDPConn), nil
	}
	for try := 0; ; try++ {
		if rtp, err = bind(port); err == nil {
			n := rtp.LocalAddr().(*net.UDPAddr).Port
			if n%2 == 0 {
				if rtcp, err = bind(n + 1); err == nil {
					return rtp, rtcp, nil
				}
			}
			rtp.Close()
		}
		if port != 0 || try == 100 {
			return nil, nil, err
		}
	}
}
