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
	"github.com/cfpipe/cfpipe/pipeline"
)

// What killed publishers have left is named, and removed of the keys that are asked for alone.
func TestDoctorClean(t *testing.T) {
	s := newSite(t)
	one, other := s.key("one"), s.key("other")
	left := func(key string) []string {
		return []string{filepath.Join("/dev/shm", framering.ShmName(key)), filepath.Join("/dev/shm", framering.PacketShmName(key))}
	}
	ones, others := append(left(one), left(one+"-audio")...), left(other)
	for _, name := range append(append([]string(nil), ones...), others...) {
		require.NoError(t, os.WriteFile(name, make([]byte, 8192), 0o600)) // no lock, no live pid: what a kill leaves
		t.Cleanup(func() { os.Remove(name) })
	}
	doctor := func(status int, a ...string) string {
		t.Helper()
		out, err := s.command(append([]string{"doctor"}, a...)...).CombinedOutput()
		if status != exitDone || exitCode(err) != exitFailed { // the machine may lack something
			require.Equal(t, status, exitCode(err), "%s", out)
		}
		return string(out)
	}
	doctor(exitUsage, one)
	doctor(exitUsage, "--clean", "a/b")
	before := doctor(exitDone)
	for _, key := range []string{one, one + "-audio", other} {
		require.Contains(t, before, key, "what would be removed is named")
	}
	for _, name := range append(append([]string(nil), ones...), others...) {
		require.Regexp(t, `\n +`+name+` +8\.2 kB +[\d.]+m?s old +uid \d+ +--clean removes it\n`, before, "each on a line of its own")
	}
	js, _ := s.command("doctor", "--json").Output() // the machine may lack something
	var findings []pipeline.Finding
	require.NoError(t, json.Unmarshal(js, &findings), "%s", js)
	require.Equal(t, 1, strings.Count(string(js), "\n"))
	var files []string
	for _, f := range findings {
		for _, o := range f.Orphans {
			files = append(files, o.File)
		}
	}
	require.Subset(t, files, append(append([]string(nil), ones...), others...))
	none, nothing := s.key("none"), s.key("nothing")
	out := doctor(exitNotFound, "--clean", none, one, nothing)
	require.Contains(t, out, fmt.Sprintf("key %q, %q: no ring of a killed publisher", none, nothing), "and the others' are removed")
	for _, name := range ones {
		require.NoFileExists(t, name)
		require.Contains(t, out, "removed "+name+" (8 KiB)")
	}
	for _, name := range others {
		require.FileExists(t, name)
	}
	doctor(exitNotFound, "--clean", one)
}

// Of very many rings that were left only the newest are named.
func TestDoctorManyOrphans(t *testing.T) {
	var list []pipeline.OrphanFinding
	for i := range 40 {
		list = append(list, pipeline.OrphanFinding{File: fmt.Sprintf("/dev/shm/cuframes-%d", i), AgeSeconds: float64(40 - i), Removable: true})
	}
	var out strings.Builder
	require.NoError(t, printFindings(&out, []pipeline.Finding{{Status: pipeline.FindingWarn, Name: "orphaned rings", Orphans: list}}, false))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 1+orphansShown+1)
	require.Contains(t, lines[1], "cuframes-39 ")
	require.Contains(t, lines[orphansShown], fmt.Sprintf("cuframes-%d ", 40-orphansShown))
	require.Contains(t, lines[orphansShown+1], "24 more")
}
