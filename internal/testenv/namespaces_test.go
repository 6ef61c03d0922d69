package testenv

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhyPrivileges(t *testing.T) {
	const all = 1<<capNetAdmin | 1<<capSysAdmin
	refused := fmt.Errorf("unshare: %w", syscall.EPERM)
	require.Empty(t, namespaces.why(refused, false, 0), "not asked for")
	require.Contains(t, namespaces.why(refused, true, 0), "--cap-add NET_ADMIN")
	require.Contains(t, namespaces.why(refused, true, 1<<capSysAdmin), "--cap-add NET_ADMIN")
	require.Empty(t, namespaces.why(refused, true, all), "the kernel refuses")
	require.Contains(t, namespaces.why(fmt.Errorf("ip: %w", exec.ErrNotFound), true, all), "the ip program")
	require.Contains(t, namespaces.why(fmt.Errorf("tun: %w", syscall.ENOENT), true, all), "/dev/net/tun")
	require.Contains(t, namespaces.why(errors.New("exit status 2"), true, all), "exit status 2")

	const admin = 1 << capSysAdmin
	require.Empty(t, mounts.why(refused, false, 0), "not asked for")
	require.Contains(t, mounts.why(refused, true, 1<<capNetAdmin), "--cap-add SYS_ADMIN")
	require.Empty(t, mounts.why(refused, true, admin), "the kernel refuses")
	require.Contains(t, mounts.why(fmt.Errorf("sysfs: %w", syscall.EROFS), true, admin), "a /sys that can be written")
	require.Contains(t, mounts.why(errors.New("mount: exit status 32"), true, admin), "loop devices")
}
