package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline/site"
)

// stall is how long the disk stands still: scripts/soak gives it the minute that a disk array takes to rebuild or a NAS to restart.
func stall(t *testing.T) time.Duration {
	if s := os.Getenv("CFPIPE_SOAK_STALL"); s != "" {
		d, err := time.ParseDuration(s)
		require.NoError(t, err)
		return d
	}
	return 6 * time.Second
}

// disk is a file system of its own.
type disk struct {
	t     *testing.T
	dir   string
	image string // "" = a tmpfs
}

func newDisk(t *testing.T, dir, size string) *disk {
	t.Helper()
	needRoot(t)
	d := &disk{t: t, dir: dir}
	require.NoError(t, os.Mkdir(dir, 0o755))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		testenv.NoMounts(t, fmt.Errorf("mount a tmpfs: %w", err))
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return d
}

// newExt4 makes a disk that can stall and fail.
func newExt4(t *testing.T, dir string) *disk {
	t.Helper()
	needRoot(t)
	d := &disk{t: t, dir: dir, image: dir + ".img"}
	require.NoError(t, os.Mkdir(dir, 0o755))
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, ""); err != nil { // nothing is recorded into the mount point itself
		testenv.NoMounts(t, fmt.Errorf("mount a tmpfs: %w", err))
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	require.NoError(t, os.WriteFile(d.image, nil, 0o600))
	require.NoError(t, os.Truncate(d.image, 64<<20))
	d.must("mkfs.ext4", "-q", "-F", d.image)
	d.mount()
	return d
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounting takes root")
	}
}

func (d *disk) must(name string, arg ...string) {
	d.t.Helper()
	out, err := exec.Command(testenv.NeedTool(d.t, name), arg...).CombinedOutput()
	require.NoError(d.t, err, "%s %v: %s", name, arg, out)
}

func (d *disk) mount() {
	d.t.Helper()
	if out, err := exec.Command("mount", "-o", "loop,errors=remount-ro", d.image, d.dir).CombinedOutput(); err != nil {
		if known, _ := os.ReadFile("/proc/filesystems"); !strings.Contains(string(known), "\text4\n") {
			d.t.Skip("this kernel has no ext4")
		}
		testenv.NoMounts(d.t, fmt.Errorf("mount an ext4: %w: %s", err, out))
	}
	d.t.Cleanup(func() { _ = syscall.Unmount(d.dir, syscall.MNT_DETACH) })
}

// freeze lets every write to the disk wait for so long; what it returns is closed at the end of that. A process of its own thaws the
// disk: nothing that waits for a frozen one can be killed, and a test that fails or is killed must not leave one behind.
func (d *disk) freeze(length time.Duration) (thawed chan struct{}) {
	d.t.Helper()
	d.must("fsfreeze", "--freeze", d.dir)
	cmd := exec.Command("sh", "-c", `sleep "$1"; fsfreeze --unfreeze "$0"`, d.dir, strconv.Itoa(int(length.Seconds())))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err := cmd.Start()
	thaw := func() { _ = exec.Command("fsfreeze", "--unfreeze", d.dir).Run() }
	if err != nil {
		thaw()
		d.t.Fatal(err)
	}
	thawed = make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(thawed)
	}()
	d.t.Cleanup(thaw)
	return thawed
}

// breakDown makes the file system find an error, upon which it takes no more writes, as it does when a sector cannot be read.
func (d *disk) breakDown() {
	d.t.Helper()
	out, err := exec.Command("findmnt", "-n", "-o", "SOURCE", d.dir).Output()
	require.NoError(d.t, err)
	err = os.WriteFile("/sys/fs/ext4/"+filepath.Base(strings.TrimSpace(string(out)))+"/trigger_fs_error", []byte("1"), 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.EROFS) {
		if errors.Is(err, os.ErrNotExist) {
			d.t.Skip("this kernel cannot break an ext4: ", err)
		}
		testenv.NoMounts(d.t, fmt.Errorf("break an ext4: %w", err))
	}
	require.NoError(d.t, err)
}

// repair is what an operator does about it.
func (d *disk) repair() {
	d.t.Helper()
	require.NoError(d.t, syscall.Unmount(d.dir, syscall.MNT_DETACH))
	testenv.Eventually(d.t, 20*time.Second, func() error { // the loop device goes with the last file that is open on it
		out, err := exec.Command("losetup", "-n", "-O", "NAME", "-j", d.image).Output()
		if err == nil && len(out) > 0 {
			return errors.New("the disk is in use")
		}
		return err
	})
	if out, err := exec.Command("e2fsck", "-p", "-f", d.image).CombinedOutput(); err != nil {
		var exit *exec.ExitError
		require.True(d.t, errors.As(err, &exit) && exit.ExitCode() == 1, "e2fsck: %v: %s", err, out) // 1: errors were mended
	}
	d.mount()
}

// fill leaves no space on the disk; the file that it returns gives it back.
func (d *disk) fill() (ballast string) {
	d.t.Helper()
	ballast = filepath.Join(d.dir, "ballast")
	f, err := os.Create(ballast)
	require.NoError(d.t, err)
	defer f.Close()
	for block := make([]byte, 64<<10); ; {
		if _, err := f.Write(block); err != nil {
			require.ErrorIs(d.t, err, syscall.ENOSPC)
			return ballast
		}
	}
}

