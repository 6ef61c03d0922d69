package main

import (
	"net"
	"os"
	"strconv"
	"time"
)

// systemd is the service manager that started this process, as sd_notify(3) speaks to it. Without one nothing is said.
type systemd struct {
	address string        // of its socket
	pace    time.Duration // between two signs of life; 0 = none is asked for
	last    time.Time
}

func newSystemd() *systemd {
	s := &systemd{address: os.Getenv("NOTIFY_SOCKET")}
	usec, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	pid := os.Getenv("WATCHDOG_PID")
	if err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		s.pace = time.Duration(usec) * time.Microsecond / 3
	}
	// The stages in processes of their own have nothing to say to it.
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name)
	}
	return s
}

// say sends a state such as READY=1. A manager that does not listen is none of our concern.
func (s *systemd) say(state string) {
	if s.address == "" {
		return
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.address, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte(state))
}

// alive feeds the watchdog, not more often than it asks for.
func (s *systemd) alive() {
	if now := time.Now(); s.pace > 0 && now.Sub(s.last) >= s.pace {
		s.last = now
		s.say("WATCHDOG=1")
	}
}
