package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

// listedFile is a line of recordings list --json.
type listedFile struct {
	Key, Path, State, Codecs string
	Start, End               time.Time
	Packets, Lost            *int64
}

func listedFiles(t *testing.T, out string) (list []listedFile) {
	t.Helper()
	for line := range strings.Lines(out) {
		var f listedFile
		require.NoError(t, json.Unmarshal([]byte(line), &f), line)
		list = append(list, f)
	}
	return list
}

// A recorder is killed and another one takes over with --pre: both share an index. What they have recorded is listed and joined into one file in
// which every access unit is once, with the index, without it, and after it was made anew.
func TestRecordings(t *testing.T) {
	testenv.NeedTool(t, "ffprobe")
	s := newSite(t)
	key, dir := s.key("door"), s.out
	s.start("ingest", s.camera("--audio"), "--key", key)
	s.published(key, 30)
	index := filepath.Join(dir, "index.db")
	record := func(pre string) *testenv.Process {
		return s.start("record", key, "--out", filepath.Join(dir, "%{key}", "%s-%f.mp4"), "--segment", "4s", "--index", index, "--pre", pre, "--json")
	}
	run := func(arg ...string) (string, error) {
		return execute(t.Context(), append([]string{"recordings"}, arg...)...)
	}
	has := func(n int, state string) {
		t.Helper()
		testenv.Eventually(t, 30*time.Second, func() error {
			out, err := run("list", key, "--index", index, "--json")
			if err != nil {
				return err
			}
			got := 0
			for _, f := range listedFiles(t, out) {
				if f.State == state && f.End.After(f.Start) { // of one that has just begun nothing is left when its recorder is killed
					got++
				}
			}
			if got < n {
				return fmt.Errorf("%d %s files: %s", got, state, out)
			}
			return nil
		})
	}
	first := record("0s")
	has(2, "finished")
	has(1, "recording")
	first.Kill()
	second := record("5s")
	has(1, "cut")
	has(4, "finished")
	require.NoError(t, second.Stop(t, syscall.SIGTERM, 20*time.Second))

	out, err := run("list", key, "--index", index, "--json")
	require.NoError(t, err)
	files := listedFiles(t, out)
	states := map[string]int{}
	for _, f := range files {
		states[f.State]++
		require.Equal(t, []any{key, "h264+aac"}, []any{f.Key, f.Codecs})
		require.NotNil(t, f.Lost)
		require.Zero(t, *f.Lost)
	}
	require.Equal(t, 1, states["cut"])
	require.Zero(t, states["recording"])
	table, err := run("list", key, "--index", index)
	require.NoError(t, err)
	require.Contains(t, table, "KEY")
	require.NotContains(t, table, "nothing", "the files overlap")

	from, to := files[0].Start.Format(time.RFC3339Nano), files[len(files)-1].End.Format(time.RFC3339Nano)
	export := func(name string, arg ...string) exportLine {
		t.Helper()
		out, err := run(append([]string{"export", key, "--from", from, "--to", to, "-o", filepath.Join(dir, name), "--json"}, arg...)...)
		require.NoError(t, err, out)
		var line exportLine
		require.NoError(t, json.Unmarshal([]byte(out), &line), out)
		require.Empty(t, line.Gaps)
		require.InDelta(t, line.End.Sub(line.Start).Seconds()*25, line.Packets, 0.01, "25 a second, each once")
		return line
	}
	a := export("a.mp4", "--index", index)
	for i, from := range [][]string{{"--dir", dir}, {"--index", index, "--format", "mp4"}} {
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "a.mp4")))
		b := export(fmt.Sprintf("b%d.mp4", i), from...)
		require.Equal(t, []int{a.Packets, a.AudioPackets}, []int{b.Packets, b.AudioPackets})
		require.NoError(t, os.Remove(b.Path))
	}
	require.NoError(t, os.Remove(index))
	_, err = run("list", key, "--index", index)
	require.Equal(t, exitNotFound, exitStatus(err), err)
	out, err = run("rebuild", "--index", index, "--dir", dir)
	require.NoError(t, err)
	require.Contains(t, out, fmt.Sprintf("%d recordings, %d of them read", len(files), len(files)))
	require.Equal(t, a.Packets, export("c.mkv", "--index", index).Packets)

	// What exists stays; what is not there has its status.
	precious := filepath.Join(dir, "precious.mp4")
	require.NoError(t, os.WriteFile(precious, []byte("precious"), 0o600))
	_, err = run("export", key, "--index", index, "--from", from, "-o", precious)
	require.Equal(t, exitFailed, exitStatus(err), err)
	require.ErrorContains(t, err, "--force")
	_, err = run("export", key, "--index", index, "--from", from, "-o", filepath.Join(dir, "no", "folder.mp4"))
	require.Equal(t, exitFailed, exitStatus(err), err)
	for _, arg := range [][]string{
		{"export", key, "--index", index, "--from", "2020-01-01", "--to", "2020-01-02", "-o", filepath.Join(dir, "x.mp4")},
		{"export", "nope", "--index", index, "--from", "-1h", "-o", filepath.Join(dir, "x.mp4")},
		{"list", "nope", "--index", index}, {"list", key, "nope", "--index", index}, {"list", "--dir", filepath.Join(dir, "none")}, {"list", "--site", filepath.Join(dir, "none.yaml")},
	} {
		_, err = run(arg...)
		require.Equal(t, exitNotFound, exitStatus(err), "%v: %v", arg, err)
		if slices.Contains(arg, "nope") {
			require.ErrorContains(t, err, "no recordings of nope; there are "+key)
		}
	}
	require.NoFileExists(t, filepath.Join(dir, "x.mp4"))
	left, err := filepath.Glob(filepath.Join(dir, "*.part"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// The table keeps its columns at a gap.
func TestPrintRecordings(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	file := func(from, to time.Duration) recordings.File {
		return recordings.File{Key: "door", Path: "/v/x.mp4", Start: at.Add(from), End: at.Add(to), Bytes: 1, Finished: true}
	}
	var b strings.Builder
	first, second := file(0, time.Minute), file(2*time.Minute, 3*time.Minute)
	first.Cause, second.Cause = "continuous", "event: bell rung"
	require.NoError(t, printRecordings(&b, []recordings.File{first, second}))
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 4)
	for _, l := range lines[1:] {
		require.Equal(t, strings.Index(lines[0], "LENGTH"), strings.Index(l, "1m0s"), b.String())
	}
	require.Equal(t, strings.Index(lines[0], "STATE"), strings.Index(lines[2], "nothing"), b.String())
	require.Equal(t, strings.Index(lines[0], "RECORDING"), strings.Index(lines[1], "continuous"), b.String())
	require.Equal(t, strings.Index(lines[0], "RECORDING"), strings.Index(lines[3], "event: bell rung"), b.String())
	for _, f := range []recordings.File{first, second} {
		var got map[string]any
		line, err := json.Marshal(f)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(line, &got))
		kind, _, _ := strings.Cut(f.Cause, ":")
		require.Equal(t, kind, got["recording"])
	}
}

