package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// With --json every line of standard output is one JSON value.
func TestJSONLines(t *testing.T) {
	s := newSite(t)
	key := s.key("json")
	cameras := s.start("testcam", "--listen", "127.0.0.1:0", "--count", "2", "--json")
	said := func(n int) []any {
		testenv.Eventually(t, 10*time.Second, func() error {
			if out := cameras.Stdout(); strings.Count(out, "\n") < n {
				return fmt.Errorf("testcam: %q", out)
			}
			return nil
		})
		return linesOfJSON(t, "testcam", cameras.Stdout())
	}
	urls := said(2)
	url, _ := urls[1].(map[string]any)["url"].(string)
	require.Contains(t, url, "/cam1")
	ingest := s.start("ingest", url, "--key", key)
	s.published(key, 10)
	file := filepath.Join(s.out, "%s.mp4")
	for _, c := range []struct {
		args  []string
		lines int
	}{
		{[]string{"ls", "--json"}, 1},
		{[]string{"inspect", key, "--json"}, 1},
		{[]string{"top", "--json", "--interval", "50ms"}, 1},
		{[]string{"top", "--json", "--interval", "50ms", "-n", "3"}, 3},
		{[]string{"doctor", "--json"}, 1}, // the machine may lack something: whatever its status
		{[]string{"snapshot", key, "-o", filepath.Join(s.out, "a.jpg"), "--json"}, 1},
		{[]string{"record", key, "--out", file, "--duration", "1s", "--json"}, 1},
		{[]string{"recordings", "list", "--dir", s.out, "--json"}, 1},
	} {
		out, _ := s.command(c.args...).Output()
		require.Len(t, linesOfJSON(t, strings.Join(c.args, " "), string(out)), c.lines, c.args)
	}
	var stderr strings.Builder
	picture := s.command("snapshot", key, "-o", "-", "--json")
	picture.Stderr = &stderr
	out, err := picture.Output()
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(string(out), "\xff\xd8") && strings.HasSuffix(string(out), "\xff\xd9"), "a JPEG and nothing else")
	require.Contains(t, stderr.String(), `{"age_seconds":`)
	require.NoError(t, ingest.Stop(t, syscall.SIGTERM, 10*time.Second))
	require.EqualValues(t, 1, said(3)[2].(map[string]any)["camera"])
}

func linesOfJSON(t *testing.T, what, out string) (values []any) {
	t.Helper()
	for line := range strings.Lines(out) {
		var v any
		require.NoError(t, json.Unmarshal([]byte(line), &v), "%s: %s", what, line)
		values = append(values, v)
	}
	return values
}
