package main

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func ingestPlace(t *testing.T) (dir, key string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cf")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir, "in-" + rand.Text()[:10]
}

func published(dir string, keys ...string) error {
	list, err := framering.List(dir)
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, p := range list {
		have[p.Key] = p.Alive
	}
	for _, k := range keys {
		if !have[k] {
			return fmt.Errorf("%s is not published", k)
		}
	}
	return nil
}

func TestIngestUsage(t *testing.T) {
	dir, key := ingestPlace(t)
	for _, c := range []struct {
		status int
		args   []string
	}{
		{exitUsage, nil},
		{exitUsage, []string{"rtsp://127.0.0.1/"}},
		{exitUsage, []string{"rtsp://127.0.0.1/", "--key", "no spaces"}},
		{exitUsage, []string{"rtsp://127.0.0.1/", "--key", strings.Repeat("x", 64)}},
		{exitUsage, []string{"rtsp://127.0.0.1/", "--key", key, "--transport", "pigeon"}},
		{exitUsage, []string{"rtsp://127.0.0.1/", "--key", key, "--protocol", "3"}},
		{exitUsage, []string{"rtsp://127.0.0.1/", "--key", key, "--packet-bytes", "lots"}},
		{exitUsage, []string{"rtsp://127.0.0.1/", "--key", key, "--packet-slots", "5000"}},
		{exitUsage, []string{"rtsp://127.0.0.1/", "--key", key, "--loop"}},
		{exitUsage, []string{"rtsp://", "--key", key}},
		{exitNotFound, []string{dir + "/missing.mp4", "--key", key}},
		{exitNotFound, []string{"rtsp://127.0.0.1/", "--key", key, "--username", "u", "--password-file", dir + "/missing"}},
		{exitUsage, []string{"rtsp://127.0.0.1/", "--key", key, "--username", "u", "--password-file", "/dev/zero"}},
	} {
		_, err := execute(t.Context(), append([]string{"ingest", "--runtime-dir", dir}, c.args...)...)
		require.Equal(t, c.status, exitStatus(err), "%v: %v", c.args, err)
	}
}

// A camera, a password from a file, SIGINT: the key comes, nothing stays, the password is nowhere to be seen.
func TestIngestCamera(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	bin := testenv.Binary(t)
	clip, err := testcam.EmbeddedClip("h264", true)
	require.NoError(t, err)
	camera, err := testcam.Start(testcam.Options{Clip: clip, Username: "admin", Password: `p@s"s:/?#w$rd`})
	require.NoError(t, err)
	t.Cleanup(camera.Close)
	dir, key := ingestPlace(t)
	file := filepath.Join(dir, "password")
	require.NoError(t, os.WriteFile(file, []byte("p@s\"s:/?#w$rd\n"), 0o600))
	p := testenv.Start(t, bin, "ingest", camera.URL(0), "--key", key, "--runtime-dir", dir, "--username", "admin",
		"--password-file", file, "--log-level", "debug")
	testenv.Eventually(t, 20*time.Second, func() error { return published(dir, key, key+"-audio") })
	require.Equal(t, 1, camera.Sessions())

	// the key is taken: said at once, the first goes on
	out, err := exec.Command(bin, "ingest", camera.URL(0), "--key", key, "--runtime-dir", dir).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), fmt.Sprintf("key %q is published by pid %d (at ", key, p.Process.Pid))
	other, _ := exec.Command(bin, "ingest", camera.URL(0), "--key", key, "--runtime-dir", t.TempDir()).CombinedOutput()
	require.Contains(t, string(other), "another --runtime-dir")

	require.NoError(t, p.Stop(t, syscall.SIGINT, 10*time.Second), "status 0")
	require.NotContains(t, p.Stderr()+p.Stdout(), `p@s`)
	require.NotContains(t, p.Stderr(), "cfpipe: ")
	require.Empty(t, p.Stdout())
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := camera.Sessions(); n != 0 {
			return fmt.Errorf("%d sessions are left at the camera", n)
		}
		return nil
	})
	left, err := filepath.Glob("/dev/shm/cuframes-" + key + "*")
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoFileExists(t, framering.SocketPath(dir, key))
}

// A camera that is not there yet, and goes away, and comes back: within 2 s of its answer the packets go on, in the same ring.
func TestIngestComesBack(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	bin := testenv.Binary(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	l.Close()
	dir, key := ingestPlace(t)
	p := testenv.Start(t, bin, "ingest", "rtsp://"+address+"/cam0", "--key", key, "--runtime-dir", dir, "--timeout", "2s", "--no-audio")
	testenv.Eventually(t, 10*time.Second, func() error {
		if !strings.Contains(p.Stderr(), "cannot connect") {
			return fmt.Errorf("no attempt yet")
		}
		return nil
	})
	require.NotContains(t, p.Stderr(), "connection lost")
	camera, err := testcam.Start(testcam.Options{Listen: address})
	require.NoError(t, err)
	testenv.Eventually(t, 10*time.Second, func() error { return published(dir, key) })
	ring := ringInode(t, key)
	camera.Close()
	testenv.Eventually(t, 10*time.Second, func() error {
		if !strings.Contains(p.Stderr(), "connection lost") {
			return fmt.Errorf("the loss is not noticed")
		}
		return nil
	})
	camera, err = testcam.Start(testcam.Options{Listen: address})
	require.NoError(t, err)
	t.Cleanup(camera.Close)
	testenv.Eventually(t, 10*time.Second, func() error {
		if camera.Sessions() == 0 {
			return fmt.Errorf("not connected again")
		}
		return nil
	})
	require.NoError(t, published(dir, key))
	require.Equal(t, ring, ringInode(t, key), "the ring has lived on")
	require.NoError(t, p.Stop(t, syscall.SIGTERM, 10*time.Second))
}

func ringInode(t *testing.T, key string) uint64 {
	t.Helper()
	st, err := os.Stat("/dev/shm/" + framering.PacketShmName(key))
	require.NoError(t, err)
	return st.Sys().(*syscall.Stat_t).Ino
}

// Files and standard input.
func TestIngestFiles(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	bin := testenv.Binary(t)
	dir, key := ingestPlace(t)
	clip := filepath.Join(dir, "clip.ts")
	testenv.FFmpeg(t, "-f", "lavfi", "-i", "testsrc2=s=320x180:r=25:d=2",
		"-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-pix_fmt", "yuv420p", clip)

	looped := testenv.Start(t, bin, "ingest", clip, "--key", key, "--runtime-dir", dir, "--loop", "--realtime", "--duration", "5s")
	testenv.Eventually(t, 10*time.Second, func() error { return published(dir, key) })
	packets := exec.Command(bin, "packets", key, "--runtime-dir", dir, "--format", "annexb", "--count", "60")
	stream, err := packets.Output()
	require.NoError(t, err)
	require.Greater(t, len(stream), 1000, "60 access units are more than the clip: it loops")
	require.NoError(t, looped.WaitFor(t, 20*time.Second), "--duration ends with status 0")

	f, err := os.Open(clip)
	require.NoError(t, err)
	defer f.Close()
	cmd := exec.Command(bin, "ingest", "-", "--key", key, "--runtime-dir", dir)
	cmd.Stdin = f
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "publishing")
}
