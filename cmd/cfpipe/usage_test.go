package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline"
)

// Wrong calls exit with 2, and say what would be right.
func TestUsageSays(t *testing.T) {
	testenv.CheckLeaks(t)
	dir := t.TempDir()
	for _, c := range []struct {
		says string
		args []string
	}{
		{`key "front door": use 1 to 57 of a-z A-Z 0-9 _ - (no spaces)`, []string{"ingest", "rtsp://127.0.0.1:1/x", "--key", "front door"}},
		{`key "front door": use 1 to 63 of a-z A-Z 0-9 _ - (no spaces)`, []string{"record", "front door", "--out", "x.mp4"}},
		{"SOURCE is missing: cfpipe ingest rtsp://… --key KEY", []string{"ingest"}},
		{"KEY is missing: cfpipe snapshot KEY", []string{"snapshot"}},
		{"record takes one KEY; start one record for each camera", []string{"record", "a", "b", "--out", "x.mp4"}},
		{"--segment 60: add a unit, for example 60s or 1m", []string{"record", "a", "--out", "x.mp4", "--segment", "60"}},
		{"did you mean --segment?", []string{"record", "a", "--segmnt", "60s"}},
		{"%{cam} is not known: only %{key}", []string{"record", "a", "--out", "%{cam}.mp4"}},
		{"--out x.mp4: format mkv and the name do not agree: it must end in .mkv", []string{"record", "a", "--out", "x.mp4", "--format", "mkv"}},
		{"a recording is fmp4, mkv, ts or mp4", []string{"record", "a", "--out", "x.mp4", "--format", "mov"}},
		{"must end in .mp4, .mkv or .ts", []string{"record", "a", "--out", "x.avi"}},
		{"is a folder", []string{"record", "a", "--out", dir}},
		{"this is no password of one line", []string{"relay", "--username", "u", "--password-file", "/dev/zero"}},
		{"want 1 to 5000 packets a second", []string{"bench", "packets", "--rate", "0"}},
		{"no part \"x\"", []string{"bench", "packets", "--only", "x"}},
		{"1 to 64 readers", []string{"bench", "packets", "--readers", "-1"}},
		{"want 1 to 5000 frames a second", []string{"bench", "frames", "--rate", "99999"}},
		{"no frames of -2×1080 pixels", []string{"bench", "frames", "--width", "-2"}},
		{"a side of 64 to 2048", []string{"bench", "nnrp", "--side", "1"}},
		{"did you mean rtsp://127.0.0.1:8555/cam0?", []string{"ingest", "127.0.0.1:8555/cam0", "--key", "a"}},
		{"fingerprint \"abcd\": it is not a SHA-256 in hex (64 digits)", []string{"ingest", "rtsps://127.0.0.1:1/x",
			"--key", "a", "--fingerprint", "abcd"}},
		{"transport \"tpc\" is not one of auto, tcp, udp, multicast", []string{"ingest", "rtsp://127.0.0.1:1/x", "--key", "a", "--transport", "tpc"}},
		{"--segment -5s: a duration is not negative", []string{"record", "a", "--out", "x.mp4", "--segment", "-5s"}},
		{"cfpipe ls takes flags alone, not \"cam1\"", []string{"ls", "cam1"}},
		{"FILE is missing: cfpipe run FILE", []string{"run"}},
		{"FILE is missing: cfpipe nnrp dump FILE", []string{"nnrp", "dump"}},
		{"KEY is missing: cfpipe bridge KEY --key NEWKEY", []string{"bridge"}},
		{"KEY is missing: cfpipe recordings export KEY", []string{"recordings", "export"}},
		{"--listen \"8653\": want HOST:PORT, or :PORT", []string{"relay", "--listen", "8653"}},
		{"--cert and --key-file", []string{"relay", "--listen-tls", ":1", "--cert", "c.pem"}},
		{"did you mean rtsp://?", []string{"ingest", "rstp://127.0.0.1:8555/cam0", "--key", "a"}},
	} {
		_, err := execute(t.Context(), append(c.args, "--runtime-dir", dir)...)
		require.Equal(t, exitUsage, exitStatus(err), "%v: %v", c.args, err)
		require.Contains(t, err.Error(), c.says)
		require.NotContains(t, err.Error(), "ERR_")
	}
}

func TestNoSuchSource(t *testing.T) {
	_, err := execute(t.Context(), "ingest", "192.0.2.1", "--key", "a", "--runtime-dir", t.TempDir())
	require.Equal(t, exitNotFound, exitStatus(err))
	require.ErrorContains(t, err, "192.0.2.1: no such file or directory; the URL of a camera begins with rtsp://")
}

func TestUnknownCommand(t *testing.T) {
	for line, says := range map[string]string{
		"rcord cam1":              `did you mean "cfpipe record"?`,
		"rcord --help":            `did you mean "cfpipe record"?`,
		"--log-level info nosuch": `unknown command "nosuch" (see`,
		"bench frame --help":      `did you mean "cfpipe bench frames"?`,
		"nnrp serv":               `did you mean "cfpipe nnrp serve"?`,
	} {
		err := checkCommand(newRootCommand(), strings.Fields(line))
		require.Equal(t, exitUsage, exitStatus(err), line)
		require.ErrorContains(t, err, says)
	}
	for _, line := range []string{"", "--help", "--version", "version", "record cam1", "bench frames --help",
		"--runtime-dir x ls", "help record", "completion bash"} {
		require.NoError(t, checkCommand(newRootCommand(), strings.Fields(line)), line)
	}
	out, err := execute(t.Context(), "version")
	require.NoError(t, err)
	require.Equal(t, "cfpipe version "+version+"\n", out)
}

