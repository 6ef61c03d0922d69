package shm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// roles are what the test binary can be as its own child process.
var roles = testenv.Roles{}

func TestMain(m *testing.M) { roles.Main(m) }

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
		testenv.NoMounts(t, fmt.Errorf("mount a tmpfs: %w", err))
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