// A message about nothing says what there is.
func TestNothing(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.Local)
	spans := []recordings.Span{{Key: "nc0", From: at, To: at.Add(time.Hour)}, {Key: "nc1", From: at, To: at.Add(2 * time.Hour)}}
	for _, c := range []struct {
		e    nothingError
		says string
	}{
		{nothingError{[]string{"nc9"}, spans}, "no recordings of nc9; there are nc0, nc1"},
		{nothingError{[]string{"nc1"}, spans}, "nothing is recorded then: nc1 has recordings from 2026-11-30 12:00:00 to 2026-11-30 14:00:00"},
		{nothingError{[]string{"nc1"}, nil}, "nothing is recorded there at all"},
	} {
		require.Equal(t, c.says, c.e.Error())
		require.Equal(t, exitNotFound, exitStatus(&c.e))
	}
}

// A time without a day is today's: just after midnight 23:50 is still to come.
func TestSpanOfToday(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 5, 0, 0, time.Local)
	for _, s := range []spanFlags{{from: "23:50"}, {from: "23:50", to: "00:04"}} {
		from, err := recordings.ParseTime(s.from, now)
		require.NoError(t, err)
		to, err := recordings.ParseTime(s.to, now)
		require.NoError(t, err)
		err = s.check(from, to, now)
		require.ErrorContains(t, err, `yesterday's is "2026-11-30 23:50:00"`)
		require.Equal(t, exitUsage, exitStatus(err))
	}
	s := spanFlags{from: "00:01", to: "00:04"}
	require.NoError(t, s.check(now.Add(-4*time.Minute), now.Add(-time.Minute), now))
}

// exportLine is what export --json prints.
type exportLine struct {
	Path         string
	Start, End   time.Time
	Packets      int
	AudioPackets int `json:"audio_packets"`
	Gaps         []any
}

// Wrong calls say what would be right.
func TestRecordingsUsage(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("CFPIPE_SITE", "")
	for _, c := range []struct {
		says string
		arg  []string
	}{
		{"Say --site site.yaml, --index FILE or --dir DIR", []string{"list"}},
		{"want 2026-11-30T12:00:00Z", []string{"list", "--dir", dir, "--from", "yesterday"}},
		{"is not before --to", []string{"list", "--dir", dir, "--from", "-1h", "--to", "-2h"}},
		{"no spaces", []string{"list", "--dir", dir, "front door"}},
		{"--from is missing", []string{"export", "a", "--dir", dir, "-o", "x.mp4"}},
		{"want -o FILE", []string{"export", "a", "--dir", dir, "--from", "-1h"}},
		{"must end in .mp4, .mkv or .ts", []string{"export", "a", "--dir", dir, "--from", "-1h", "-o", "x.avi"}},
		{"to standard output it is fmp4, mkv or ts", []string{"export", "a", "--dir", dir, "--from", "-1h", "-o", "-", "--format", "mp4"}},
		{"add --dir DIR", []string{"rebuild", "--index", "x.db"}},
		{"--site says it all", []string{"list", "--site", "a", "--index", "b"}},
	} {
		_, err := execute(t.Context(), append([]string{"recordings"}, c.arg...)...)
		require.Equal(t, exitUsage, exitStatus(err), "%v: %v", c.arg, err)
		require.ErrorContains(t, err, c.says)
	}
	require.NoError(t, os.WriteFile("site.yaml", []byte("cameras: {a: {source: 'rtsp://h/x'}}"), 0o600))
	_, err := execute(t.Context(), "recordings", "list")
	require.ErrorContains(t, err, "nothing is recorded")
	require.True(t, errors.As(err, new(usageError)))
}
