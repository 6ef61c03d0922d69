package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// smallShm runs the program where /dev/shm has so many bytes and nobody else is in it.
func smallShm(t *testing.T, size string, arg ...string) *testenv.Process {
	t.Helper()
	needRoot(t)
	unshare := testenv.NeedTool(t, "unshare")
	try := exec.Command("true")
	try.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := try.Run(); err != nil {
		testenv.NoMounts(t, fmt.Errorf("mount namespace: %w", err))
	}
	return testenv.Start(t, unshare, append([]string{"-m", "sh", "-c", `mount -t tmpfs -o size="$0" tmpfs /dev/shm && exec "$@"`, size,
		testenv.Binary(t)}, arg...)...)
}

// A /dev/shm that is too small, as it is in a container (64 MB): the message names what is asked, what there is and what to do, before the
// camera is connected to. The ring of the audio counts.
func TestSmallShm(t *testing.T) {
	t.Parallel()
	testenv.Watchdog(t, time.Minute)
	r := &rig{t: t, dir: t.TempDir(), prefix: fmt.Sprintf("f%d-shm-", os.Getpid()), cams: map[string]*camera{}}
	url := fmt.Sprintf("rtsp://127.0.0.1:%d/cam0", r.camera("cam", "--audio").port)
	run := filepath.Join(r.dir, "run")
	for name, c := range map[string]struct {
		size string
		arg  []string
		want string
	}{
		"no room for the video": {"10m", nil, "17 MiB asked, 10 MiB left of 10 MiB in /dev/shm/: ask for fewer bytes, or make it larger (docker: --shm-size"},
		"none for the audio":    {"16900k", nil, "17 MiB asked, 16 MiB left of 16 MiB in /dev/shm/"},
		"the video alone":       {"16900k", []string{"--no-audio"}, ""},
		"both":                  {"17700k", nil, ""},
		"smaller rings":         {"5m", []string{"--packet-bytes", "3MiB"}, ""},
	} {
		p := smallShm(t, c.size, append([]string{"ingest", url, "--key", r.key("cam"), "--runtime-dir", run, "--duration", "1s"}, c.arg...)...)
		err := p.WaitFor(t, 30*time.Second)
		if c.want == "" {
			require.NoError(t, err, "%s: %s", name, p.Stderr())
			require.Contains(t, p.Stderr(), "publishing", name)
			continue
		}
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, name)
		require.Equal(t, 1, exit.ExitCode(), name)
		require.Contains(t, p.Stderr(), c.want, name)
		require.NotContains(t, p.Stderr(), "connected", name)
	}

	// A site says it for all its cameras at once, and those that find room work.
	file := filepath.Join(r.dir, "site.yaml")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`
stagger: 10ms
defaults: {audio: false, source: '%[1]s'}
cameras: {%[2]sa: {}, %[2]sb: {}, %[2]sc: {}}
`, url, r.prefix)), 0o600))
	p := smallShm(t, "40m", "run", file, "--runtime-dir", run)
	testenv.Eventually(t, 20*time.Second, func() error {
		for _, want := range []string{"/dev/shm is too small for the rings of all 3 streams", "48 MiB asked, 40 MiB left of 40 MiB", "KiB left of 40 MiB"} {
			if !strings.Contains(p.Stderr(), want) {
				return errors.New(want)
			}
		}
		return nil
	})
	require.NoError(t, p.Stop(t, os.Interrupt, 30*time.Second))
}
