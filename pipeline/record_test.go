package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/packetring"
)

// embedded is the built-in camera's clip with sound.
func embedded(t *testing.T) *testcam.Clip {
	t.Helper()
	clip, err := testcam.EmbeddedClip("h264", true)
	require.NoError(t, err)
	return clip
}

// pictures are the NAL units without parameter sets and delimiters.
func pictures(codec uint32, annexB []byte) (units []string) {
	for nal := range bitstream.NALs(annexB) {
		if c := bitstream.Classify(codec, nal); !c.ParamSet && !c.AUD {
			units = append(units, digest(nal))
		}
	}
	return units
}

// filePictures are those of a file's video, read back by ffmpeg.
func filePictures(t *testing.T, codec uint32, path string) []string {
	t.Helper()
	format := "h264"
	if codec == media.HEVC {
		format = "hevc"
	}
	cmd := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-i", path, "-map", "0:v", "-c", "copy", "-f", format, "-")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	return pictures(codec, out)
}

// clipPictures are those of the clip, played for ever.
func clipPictures(clip *testcam.Clip, rounds int) (units []string) {
	for _, p := range clip.Packets(0) {
		units = append(units, pictures(clip.Tracks()[0].CodecID, p.Data)...)
	}
	return slices.Repeat(units, rounds)
}

// requireRun checks that got is a piece of the clip played over and over, without a gap.
func requireRun(t *testing.T, clip *testcam.Clip, got []string) {
	t.Helper()
	require.NotEmpty(t, got)
	one := clipPictures(clip, 1)
	all := clipPictures(clip, len(got)/len(one)+2)
	for from := range one {
		if slices.Equal(all[from:from+len(got)], got) {
			return
		}
	}
	t.Fatalf("%d units are not those of the clip in a row", len(got))
}

// playable decodes a file without a complaint and returns the number of pictures.
func playable(t *testing.T, path string) int {
	t.Helper()
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-threads", "1", "-xerror", "-i", path, "-f", "null", "-").CombinedOutput()
	require.NoError(t, err, "%s: %s", path, out)
	require.Empty(t, string(out), path)
	out, err = exec.Command(testenv.NeedTool(t, "ffprobe"), "-v", "error", "-select_streams", "v", "-show_entries", "packet=dts_time,flags",
		"-of", "csv=p=0", path).Output()
	require.NoError(t, err)
	lines := strings.Fields(string(out))
	require.NotEmpty(t, lines)
	require.Contains(t, lines[0], "K", "%s does not begin with a keyframe", path)
	return len(lines)
}

// kept collects what a recording reports.
type kept struct {
	mu       sync.Mutex
	segments []Recorded
	opened   []string
}

func (k *kept) done(s Recorded) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.segments = append(k.segments, s)
}

func (k *kept) started(path string, _ time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opened = append(k.opened, path)
}

func (k *kept) count() (segments, opened int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.segments), len(k.opened)
}

// A camera with sound, recorded for some seconds in files of two: all play, nothing is missing between them.
func TestRecord(t *testing.T) {
	testenv.Watchdog(t, 90*time.Second)
	testenv.CheckLeaks(t)
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 0)
	defer cam.stop()
	var k kept
	out := filepath.Join(t.TempDir(), "a", "%{key}-%H%M%S.mp4")
	err := Record(t.Context(), RecordOptions{RuntimeDir: dir, Key: key, Out: out, Segment: 2 * time.Second, Duration: 7 * time.Second, Done: k.done})
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(k.segments), 3)
	var all []string
	var total time.Duration
	packets, audio := 0, 0
	for i, s := range k.segments {
		require.NoError(t, s.Err)
		require.Zero(t, s.Lost)
		require.False(t, s.Discontinuous)
		require.Equal(t, s.Packets, playable(t, s.Path))
		if i > 0 {
			require.Equal(t, k.segments[i-1].End, s.Start)
		}
		all = append(all, filePictures(t, media.H264, s.Path)...)
		total += s.Duration()
		packets += s.Packets
		audio += s.AudioPackets
	}
	requireRun(t, clip, all)
	require.InDelta(t, 7*time.Second, total, float64(60*time.Millisecond))
	require.InDelta(t, 7*clipRate(clip), packets, 3)
	require.InDelta(t, 7*float64(len(clip.Packets(1)))/clip.Duration().Seconds(), audio, 8)
}

