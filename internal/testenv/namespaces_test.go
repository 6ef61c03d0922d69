package testenv

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhyNoNamespaces(t *testing.T) {
	const all = 1<<capNetAdmin | 1<<capSysAdmin
	refused := fmt.Errorf("unshare: %w", syscall.EPERM)
	require.Empty(t, whyNamespaces(refused, false, 0), "not asked for")
	require.Contains(t, whyNamespaces(refused, true, 0), "--cap-add NET_ADMIN")
	require.Contains(t, whyNamespaces(refused, true, 1<<capSysAdmin), "--cap-add NET_ADMIN")
	require.Empty(t, whyNamespaces(refused, true, all), "the kernel refuses")
	require.Contains(t, whyNamespaces(fmt.Errorf("ip: %w", exec.ErrNotFound), true, all), "the ip program")
	require.Contains(t, whyNamespaces(fmt.Errorf("tun: %w", syscall.ENOENT), true, all), "/dev/net/tun")
	require.Contains(t, whyNamespaces(errors.New("exit status 2"), true, all), "exit status 2")
}
