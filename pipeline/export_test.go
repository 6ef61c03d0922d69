package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
)

// Through every format into Debian's ffmpeg by a pipe: the payload is the source's, access unit by access unit.
func TestExportFormats(t *testing.T) {
	testenv.Watchdog(t, 90*time.Second)
	testenv.CheckLeaks(t)
	b := []string{"-map", "0:v", "-map", "1:a", "-c:v", "libx264", "-preset", "ultrafast", "-bf", "2", "-g", "25", "-c:a", "aac"}
	h265 := []string{"-map", "0:v", "-map", "1:a", "-c:v", "libx265", "-preset", "ultrafast",
		"-x265-params", "log-level=error:info=0:keyint=25:bframes=2", "-c:a", "aac"}
	for i, args := range [][]string{b, h265} {
		clip := encodeClip(t, fmt.Sprintf("c%d.mp4", i), args...)
		codec := clip.Tracks()[0].CodecID
		dir, key := place(t)
		cam := publishClip(t, dir, key, clip, 6*time.Second)
		for _, f := range []mux.Format{mux.AnnexB, mux.NUT, mux.TS, mux.FMP4, mux.MKV} {
			var out bytes.Buffer
			err := Export(t.Context(), ExportOptions{RuntimeDir: dir, Key: key, Format: f, Out: &out, Start: StartOldest, Count: 120})
			require.NoError(t, err, string(f))
			if f == mux.AnnexB {
				requireRun(t, clip, pictures(codec, out.Bytes()))
				continue
			}
			file := filepath.Join(t.TempDir(), "out.mkv")
			cmd := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-i", "-", "-map", "0", "-c", "copy", file)
			cmd.Stdin = bytes.NewReader(out.Bytes())
			text, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", f, text)
			got := filePictures(t, codec, file)
			requireRun(t, clip, got)
			require.GreaterOrEqual(t, len(got), 120)
			streams, err := exec.Command("ffprobe", "-v", "error", "-show_entries", "stream=codec_name", "-of", "csv=p=0", file).Output()
			require.NoError(t, err)
			require.Contains(t, string(streams), "aac", string(f))
		}
		cam.stop()
	}
}

// Where the reader of the pipe goes away, and where the publication ends, the export ends without an error.
func TestExportEnds(t *testing.T) {
	testenv.Watchdog(t, 60*time.Second)
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 2*time.Second)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- Export(t.Context(), ExportOptions{RuntimeDir: dir, Key: key, Format: mux.NUT, Out: w})
	}()
	_, err = io.ReadFull(r, make([]byte, 10000))
	require.NoError(t, err)
	r.Close()
	require.NoError(t, <-ended)
	w.Close()

	var out bytes.Buffer
	started := make(chan struct{}, 1000)
	go func() {
		ended <- Export(t.Context(), ExportOptions{RuntimeDir: dir, Key: key, Format: mux.TS, Out: writerFunc(func(b []byte) (int, error) {
			started <- struct{}{}
			return out.Write(b)
		})})
	}()
	<-started
	cam.stop()
	require.NoError(t, <-ended)
	require.NotZero(t, out.Len())

	dir, key = place(t)
	require.ErrorIs(t, Export(t.Context(), ExportOptions{RuntimeDir: dir, Key: key, Out: io.Discard}), os.ErrNotExist)
}

type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestExportDuration(t *testing.T) {
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 6*time.Second)
	defer cam.stop()
	var out bytes.Buffer
	require.NoError(t, Export(t.Context(), ExportOptions{RuntimeDir: dir, Key: key, Out: &out, Start: StartOldest, Duration: 2 * time.Second}))
	per := float64(len(clipPictures(clip, 1))) / clip.Duration().Seconds()
	require.InDelta(t, 2*per, len(pictures(media.H264, out.Bytes())), per/10)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := Export(ctx, ExportOptions{RuntimeDir: dir, Key: key, Out: io.Discard})
	require.True(t, errors.Is(err, context.Canceled), err)
}

