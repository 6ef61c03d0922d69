package testenv

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Numbers of capabilities(7).
const capNetAdmin, capSysAdmin = 12, 21

// privilege is what root may have or lack.
type privilege struct {
	capabilities uint64
	flags, tools string // what gives them to a container, and what is wanted besides
}

var (
	// A network namespace and a TUN device in it.
	namespaces = privilege{1<<capNetAdmin | 1<<capSysAdmin, "--cap-add NET_ADMIN --cap-add SYS_ADMIN",
		"the ip program (scripts/test installs it) and /dev/net/tun (--device /dev/net/tun)"}
	// File systems that come and go.
	mounts = privilege{1 << capSysAdmin, "--cap-add SYS_ADMIN", "loop devices (--device /dev/loop-control) and a /sys that can be written"}
)

// NoNamespaces ends a test that could not have its network namespaces, for the reason err: it is skipped. Under Strict root must be able
// to have them, so that the test fails, unless root has the capabilities and the kernel refuses all the same.
func NoNamespaces(t testing.TB, err error) {
	t.Helper()
	namespaces.missing(t, err)
}

// NoMounts is NoNamespaces for a test that could not mount something.
func NoMounts(t testing.TB, err error) {
	t.Helper()
	mounts.missing(t, err)
}

func (p privilege) missing(t testing.TB, err error) {
	t.Helper()
	if why := p.why(err, Strict() && os.Geteuid() == 0, capabilities()); why != "" {
		t.Fatal(why)
	}
	t.Skip(err)
}

// why says what has to be changed for the test to run; "" = nothing can be, or it is not asked for.
func (p privilege) why(err error, must bool, have uint64) string {
	var refused syscall.Errno
	switch {
	case !must:
		return ""
	case have&p.capabilities != p.capabilities:
		return fmt.Sprintf("%v: the container lacks capabilities: %s", err, p.flags)
	case errors.As(err, &refused) && refused != syscall.ENOENT && refused != syscall.EROFS: // no such kernel option, or a policy above the capabilities
		return ""
	}
	return fmt.Sprintf("%v: want %s", err, p.tools)
}

// capabilities are those that this process has in effect; 0 where they cannot be told.
func capabilities() uint64 {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return n
		}
	}
	return 0
}