func clipRate(clip *testcam.Clip) float64 {
	return float64(len(clip.Packets(0))) / clip.Duration().Seconds()
}

// The past that the ring still holds comes first.
func TestRecordPre(t *testing.T) {
	t.Parallel()
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 8*time.Second)
	defer cam.stop()
	var k kept
	from := time.Now()
	require.NoError(t, Record(t.Context(), RecordOptions{
		RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "x.mp4"), Pre: 5 * time.Second, Duration: 6 * time.Second, Done: k.done,
	}))
	require.Len(t, k.segments, 1)
	require.WithinRange(t, k.segments[0].Start, from.Add(-8*time.Second), from.Add(-4900*time.Millisecond))
	require.InDelta(t, 6*time.Second, k.segments[0].Duration(), float64(60*time.Millisecond))
	require.NotZero(t, k.segments[0].AudioPackets)
	requireRun(t, clip, filePictures(t, media.H264, k.segments[0].Path))
}

// The publisher ends and comes back (f7): the recording goes on in a new file, with the gap marked.
func TestRecordRestart(t *testing.T) {
	t.Parallel()
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 0)
	var k kept
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- Record(ctx, RecordOptions{RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "%{key}.mkv"), Format: mux.MKV,
			Done: k.done, Started: k.started})
	}()
	opened := func(n int) {
		testenv.Eventually(t, 20*time.Second, func() error {
			if _, o := k.count(); o < n {
				return os.ErrNotExist
			}
			return nil
		})
	}
	opened(1)
	time.Sleep(time.Second)
	cam.stop()
	cam.start()
	opened(2)
	time.Sleep(time.Second)
	cam.stop()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Len(t, k.segments, 2)
	require.Equal(t, []bool{false, true}, []bool{k.segments[0].Discontinuous, k.segments[1].Discontinuous})
	require.Equal(t, strings.TrimSuffix(k.segments[0].Path, ".mkv")+"-2.mkv", k.segments[1].Path)
	for _, s := range k.segments {
		playable(t, s.Path)
		requireRun(t, clip, filePictures(t, media.H264, s.Path))
	}
}

func TestRecordErrors(t *testing.T) {
	t.Parallel()
	dir, key := place(t)
	err := Record(t.Context(), RecordOptions{RuntimeDir: dir, Key: key, Out: "x.mp4"})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorIs(t, err, ErrNoKey)
	require.Error(t, Record(t.Context(), RecordOptions{RuntimeDir: dir, Key: key, Out: "%Q"}))

	mustPublish(t, dir, key) // it says nothing
	err = Record(t.Context(), RecordOptions{RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "x.mp4"), Duration: time.Millisecond})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)

	clip := embedded(t)
	dir2, key2 := place(t)
	cam := publishClip(t, dir2, key2, clip, 0)
	defer cam.stop()
	err = Record(t.Context(), RecordOptions{RuntimeDir: dir2, Key: key2, Out: "/proc/no/such/x.mp4"})
	require.Error(t, err, "a folder that cannot be made is told at once")
}

// A camera's damaged keyframe does not end the recording, not as its first picture either.
func TestRecordDamagedKeyframe(t *testing.T) {
	t.Parallel()
	dir, key := place(t)
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: media.H264, Slots: 1024, DataSize: 16 << 20}})
	require.NoError(t, err)
	defer pub.Close(framering.ReasonNormal)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var k kept
	var log testenv.Log
	ended := make(chan error, 1)
	go func() {
		ended <- Record(ctx, RecordOptions{RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "x.mp4"), NoAudio: true, Done: k.done, Started: k.started,
			Logger: slog.New(slog.NewTextHandler(&log, nil))})
	}()
	send := func(p media.Packet) {
		t.Helper()
		_, err := pub.Packet(packetring.Packet{PTS: p.PTS, DTS: p.DTS, Flags: packetring.Flags(p.Flags), Data: p.Data})
		require.NoError(t, err)
	}
	clip := embedded(t)
	first := clip.Packets(0)[0]
	damaged := first
	damaged.Data = []byte{0, 0, 0, 1, 0x67, 0x64, 0, 0, 0, 1, 0x68, 0xEE, 0, 0, 0, 1, 0x65, 0x88, 0x84}
	for range 3 {
		damaged.PTS, damaged.DTS = damaged.PTS+40e6, damaged.DTS+40e6
		send(damaged)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if !strings.Contains(log.String(), "waiting for one") {
			return os.ErrNotExist
		}
		return nil
	})
	for _, p := range clip.Packets(0) {
		p.PTS, p.DTS = p.PTS+1e9, p.DTS+1e9
		send(p)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if _, opened := k.count(); opened != 1 {
			return os.ErrNotExist
		}
		return nil
	})
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.Equal(t, 1, strings.Count(log.String(), "waiting for one"), "told of once")
	require.Len(t, k.segments, 1)
	playable(t, k.segments[0].Path)
}

