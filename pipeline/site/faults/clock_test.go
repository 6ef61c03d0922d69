package faults

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// stepClock sets the clock of one process by whole seconds against the host's. Its programs read the time from code that the kernel
// maps into each process, the vDSO; this process's own copy of it is replaced by one that asks the kernel and adds the step. Every
// reading of the wall clock in the process, Go's and C's, is that of a host whose clock was set; the monotonic clock goes on.
func stepClock(t *testing.T, pid int, by time.Duration) {
	t.Helper()
	if runtime.GOARCH != "amd64" || os.Getuid() != 0 {
		t.Skip("setting the clock of one process takes root, and amd64")
	}
	start, end := vdso(t, pid)
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	require.NoError(t, err)
	defer mem.Close()
	image := make([]byte, end-start)
	_, err = mem.ReadAt(image, start)
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(image))
	require.NoError(t, err)
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	var at int64
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" {
			at = start + int64(s.Value)
		}
	}
	require.NotZero(t, at)

	code := []byte{
		0xb8, 228, 0, 0, 0, // mov eax, SYS_clock_gettime
		0x0f, 0x05, // syscall
		0x85, 0xff, // test edi, edi (CLOCK_REALTIME)
		0x75, 0x0d, // jne to the end
		0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, // mov rcx, the step
		0x48, 0x01, 0x0e, // add [rsi], rcx
		0xc3, // ret
	}
	binary.LittleEndian.PutUint64(code[13:], uint64(int64(by.Seconds())))
	testenv.Eventually(t, 10*time.Second, func() error { // the code must not be changed under a thread that is in it
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
		if err := stoppedOutside(pid, start, end); err != nil {
			return err
		}
		_, err := mem.WriteAt(code, at)
		return err
	})
}

// vdso finds the mapping.
func vdso(t *testing.T, pid int) (start, end int64) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "[vdso]") {
			_, err := fmt.Sscanf(line, "%x-%x", &start, &end)
			require.NoError(t, err)
			return start, end
		}
	}
	t.Skip("no vDSO here")
	return 0, 0
}

// stoppedOutside says whether all threads have stopped, none of them between two addresses.
func stoppedOutside(pid int, start, end int64) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	if err != nil || len(threads) == 0 {
		return fmt.Errorf("no threads: %w", err)
	}
	for _, name := range threads {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fields := strings.Fields(string(b))
		if len(fields) < 3 {
			return errors.New("a thread runs")
		}
		pc, err := strconv.ParseInt(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
		if err == nil && pc >= start && pc < end {
			return errors.New("a thread reads the time")
		}
	}
	return nil
}

// The host's clock is set forward by a day, and back: cameras with a clock of their own do not notice; the run of one without is closed
// and another one begins. No access unit is lost, files do not become more, their times do not overlap, and retention by age removes
// nothing.
func TestClockSet(t *testing.T) {
	r := newRig(t, 2*time.Minute)
	r.camera("reports")
	clip := filepath.Join(r.dir, "clip.mp4")
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-r", "25",
		"-i", filepath.Join(testenv.Root(t), "internal/testcam/clips/camera.h264"),
		"-c", "copy", clip).CombinedOutput()
	require.NoError(t, err, "%s", out)
	r.run(`
defaults: {record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s, pre: 1h}}
cameras:
  KEYreports: {source: 'CAM-reports'}
  KEYfile: {source: '` + clip + `', loop: true, realtime: true, audio: false}
retention: {age: 6h}
`)
	const day = 24 * time.Hour
	r.recorded(60, "reports", "file")
	before := r.stages()
	stepClock(t, r.site.Process.Pid, day)
	r.recorded(150, "reports", "file")
	m := string(r.get("/metrics"))
	require.Contains(t, m, "cfpipe_site_clock_steps_total 1\n")
	require.Regexp(t, `cfpipe_ingest_clock_offset_seconds\{key="`+r.key("reports")+`"\} -8(6400|6399)\.`, m, "the camera's clock did not go along")
	stepClock(t, r.site.Process.Pid, 0)
	r.recorded(100, "reports", "file")
	require.Contains(t, string(r.get("/metrics")), "cfpipe_site_clock_steps_total 2\n")
	status := r.stages()
	for _, name := range []string{"reports", "file"} {
		require.Zero(t, status["record "+name].Restarts)
		require.Equal(t, before["ingest "+name].Since.UnixNano(), status["ingest "+name].Since.UnixNano())
		require.Less(t, status["ingest "+name].Ingest.Video.Age(), 10*time.Second, "ages are those of the monotonic clock")
	}
	r.requireWhole("reports", r.finish()["reports"])
	files := r.finished("file")
	packets, lost, gaps := sum(files)
	require.Zero(t, lost)
	require.Equal(t, 2, gaps, "one run for each setting of the clock")
	require.GreaterOrEqual(t, packets, status["record file"].Record.Packets)
	var days []int
	for i, f := range files {
		require.FileExists(t, f.Path)
		require.Equal(t, f.Packets, probe(t, f.Path), f.Path)
		require.InDelta(t, float64(f.Packets)*frameTime/1000, f.End.Sub(f.Start).Seconds(), 0.001, "the pictures last as long as they do")
		days = append(days, int(f.Start.Sub(files[0].Start)/day))
		if i > 0 && !f.Discontinuous {
			require.Equal(t, files[i-1].End, f.Start)
		}
	}
	require.Equal(t, []int{0, 1, 0}, slices.Compact(days), "named by the clock as it was")
	require.LessOrEqual(t, uint64(len(files)), packets/48+4, "2 s of 24 or 25 pictures a second each, and a cut for each step")
}