func TestRecordFormat(t *testing.T) {
	for _, c := range []struct {
		format, out string
		want        mux.Format
	}{
		{"", "a.mp4", mux.FMP4}, {"", "a.MKV", mux.MKV}, {"", "%H.ts", mux.TS}, {"mp4", "a.mp4", mux.MP4},
		{"fmp4", "a.mp4", mux.FMP4}, {"ts", "a.ts", mux.TS},
	} {
		f, err := recordFormat(c.format, c.out)
		require.NoError(t, err)
		require.Equal(t, c.want, f, c.out)
	}
	for _, c := range []struct{ format, out, says string }{
		{"", "a.avi", "must end in .mp4, .mkv or .ts"}, {"mkv", "a.mp4", "must end in .mkv"}, {"mp4", "a.ts", "must end in .mp4"},
		{"nut", "a.ts", "fmp4, mkv, ts or mp4"},
		{"", t.TempDir(), "is a folder"},
	} {
		_, err := recordFormat(c.format, c.out)
		require.ErrorContains(t, err, c.says)
	}
}

// A wait that ends in vain is a timeout, and the absence of a key without one is no such key.
func TestWaitEnds(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"record", "packets", "frames"} {
		line := []string{name, "nobody", "--runtime-dir", dir}
		if name == "record" {
			line = append(line, "--out", filepath.Join(dir, "x.mp4"))
		}
		_, err := execute(t.Context(), line...)
		require.Equal(t, exitNotFound, exitStatus(err), name)
		require.ErrorContains(t, err, "it has not reached the camera yet")
		c, _, found := newRootCommand().Find(line)
		require.NoError(t, found)
		require.ErrorContains(t, waitHint(c, err), "; --wait 30s waits for it")
		require.Equal(t, exitNotFound, exitStatus(waitHint(c, err)))
		_, err = execute(t.Context(), append(line, "--wait", "50ms")...)
		require.Equal(t, exitTimeout, exitStatus(err), name)
		require.ErrorContains(t, err, "after waiting 50ms")
	}
}

// What cannot be written is no missing key.
func TestWriteFailure(t *testing.T) {
	require.Equal(t, exitFailed, exitStatus(fmt.Errorf("record: %w", &mux.WriteError{Err: os.ErrNotExist})))
	require.Equal(t, exitNotFound, exitStatus(os.ErrNotExist))
}

// The last line of a command that fails is JSON where the log is.
func TestFailureInJSON(t *testing.T) {
	cmd := newSite(t).command("packets", "nobody", "--log-format", "json")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.Error(t, cmd.Run())
	require.Equal(t, exitNotFound, cmd.ProcessState.ExitCode())
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	require.Contains(t, lines[len(lines)-1], `"exit_status":3`)
}

// Another user's key is no dead one: a row says so, and one note below the table what to do.
func TestNoAccess(t *testing.T) {
	keys := []pipeline.KeyStatus{{Key: "a", NoAccess: true, Error: "denied"}, {Key: "b", Alive: true, PID: 7},
		{Key: "c", NoAccess: true, Error: "denied"}}
	var out strings.Builder
	require.NoError(t, printKeys(&out, keys))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 5)
	require.Equal(t, []string{"a", "no", "access"}, strings.Fields(lines[1]))
	require.Equal(t, []string{"c", "no", "access"}, strings.Fields(lines[3]))
	require.Contains(t, lines[4], "--group")
	require.NotContains(t, out.String(), "denied")

	out.Reset()
	require.NoError(t, printKey(&out, keys[0], true))
	require.Contains(t, out.String(), "no access")
	require.NotContains(t, out.String(), "dead")

	b, err := json.Marshal(keys[:2])
	require.NoError(t, err)
	var got []map[string]any
	require.NoError(t, json.Unmarshal(b, &got))
	require.Contains(t, got[0], "alive")
	require.Nil(t, got[0]["alive"])
	require.Nil(t, got[0]["pid"])
	require.Equal(t, "denied", got[0]["error"])
	require.Equal(t, true, got[1]["alive"])
	require.EqualValues(t, 7, got[1]["pid"])
}

func TestSnapshotMakesFolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "folder", "a.jpg")
	require.NoError(t, writeWhole(path, []byte("x")))
	require.FileExists(t, path)
}

// A key that nobody decodes has no frames, and a wait for them that ends in vain is a timeout.
func TestFramesWaitEnds(t *testing.T) {
	dir, key, _ := publishTestStream(t)
	_, err := execute(t.Context(), "frames", key, "--runtime-dir", dir)
	require.Equal(t, exitFailed, exitStatus(err))
	require.ErrorContains(t, err, "cfpipe decode "+key+" --key NEW")
	_, err = execute(t.Context(), "frames", key, "--runtime-dir", dir, "--wait", "50ms")
	require.Equal(t, exitTimeout, exitStatus(err))
	require.ErrorContains(t, err, "nobody decodes it after waiting 50ms")
}

// A key that is published for another runtime directory, as by a shell without the variable, and a runtime directory that is none.
func TestOtherRuntimeDir(t *testing.T) {
	dir, key, _ := publishTestStream(t)
	_, err := execute(t.Context(), "packets", key, "--runtime-dir", t.TempDir())
	require.Equal(t, exitNotFound, exitStatus(err))
	require.ErrorContains(t, err, fmt.Sprintf("; pid %d publishes it with another --runtime-dir or $CUFRAMES_RUNTIME_DIR", os.Getpid()))
	_, err = execute(t.Context(), "packets", key+"x", "--runtime-dir", dir)
	require.ErrorContains(t, err, "(published here: "+key+"); if its ingest runs")
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, framering.CheckRuntimeDir(file), "not a directory (choose another with --runtime-dir)")
}