// The folder is deleted under a recording: a new file begins within a second or two, and what is lost is told.
func TestRecordFolderDeleted(t *testing.T) {
	t.Parallel()
	dir, key := place(t)
	cam := publishClip(t, dir, key, embedded(t), 0)
	defer cam.stop()
	folder := filepath.Join(t.TempDir(), "a")
	var k kept
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- Record(ctx, RecordOptions{RuntimeDir: dir, Key: key, Out: folder + "/b/%{key}.mp4", Done: k.done, Started: k.started})
	}()
	opened := func(want int) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() error {
			if _, n := k.count(); n != want {
				return fmt.Errorf("%d files opened", n)
			}
			return nil
		})
	}
	opened(1)
	require.NoError(t, os.RemoveAll(folder))
	opened(2)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	last := k.segments[len(k.segments)-1]
	require.NoError(t, last.Err)
	require.NotZero(t, last.Lost)
	playable(t, last.Path)
}

// The disk is full (f4): reading goes on, and recording resumes by itself once there is room.
func TestRecordDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting takes root")
	}
	t.Parallel()
	disk := filepath.Join(t.TempDir(), "disk")
	require.NoError(t, os.Mkdir(disk, 0o755))
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=3m"); err != nil {
		t.Skip("mounting is not allowed here: ", err)
	}
	defer func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) }()
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 0)
	defer cam.stop()
	var k kept
	var log testenv.Log
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- Record(ctx, RecordOptions{RuntimeDir: dir, Key: key, Out: disk + "/%{key}.mp4", Segment: time.Second, Done: k.done, Started: k.started,
			Logger: slog.New(slog.NewTextHandler(&log, nil))})
	}()
	testenv.Eventually(t, 20*time.Second, func() error {
		if n, _ := k.count(); n < 2 {
			return os.ErrNotExist
		}
		return nil
	})
	ballast := filepath.Join(disk, "ballast")
	f, err := os.Create(ballast)
	require.NoError(t, err)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	f.Close()
	testenv.Eventually(t, 20*time.Second, func() error {
		if !strings.Contains(log.String(), "cannot be written") {
			return os.ErrNotExist
		}
		return nil
	})
	before, _ := k.count()
	require.NoError(t, os.Remove(ballast))
	testenv.Eventually(t, 40*time.Second, func() error {
		if n, _ := k.count(); n < before+2 {
			return os.ErrNotExist
		}
		return nil
	})
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	lost := uint64(0)
	for _, s := range k.segments {
		n := playable(t, s.Path)
		require.GreaterOrEqual(t, n, s.Packets)
		lost += s.Lost
	}
	require.NotZero(t, lost)
	require.Contains(t, log.String(), "goes on")
}

// recordProcess starts `cfpipe record` as a process.
func recordProcess(t *testing.T, dir, key, out string, more ...string) *testenv.Process {
	t.Helper()
	return testenv.Start(t, testenv.Binary(t), append([]string{"record", key, "--runtime-dir", dir, "--out", out, "--json"}, more...)...)
}

// line is a JSON line of cfpipe record.
type line struct {
	Path          string
	Start, End    time.Time
	Duration      float64
	Packets       int
	Lost          uint64
	Keyframes     int
	Discontinuous bool
}

func jsonLines(t *testing.T, s string) (lines []line) {
	t.Helper()
	for text := range strings.Lines(s) {
		var l line
		require.NoError(t, json.Unmarshal([]byte(text), &l), text)
		lines = append(lines, l)
	}
	return lines
}

