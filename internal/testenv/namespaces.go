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

// Capabilities that a network namespace and a TUN device in it take (capabilities(7)).
const capNetAdmin, capSysAdmin = 12, 21

// NoNamespaces ends a test that could not have its network namespaces, for the reason err: it is skipped. Under Strict root must be able
// to have them, so that the test fails, unless root has the capabilities and the kernel refuses all the same.
func NoNamespaces(t testing.TB, err error) {
	t.Helper()
	if why := whyNamespaces(err, Strict() && os.Geteuid() == 0, capabilities()); why != "" {
		t.Fatal(why)
	}
	t.Skip(err)
}

// whyNamespaces says what has to be changed for the test to run; "" = nothing can be, or it is not asked for.
func whyNamespaces(err error, must bool, have uint64) string {
	const want = 1<<capNetAdmin | 1<<capSysAdmin
	var refused syscall.Errno
	switch {
	case !must:
		return ""
	case have&want != want:
		return fmt.Sprintf("%v: the container lacks capabilities: --cap-add NET_ADMIN --cap-add SYS_ADMIN", err)
	case errors.As(err, &refused) && refused != syscall.ENOENT: // no such kernel option, or a policy above the capabilities
		return ""
	}
	return fmt.Sprintf("%v: want the ip program (scripts/test installs it) and /dev/net/tun (--device /dev/net/tun)", err)
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
