package pipeline

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// How far back the ring of a dead publisher reaches says nothing of its successor's.
func TestDeadRingHasNoReach(t *testing.T) {
	dir, key := place(t)
	n := publishNumbered(t, dir, key, 1000)
	n.older(t, 4*time.Second)
	testenv.Eventually(t, 10*time.Second, func() error {
		if viewRing(key).reach == 0 {
			return errors.New("no second keyframe yet")
		}
		return nil
	})
	b, err := os.ReadFile(filepath.Join(shm.Dir, framering.PacketShmName(key)))
	require.NoError(t, err)
	left := filepath.Join(shm.Dir, framering.PacketShmName(key+"-dead")) // nobody locks or maps it: what a kill leaves
	require.NoError(t, os.WriteFile(left, b, 0o600))
	t.Cleanup(func() { os.Remove(left) })
	s, err := packetring.Inspect(framering.PacketShmName(key + "-dead"))
	require.NoError(t, err)
	require.NotEmpty(t, s.Packets)
	require.Zero(t, viewRing(key+"-dead"))
}

func TestRingReach(t *testing.T) {
	ring := func(slots, bytes, packets, size int, from int64) packetring.Snapshot {
		s := packetring.Snapshot{Info: packetring.Info{Slots: slots, DataSize: bytes}}
		for i := range packets {
			m := packetring.Meta{Size: size, DTS: from + int64(i)*40e6, PTS: from + int64(i)*40e6}
			if i%25 == 0 {
				m.Flags = packetring.FlagKey
			}
			s.Packets = append(s.Packets, m)
		}
		return s
	}
	now := time.Unix(1_700_000_000, 0)
	near := func(want time.Duration, s packetring.Snapshot, pre time.Duration, remedy string) {
		t.Helper()
		v := reachOf(s, now)
		require.InDelta(t, want, v.reach, float64(time.Second))
		require.Contains(t, v.remedy(pre), remedy)
	}
	from := now.Add(-10 * time.Second).UnixNano()
	near(9*time.Second, ring(1024, 2_500_000, 250, 10_000, from), 20*time.Second, "ingest --packet-bytes 6MiB (") // full
	near(9*time.Second, ring(1024, 2_500_000, 100, 10_000, from), 20*time.Second, "ingest --packet-bytes 6MiB (") // not full yet
	near(9*time.Second, ring(250, 100<<20, 250, 10_000, from), 20*time.Second, "ingest --packet-slots 580 (")
	near(9*time.Second, ring(250, 2_500_000, 250, 10_000, from), 20*time.Second, "ingest --packet-bytes 6MiB --packet-slots 580 (")
	near(40*time.Second, ring(1024, 100<<20, 250, 10_000, from), 100*time.Second, "1024 access units at most, 41s of this camera")
	young := reachOf(ring(1024, 100<<20, 150, 10_000, now.Add(-6*time.Second).UnixNano()), now)
	require.Contains(t, young.late("the event", time.Minute), "the ring is 6s old")
	full := ring(1024, 100<<20, 1024, 10_000, from)
	full.Packets[0].Seq = 2
	require.Contains(t, reachOf(full, now).late("the event", time.Minute), "1024 access units at most")
	require.Contains(t, ringView{}.late("the event", time.Minute), "not published before")
	require.Zero(t, reachOf(ring(1024, 1<<20, 0, 0, from), now).reach)
	require.Zero(t, reachOf(ring(1024, 1<<20, 20, 100, from), now).reach, "no second keyframe")
	require.Zero(t, reachOf(ring(1024, 1<<20, 100, 100, from), now).shift)
	require.Equal(t, now.UnixNano()-99*40e6-5e9, int64(reachOf(ring(1024, 1<<20, 100, 100, 5e9), now).shift), "a clock that is not Unix time")
	require.Zero(t, viewRing("no-such-key-"+framering.ShmName("x")).reach)
}

// A recording that asks for more of the past than the ring has kept says so, with what to do; one that a new ring cannot give does not.
func TestRecordPreBeyondTheRing(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	record := func(size int, older time.Duration) string {
		dir, key := place(t)
		n := publishNumbered(t, dir, key, size)
		defer n.stop()
		n.older(t, older)
		var log testenv.Log
		require.NoError(t, Record(t.Context(), RecordOptions{RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "%s.mp4"), Pre: 100 * time.Second,
			Duration: time.Second, NoAudio: true, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		return log.String()
	}
	full := record(1<<20, 4*time.Second) // 32 MiB hold 32 of these: 1.3 s
	require.Equal(t, 1, strings.Count(full, "the recording begins late: the ring did not reach back as far as --pre"), full)
	require.Contains(t, full, "shorten --pre") // 1024 slots are 41 s
	require.Regexp(t, `pre=1m40s late=1m3[89]`, full)
	require.NotContains(t, record(100, time.Second), "late")
}
