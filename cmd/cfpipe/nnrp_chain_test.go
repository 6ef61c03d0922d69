package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/lossylink"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// TestChainAcrossNamespaces: testcam, ingest and infer in one network, the runtime in another, 50 ms round trip and 2 % loss in between,
// all as processes. Results keep coming for pictures that are new, and no process grows.
func TestChainAcrossNamespaces(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	testenv.Watchdog(t, 120*time.Second)
	path, err := lossylink.New(lossylink.Options{OneWay: 25 * time.Millisecond, Loss: 0.02, Seed: 3})
	if errors.Is(err, lossylink.ErrUnavailable) {
		testenv.NoNamespaces(t, err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, path.Close()) }()
	bin := testenv.Binary(t)
	dir, key := testenv.Place(t)
	run := func(end int, a ...string) *testenv.Process {
		var p *testenv.Process
		require.NoError(t, path.On(t.Context(), end, func() error {
			p = testenv.StartCmd(t, exec.Command(bin, a...)) // inherits the network of this thread
			return nil
		}))
		return p
	}
	const far, near = 0, 1
	serve := run(far, "nnrp", "serve", "--listen", lossylink.AddrA+":4433", "--json")
	var at struct{ URL, Fingerprint string }
	testenv.Eventually(t, 20*time.Second, func() error { return json.Unmarshal([]byte(serve.Stdout()), &at) })
	run(near, "testcam", "--listen", "127.0.0.1:8555")
	ingest := run(near, "ingest", "rtsp://127.0.0.1:8555/cam0", "--key", key, "--runtime-dir", dir, "--decode", "cpu")
	infer := run(near, "infer", key, "--runtime-dir", dir, "--to", at.URL, "--fingerprint", at.Fingerprint, "--size", "320x320", "--tile", "32",
		"--in-flight", "4", "--wait", "30s")

	results := func(n int) func() error {
		return func() error {
			if got := strings.Count(infer.Stdout(), "\n"); got < n {
				return fmt.Errorf("%d results of %d", got, n)
			}
			return nil
		}
	}
	testenv.Eventually(t, 60*time.Second, results(30))
	before := [2]int{rss(t, serve), rss(t, infer)}
	testenv.Eventually(t, 60*time.Second, results(90))
	now, newest := time.Now(), struct{ PTS int64 }{}
	lines := bytes.Split(bytes.TrimSpace([]byte(infer.Stdout())), []byte("\n"))
	require.NoError(t, json.Unmarshal(lines[len(lines)-1], &newest))
	behind := now.Sub(time.Unix(0, newest.PTS))
	after := [2]int{rss(t, serve), rss(t, infer)}
	require.NoError(t, infer.Stop(t, syscall.SIGTERM, 20*time.Second))
	require.NoError(t, serve.Stop(t, syscall.SIGTERM, 20*time.Second))
	require.NoError(t, ingest.Stop(t, syscall.SIGTERM, 20*time.Second))

	var first, last struct {
		Seq, PTS  int64
		RoundTrip float64 `json:"round_trip_ms"`
	}
	lines = bytes.Split(bytes.TrimSpace([]byte(infer.Stdout())), []byte("\n"))
	require.NoError(t, json.Unmarshal(lines[0], &first))
	require.NoError(t, json.Unmarshal(lines[len(lines)-1], &last))
	require.GreaterOrEqual(t, last.RoundTrip, 50.0, "the path is in between")
	seconds := float64(last.PTS-first.PTS) / 1e9
	pictures := last.Seq - first.Seq + 1
	t.Logf("%d results for %d pictures in %.1f s, the newest %v old; KiB: runtime %d → %d, infer %d → %d", len(lines), pictures, seconds, behind,
		before[0], after[0], before[1], after[1])
	require.Greater(t, float64(len(lines))/seconds, 3.0, "results a second")
	require.Less(t, int64(len(lines)), pictures, "what the path is too slow for is passed over")
	require.Less(t, behind, 3*time.Second, "and not queued: the results are those of new pictures")
	require.Less(t, after[0], before[0]+16<<10)
	require.Less(t, after[1], before[1]+16<<10)
}

// rss returns a process's resident memory in KiB.
func rss(t *testing.T, p *testenv.Process) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "VmRSS:" {
			n, err := strconv.Atoi(f[1])
			require.NoError(t, err)
			return n
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
