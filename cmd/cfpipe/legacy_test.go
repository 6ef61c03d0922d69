package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A camera in protocol 2, without a GPU: every reader finds the version by itself, and what a bridge makes of it is the same stream.
func TestProtocol2(t *testing.T) {
	s := newSite(t)
	ffprobe := testenv.NeedTool(t, "ffprobe")
	key := s.key("two")
	four, again := key+"-4", key+"-2"
	url := s.camera()
	ingest := s.start("ingest", url, "--key", key, "--protocol", "2")
	s.published(key, 10)
	p, err := framering.Inspect(s.run, key)
	require.NoError(t, err)
	require.EqualValues(t, 2, p.Header.Version)
	bridges := []*testenv.Process{s.start("bridge", key, "--key", four), s.start("bridge", four, "--key", again, "--protocol", "2")}
	s.published(again, 10)

	out, err := s.command("ls", "--json").Output()
	require.NoError(t, err)
	var list []struct {
		Key      string `json:"key"`
		Protocol uint32 `json:"protocol"`
		Error    string `json:"error"`
	}
	require.NoError(t, json.Unmarshal(out, &list))
	versions := map[string]uint32{}
	for _, l := range list {
		require.Empty(t, l.Error)
		versions[l.Key] = l.Protocol
	}
	require.EqualValues(t, 2, versions[key])
	require.EqualValues(t, 4, versions[four])
	require.EqualValues(t, 2, versions[again])

	for _, k := range []string{key, four, again} {
		file := filepath.Join(t.TempDir(), "packets.ts")
		f, err := os.Create(file)
		require.NoError(t, err)
		cmd := s.command("packets", k, "--duration", "1s")
		cmd.Stdout = f
		packets := testenv.StartCmd(t, cmd)
		require.NoError(t, packets.WaitFor(t, 30*time.Second), packets.Stderr())
		require.NoError(t, f.Close())
		checked, err := exec.Command(ffprobe, "-v", "error", "-count_packets", "-show_entries", "stream=codec_name,nb_read_packets",
			"-of", "csv=p=0", file).CombinedOutput()
		require.NoError(t, err, string(checked))
		require.Contains(t, string(checked), "h264", k)
	}
	for _, k := range []string{key, again} {
		record := s.start("record", k, "--out", filepath.Join(s.out, "%{key}-%H%M%S.mp4"), "--duration", "2s", "--json", "--no-audio")
		require.NoError(t, record.WaitFor(t, 40*time.Second), record.Stderr())
		segments := s.segments(record)
		require.NotEmpty(t, segments)
		require.Greater(t, checkSegment(t, segments[0].Path), 10)
	}
	relay := s.start("relay", key, "--listen", "127.0.0.1:0")
	relayed, err := exec.Command(ffprobe, "-v", "error", "-rtsp_transport", "tcp", "-read_intervals", "%+#10", "-show_entries", "packet=flags",
		"-of", "csv=p=0", s.line(relay)).CombinedOutput()
	require.NoError(t, err, string(relayed))
	require.True(t, strings.HasPrefix(string(relayed), "K"), "%s", relayed)
	picture := filepath.Join(t.TempDir(), "a.jpg")
	snapshot, err := s.command("snapshot", key, "-o", picture).CombinedOutput()
	require.NoError(t, err, string(snapshot))
	require.FileExists(t, picture)

	for _, p := range append(bridges, relay, ingest) {
		require.NoError(t, p.Process.Signal(os.Interrupt))
		require.NoError(t, p.WaitFor(t, 20*time.Second), p.Stderr())
	}
	for _, k := range []string{key, four, again} {
		require.Empty(t, s.leftovers(k))
	}
}

func TestProtocolUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"ingest", "x.mp4", "--key", "a", "--protocol", "3"}, "want 4, 2 or 1"},
		{[]string{"ingest", "x.mp4", "--key", "a", "--protocol", "1"}, "needs --decode"},
		{[]string{"bridge", "a"}, "--key is missing"},
		{[]string{"bridge", "a", "--key", "b", "--protocol", "3"}, "want 4, 2 or 1"},
		{[]string{"bridge", "a", "--key", "a"}, "to itself"},
		{[]string{"bridge", "a", "--key", "b", "--policy", "x"}, "--policy"},
	} {
		_, err := execute(t.Context(), append(c.args, "--runtime-dir", t.TempDir())...)
		var usage usageError
		require.ErrorAs(t, err, &usage, strings.Join(c.args, " "))
		require.ErrorContains(t, err, c.says)
	}
}
