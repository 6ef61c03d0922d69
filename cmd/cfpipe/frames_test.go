package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/jpeg"
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

// The pictures that leave the commands are ffmpeg's, byte for byte: a camera that decodes by itself, and a decoder as a process of its own.
func TestFramesEqualFFmpeg(t *testing.T) {
	testenv.Watchdog(t, 90*time.Second)
	bin, ffmpeg := testenv.Binary(t), testenv.NeedTool(t, "ffmpeg")
	for name, c := range map[string]struct {
		size, pixels string
		sampleBytes  int
		encode       []string
	}{
		"h264 1080": {"1920x1080", "nv12", 1, []string{"-c:v", "libx264", "-preset", "ultrafast", "-g", "12", "-bf", "2"}},
		"h265 10 bit": {"640x360", "p010le", 2, []string{"-c:v", "libx265", "-preset", "ultrafast", "-pix_fmt", "yuv420p10le",
			"-x265-params", "log-level=none:keyint=12:bframes=2"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "cf")
			require.NoError(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			key := fmt.Sprintf("frames-%d-%d", os.Getpid(), len(name))
			clip := filepath.Join(dir, "clip.mkv")
			arg := append([]string{"-v", "error", "-f", "lavfi", "-i", "testsrc2=s=" + c.size + ":r=25", "-frames:v", "75"}, append(c.encode, clip)...)
			out, err := exec.Command(ffmpeg, arg...).CombinedOutput()
			require.NoError(t, err, string(out))
			raw, err := exec.Command(ffmpeg, "-v", "error", "-i", clip, "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", c.pixels, "-").Output()
			require.NoError(t, err)
			var w, h int
			_, err = fmt.Sscanf(c.size, "%dx%d", &w, &h)
			require.NoError(t, err)
			size := w * h * 3 / 2 * c.sampleBytes
			require.Len(t, raw, 75*size)

			// The readers are there first, and decoding waits for them: on a busy machine too they see the clip's 3 s.
			read := func(key string) *testenv.Process {
				return testenv.StartCmd(t, exec.Command(bin, "--runtime-dir", dir, "frames", key, "-f", "raw", "--json", "--count", "20",
					"--wait", "30s", "--log-level", "error"))
			}
			own, other := read(key), read(key+"-d")
			patient := []string{"--policy", "strict-wait", "--ack-timeout", "20s"}
			dec := testenv.Start(t, bin, append([]string{"--runtime-dir", dir, "decode", key, "--key", key + "-d", "--decode", "auto", "--frame-slots", "8",
				"--wait", "30s"}, patient...)...)
			in := testenv.Start(t, bin, append([]string{"--runtime-dir", dir, "ingest", clip, "--key", key, "--realtime", "--no-audio",
				"--decode", "cpu"}, patient...)...)
			snap := filepath.Join(dir, "snap.jpg")
			for key, p := range map[string]*testenv.Process{key: own, key + "-d": other} {
				require.NoError(t, p.WaitFor(t, 30*time.Second))
				pixels := []byte(p.Stdout())
				require.Equal(t, 20*size, len(pixels), "bytes of pictures of %s", key)
				lines := strings.Split(strings.TrimSpace(p.Stderr()), "\n")
				require.Len(t, lines, 20)
				var offset int64 = -1
				for i, line := range lines {
					var m struct {
						Seq           int64 `json:"seq"`
						Width, Height int
					}
					require.NoError(t, json.Unmarshal([]byte(line), &m))
					require.Equal(t, [2]int{w, h}, [2]int{m.Width, m.Height})
					got := pixels[i*size : (i+1)*size]
					if offset < 0 { // the decoder of another process may have begun at a later keyframe
						for offset = 0; offset < 75 && !bytes.Equal(got, raw[offset*int64(size):(offset+1)*int64(size)]); offset++ {
						}
						offset -= m.Seq
					}
					n := m.Seq + offset
					require.Less(t, n, int64(75), "%s: picture %d is none of ffmpeg's", key, m.Seq)
					require.True(t, bytes.Equal(got, raw[n*int64(size):(n+1)*int64(size)]), "%s: picture %d", key, m.Seq)
				}
				if c.sampleBytes == 1 {
					out, err := exec.Command(bin, "--runtime-dir", dir, "snapshot", key, "-o", snap).CombinedOutput()
					if err == nil { // the clip may have ended by now
						f, err := os.Open(snap)
						require.NoError(t, err)
						cfg, err := jpeg.DecodeConfig(f)
						f.Close()
						require.NoError(t, err)
						require.Equal(t, [2]int{w, h}, [2]int{cfg.Width, cfg.Height})
					} else {
						require.Contains(t, string(out), "no")
					}
				}
			}
			require.NoError(t, in.WaitFor(t, 20*time.Second))
			require.NoError(t, dec.Stop(t, syscall.SIGTERM, 10*time.Second))
			left, err := filepath.Glob("/dev/shm/cuframes-" + key + "*")
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestFramesAndSnapshotRefuse(t *testing.T) {
	bin := testenv.Binary(t)
	dir := t.TempDir()
	for _, c := range []struct {
		status int
		text   string
		arg    []string
	}{
		{exitNotFound, "no publisher", []string{"frames", "nobody"}},
		{exitNotFound, "no publisher", []string{"snapshot", "nobody", "-o", dir + "/a.jpg"}},
		{exitNotFound, "no publisher", []string{"decode", "nobody", "--key", "x"}},
		{exitUsage, "--format", []string{"frames", "nobody", "-f", "mp4"}},
		{exitUsage, "must end in", []string{"snapshot", "nobody", "-o", dir + "/a.gif"}},
		{exitUsage, "--key", []string{"decode", "nobody"}},
		{exitUsage, "--policy", []string{"decode", "nobody", "--key", "x", "--policy", "never"}},
		{exitUsage, "want auto, cuda or cpu", []string{"decode", "nobody", "--key", "x", "--decode", "gpu"}},
	} {
		out, err := exec.Command(bin, append([]string{"--runtime-dir", dir}, c.arg...)...).CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%v", c.arg)
		require.Equal(t, c.status, exit.ExitCode(), "%v: %s", c.arg, out)
		require.Contains(t, string(out), c.text)
	}
}
