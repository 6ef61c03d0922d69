package pipeline

import (
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/packetring"
)

// smallFile takes the head of a recording and no picture, as a disk does that has a block left.
type smallFile struct {
	*os.File
	room *int
}

func (f smallFile) Write(b []byte) (int, error) {
	at, err := f.Seek(0, 1)
	if err == nil && int(at)+len(b) > *f.room {
		return 0, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	return f.File.Write(b)
}

// On a full disk files can still be opened: the recording goes on, and says so, when data stays.
func TestRecordDiskFullLog(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	clip := embedded(t)
	var logs testenv.Log
	r := &recorder{o: RecordOptions{Key: "k", Format: mux.FMP4, Counter: &RecordCounter{}}, log: slog.New(slog.NewTextHandler(&logs, nil)), described: true, files: 1}
	r.video = clip.Tracks()[0]
	room, attempts, dir := 2<<10, 0, t.TempDir()
	r.segmenter = mux.NewSegmenter(mux.SegmenterOptions{
		Format: mux.FMP4, Done: r.done, Started: r.started,
		Create: func(time.Time) (mux.File, error) {
			attempts++
			f, err := os.Create(filepath.Join(dir, strconv.Itoa(attempts)))
			return smallFile{f, &room}, err
		},
	}, r.video, nil)
	base := time.Now().UnixNano()
	play := func() {
		for _, p := range clip.Packets(0) {
			q := packetring.Packet{PTS: base + p.PTS, DTS: base + p.DTS, Flags: packetring.Flags(p.Flags), Data: p.Data}
			require.NoError(t, r.write(item{Packet: q, Track: videoTrack}))
		}
		base += int64(clip.Duration())
	}
	for attempts < 2 {
		play()
		time.Sleep(20 * time.Millisecond) // the next attempt comes by the clock
	}
	require.NotContains(t, logs.String(), "goes on\" ")
	require.Equal(t, 1, strings.Count(logs.String(), "level=ERROR"))
	room = 1 << 30
	for attempts < 3 {
		play()
		time.Sleep(20 * time.Millisecond)
	}
	require.Equal(t, 1, strings.Count(logs.String(), "the recording goes on\""))
	require.NoError(t, r.segmenter.Close())
}