// A transport stream marks a new publisher, and its time goes on.
func TestExportFollow(t *testing.T) {
	testenv.Watchdog(t, 60*time.Second)
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 0)
	var out bytes.Buffer
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n := uint64(3 * clipRate(clip))
	go func() {
		ended <- Export(ctx, ExportOptions{RuntimeDir: dir, Key: key, Format: mux.TS, Out: &out, Follow: true, Count: n})
	}()
	time.Sleep(time.Second)
	cam.stop()
	cam.start()
	defer func() { cam.stop() }()
	require.NoError(t, <-ended)
	marked := 0
	b := out.Bytes()
	for i := 0; i+188 <= len(b); i += 188 {
		require.EqualValues(t, 0x47, b[i])
		if b[i+3]&0x20 != 0 && b[i+4] > 0 && b[i+5]&0x80 != 0 { // discontinuity_indicator
			marked++
		}
	}
	require.NotZero(t, marked)
}

// As a user types it: a shell pipe of real processes.
func TestPacketsShell(t *testing.T) {
	testenv.Watchdog(t, 60*time.Second)
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 4*time.Second)
	defer cam.stop()
	testenv.NeedTool(t, "ffmpeg")
	file := filepath.Join(t.TempDir(), "out.mp4")
	sh := exec.Command("bash", "-c",
		`set -o pipefail; "$1" packets "$2" --runtime-dir "$3" -f nut --duration 3s | ffmpeg -v error -i - -c:v copy -c:a copy "$4"`,
		"-", testenv.Binary(t), key, dir, file)
	out, err := sh.CombinedOutput()
	require.NoError(t, err, string(out))
	requireRun(t, clip, filePictures(t, media.H264, file))
	playable(t, file)

	// whoever reads has had enough: no complaint, status 0
	sh = exec.Command("bash", "-c", `set -o pipefail; "$1" packets "$2" --runtime-dir "$3" | head -c 1000 >/dev/null`, "-", testenv.Binary(t), key, dir)
	out, err = sh.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Empty(t, string(out))
}

// A file through ingest and packets as separate processes: every byte of its pictures and its sound comes out, to the last frame.
func TestPacketsWhole(t *testing.T) {
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	ffmpeg := testenv.NeedTool(t, "ffmpeg")
	folder := t.TempDir()
	src, dst := filepath.Join(folder, "src.mkv"), filepath.Join(folder, "dst.mkv")
	out, err := exec.Command(ffmpeg, "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25:duration=4",
		"-f", "lavfi", "-i", "sine=frequency=300:duration=4", "-pix_fmt", "yuv420p", "-c:v", "libx265", "-preset", "ultrafast",
		"-x265-params", "log-level=error:info=0:keyint=25:bframes=2", "-c:a", "aac", src).CombinedOutput()
	require.NoError(t, err, string(out))
	sh := exec.Command("bash", "-c", `set -o pipefail; export CUFRAMES_RUNTIME_DIR="$2"
		"$1" packets "$3" --wait 20s --from oldest -f nut | "$4" -v error -i - -map 0 -c copy "$6" & reader=$!
		"$1" ingest "$5" --key "$3" --realtime || exit 1
		wait $reader`, "-", testenv.Binary(t), dir, key, ffmpeg, src, dst)
	out, err = sh.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, filePictures(t, media.HEVC, src), filePictures(t, media.HEVC, dst))
	sound := func(file string) string {
		b, err := exec.Command(ffmpeg, "-v", "error", "-i", file, "-map", "0:a", "-c", "copy", "-f", "adts", "-").Output()
		require.NoError(t, err)
		return digest(b)
	}
	require.Equal(t, sound(src), sound(dst))
}

// Audio in front of the first keyframe is kept for 100 ms, and whatever its times are no more than a bounded number of packets.
func TestEarlyAudioIsBounded(t *testing.T) {
	e := &exporter{}
	for i := range int64(1000) {
		e.keepEarly(media.Packet{PTS: i * int64(20*time.Millisecond), Data: []byte{byte(i)}})
	}
	require.Len(t, e.early, 6)
	for range 1000 {
		e.keepEarly(media.Packet{PTS: 20e9, Data: []byte{1}})
	}
	require.Len(t, e.early, maxEarlyPackets)
}