// One disk is full, one stands still, one takes no more writes; then all of them are well again. Two cameras on another disk, one of them
// recorded by the same process, lose nothing.
func TestDisks(t *testing.T) {
	r := newRig(t, 2*time.Minute+2*stall(t))
	full := newDisk(t, filepath.Join(r.dir, "full"), "4m")
	stalled := newExt4(t, filepath.Join(r.dir, "stalled"))
	broken := newExt4(t, filepath.Join(r.dir, "broken"))
	for _, name := range []string{"full", "stalled", "broken", "good", "apart"} {
		r.camera(name)
	}
	// The ring of the camera whose disk stands still holds 2 s: it has to lose something.
	r.run(`
defaults: {record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s, pre: 1h}}
cameras:
  KEYfull: {source: 'CAM-full', record: {out: 'full/%{key}/%s-%f.mp4'}}
  KEYstalled: {source: 'CAM-stalled', packet_slots: 50, record: {out: 'stalled/%{key}/%s-%f.mp4'}}
  KEYbroken: {source: 'CAM-broken', record: {out: 'broken/%{key}/%s-%f.mp4', fsync: fragment}}
  KEYgood: {source: 'CAM-good'}
  KEYapart: {source: 'CAM-apart', isolation: process, record: {isolation: process}}
retention: {age: 1d}
`)
	r.recorded(50, r.names()...)

	ballast := full.fill()
	broken.breakDown()
	begun := time.Now()
	thawed := stalled.freeze(stall(t))
	for _, name := range []string{"full", "broken"} {
		r.until("record "+name, func(s site.StageStatus) bool { return s.Record.Failing && s.Record.Dropped > 0 })
	}
	r.until("record stalled", func(s site.StageStatus) bool { return time.Duration(s.Record.Busy) > stall(t)/2 })
	for name, s := range r.stages() {
		if name == "record good" || name == "record apart" {
			require.Less(t, time.Since(s.Record.Newest), 4*time.Second, "%s waits for another one's disk", name)
		}
	}
	require.Contains(t, string(r.get("/metrics")), "cfpipe_record_busy_seconds")
	<-thawed
	require.GreaterOrEqual(t, time.Since(begun), stall(t))
	require.NoError(t, os.Remove(ballast))
	broken.repair()

	r.recorded(50, r.names()...)
	for name := range r.cams {
		r.until("record "+name, func(s site.StageStatus) bool {
			return !s.Record.Failing && s.Record.Busy.Seconds() < 1 && s.Restarts == 0
		})
	}
	status := r.stages()
	for _, name := range []string{"full", "broken"} {
		require.NotZero(t, status["record "+name].Record.Failures, name)
		require.Zero(t, status["record "+name].Record.Lost, name)
	}
	require.NotZero(t, status["record stalled"].Record.Lost)
	require.Zero(t, status["record stalled"].Record.Failures, "a write that takes long is no error")
	published := r.finish()

	for _, name := range []string{"good", "apart"} {
		r.requireWhole(name, published[name])
	}
	for _, name := range []string{"full", "stalled", "broken"} {
		files := r.finished(name)
		packets, lost, gaps := sum(files)
		require.Equal(t, published[name], packets+lost, "%s: every access unit is in a file or counted as lost", name)
		require.Equal(t, 1, gaps, name)
		counted := 0
		for _, f := range files {
			counted += probe(t, f.Path)
		}
		require.EqualValues(t, packets, counted, name)
	}
}

// A recording is due to be removed from a disk that stands still: retention of the other disks goes on, and so does what is told of them.
func TestRetentionStalledDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2*time.Minute)
	stalled := newExt4(t, filepath.Join(r.dir, "stalled"))
	r.camera("stalled")
	r.camera("good")
	r.run(`
defaults: {record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s}}
cameras:
  KEYstalled: {source: 'CAM-stalled', record: {out: 'stalled/%{key}/%s-%f.mp4', retention: {age: 3s}}}
  KEYgood: {source: 'CAM-good', record: {retention: {size: 100KiB}}}
`)
	r.recorded(100, "stalled", "good")
	begun := time.Now()
	const length = 14 * time.Second
	thawed := stalled.freeze(length)
	testenv.Eventually(t, length, func() error {
		if !strings.Contains(r.site.Stderr(), "a disk does not answer; its recordings are left alone") {
			return errors.New("nothing was to be removed")
		}
		return nil
	})
	seen := r.finished("good")
	testenv.Eventually(t, length, func() error { // files that were finished when the disk stood still already are removed
		if _, err := os.Stat(seen[len(seen)-1].Path); err == nil {
			return errors.New("retention stands still")
		}
		return nil
	})
	require.Less(t, time.Since(begun), length, "while the disk stood still")
	require.Contains(t, string(r.get("/metrics")), `cfpipe_record_free_bytes{key="`+r.key("stalled")+`",recording="continuous"}`)
	<-thawed
	old := r.finished("stalled")[0].Path
	testenv.Eventually(t, 20*time.Second, func() error {
		if _, err := os.Stat(old); err == nil {
			return errors.New("the recording is still there")
		}
		return nil
	})
	r.finish()
}
