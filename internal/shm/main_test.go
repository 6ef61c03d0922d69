package shm

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary plays its own child processes: $SHM_TEST_ROLE names what to be.
var roles = map[string]func(args []string) error{}

func TestMain(m *testing.M) {
	if role := os.Getenv("SHM_TEST_ROLE"); role != "" {
		if err := roles[role](os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "SHM_TEST_ROLE="+role)
	return cmd
}

// unique returns a segment name that no other test uses and removes what is left of it at the end.
func unique(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("%stest-%d-%d", Prefix, os.Getpid(), time.Now().UnixNano())
	t.Cleanup(func() {
		entries, _ := os.ReadDir(Dir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), name) {
				t.Errorf("left in %s: %s", Dir, e.Name())
				_ = os.Remove(Dir + "/" + e.Name())
			}
		}
	})
	return name
}

// smallDir points Dir at a tmpfs of its own of the given size.
func smallDir(t *testing.T, size string) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	old := Dir
	Dir = dir
	t.Cleanup(func() {
		Dir = old
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}