// kill -9 in the middle of a file costs the fragment in flight alone (f3); the next recording overwrites nothing; SIGINT finishes
// the file.
func TestRecordKilled(t *testing.T) {
	t.Parallel()
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 0)
	defer cam.stop()
	folder := t.TempDir()
	for _, f := range []string{"fmp4", "mp4", "mkv", "ts"} {
		out := filepath.Join(folder, "x."+f)
		p := recordProcess(t, dir, key, out, "--format", f, "--segment", "0")
		testenv.Eventually(t, 20*time.Second, func() error { // three fragments are on the disk
			fi, err := os.Stat(out)
			if err == nil && fi.Size() < 100<<10 {
				err = os.ErrNotExist
			}
			return err
		})
		p.Kill()
		n := 0
		requireRun(t, clip, filePictures(t, media.H264, out))
		o, err := exec.Command("ffprobe", "-v", "quiet", "-select_streams", "v", "-show_entries", "packet=flags", "-of", "csv=p=0", out).Output()
		require.NoError(t, err)
		n = len(strings.Fields(string(o)))
		require.GreaterOrEqual(t, n, 20, f)
	}
	out := filepath.Join(folder, "x.fmp4")
	before, err := os.ReadFile(out)
	require.NoError(t, err)
	p := recordProcess(t, dir, key, out, "--segment", "0")
	testenv.Eventually(t, 20*time.Second, func() error {
		fi, err := os.Stat(filepath.Join(folder, "x-2.fmp4"))
		if err == nil && fi.Size() < 2<<10 {
			err = os.ErrNotExist
		}
		return err
	})
	require.NoError(t, p.Stop(t, os.Interrupt, 10*time.Second))
	after, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, before, after)
	lines := jsonLines(t, p.Stdout())
	require.Len(t, lines, 1)
	require.Equal(t, filepath.Join(folder, "x-2.fmp4"), lines[0].Path)
	require.Equal(t, lines[0].Packets, playable(t, lines[0].Path))
	require.InDelta(t, lines[0].Duration, lines[0].End.Sub(lines[0].Start).Seconds(), 0.001)
	require.NotZero(t, lines[0].Keyframes)
}

// A recorder that stops reading for longer than the ring holds (f5), as with a disk that hangs: the loss is counted to the packet,
// the recording resumes at a keyframe in a new file, and memory stays what it was.
func TestRecordStalled(t *testing.T) {
	t.Parallel()
	clip := embedded(t)
	dir, key := place(t)
	cam := publishClip(t, dir, key, clip, 0)
	defer cam.stop()
	p := recordProcess(t, dir, key, filepath.Join(t.TempDir(), "x.mp4"), "--segment", "0")
	size := func() int64 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.Process.Pid))
		require.NoError(t, err)
		var total, pages int64
		_, err = fmt.Sscan(string(b), &total, &pages)
		require.NoError(t, err)
		return pages * int64(os.Getpagesize())
	}
	time.Sleep(2 * time.Second)
	require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
	// the clip goes on at once through a ring's worth of packets
	filler := clip.Packets(0)
	first := cam.video.Ring().GlobalSeq()
	for cam.video.Ring().GlobalSeq() < first+2000 {
		q := filler[int(cam.video.Ring().GlobalSeq())%len(filler)]
		now := time.Now().UnixNano()
		_, err := cam.video.Packet(packetring.Packet{PTS: now, DTS: now, Flags: packetring.Flags(q.Flags), Data: q.Data})
		require.NoError(t, err)
	}
	require.NoError(t, p.Process.Signal(syscall.SIGCONT))
	time.Sleep(2 * time.Second)
	require.Less(t, size(), int64(60<<20))
	require.NoError(t, p.Stop(t, os.Interrupt, 10*time.Second))
	lines := jsonLines(t, p.Stdout())
	require.GreaterOrEqual(t, len(lines), 2)
	lost := uint64(0)
	for _, l := range lines {
		lost += l.Lost
	}
	require.Greater(t, lost, uint64(900))
	require.True(t, lines[1].Discontinuous)
	require.Contains(t, p.Stderr(), "lost")
}
