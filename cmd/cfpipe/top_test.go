package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline"
)

// A camera with a recorder: once as a table where the output is a pipe, as JSON lines, and what is wrong usage.
func TestTop(t *testing.T) {
	s := newSite(t)
	key := s.key("top")
	s.start("ingest", s.camera(), "--key", key)
	s.published(key, 10)
	s.start("record", key, "--out", s.out+"/%{key}.mp4", "--segment", "0")
	var rows []topRow
	testenv.Eventually(t, 20*time.Second, func() error {
		out, err := s.command("top", "--json", "--interval", "500ms").Output()
		if err != nil {
			return err
		}
		rows = nil
		if err := json.Unmarshal(out, &rows); err != nil {
			return err
		}
		if len(rows) != 1 || len(rows[0].Readers) != 1 || rows[0].Readers[0].Lag == nil || rows[0].Readers[0].Rate == nil {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	r := rows[0]
	require.Equal(t, key, r.Key)
	require.Greater(t, r.Packets, 5.0)
	require.Less(t, r.Packets, 100.0)
	require.Equal(t, "record", r.Readers[0].Name)
	require.Equal(t, "continuous", r.Readers[0].Recording)
	require.Empty(t, r.Readers[0].Event)
	require.Less(t, *r.Readers[0].Share, 0.5)

	out, err := s.command("top", "-n", "2", "--interval", "200ms").Output()
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(out), "cfpipe top"))
	require.Equal(t, 2, strings.Count(string(out), "└ record (continuous)"))
	require.NotContains(t, string(out), "\x1b")

	for _, a := range [][]string{{"top", "x"}, {"top", "--interval", "1ms"}, {"top", "-n", "-1"}, {"top", "--sort", "luck"}} {
		require.Equal(t, exitUsage, exitCode(s.command(a...).Run()), a)
	}
	out, err = newSite(t).command("top", "--interval", "50ms").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "0 keys")
}

// Rates are those between two readings; another publisher begins anew.
func TestTopRates(t *testing.T) {
	lag := uint64(95)
	status := func(pid, seq, read uint64) pipeline.KeyStatus {
		return pipeline.KeyStatus{Key: "a", PID: pid, PacketsPerSecond: 7, Packets: &pipeline.RingStatus{GlobalSeq: seq, BufferedPackets: 100},
			Readers: []pipeline.ReaderStatus{{Name: "r", PID: 5, LastSeq: read, Lag: &lag}, {Name: "f", Frames: true}, {Name: "record", Recording: "event", Event: "E"}}}
	}
	first := newTopRow(status(1, 100, 50), topRow{}, false, 0)
	require.Equal(t, 7.0, first.Packets)
	second := newTopRow(status(1, 150, 60), first, true, 2)
	require.Equal(t, 25.0, second.Packets)
	require.Equal(t, 5.0, *second.Readers[0].Rate)
	require.Equal(t, 0.95, *second.Readers[0].Share)
	require.False(t, second.Restarted)
	third := newTopRow(status(2, 3, 1), second, true, 2)
	require.True(t, third.Restarted)
	require.Equal(t, 7.0, third.Packets)
	require.Nil(t, third.Readers[0].Rate)
	var b strings.Builder
	require.NoError(t, (&top{rows: []topRow{second, third}}).print(&b))
	require.Contains(t, b.String(), "95% !")
	require.Contains(t, b.String(), "new publisher")
	require.Contains(t, b.String(), "└ record (event E)")
	require.NotContains(t, b.String(), "no access")
	b.Reset()
	require.NoError(t, (&top{denied: 2}).print(&b))
	require.Contains(t, b.String(), "may not read 2 of the keys")
}

func exitCode(err error) int {
	var e interface{ ExitCode() int }
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return 0
}
