package recordings

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/mux"
)

// faultyOut fails one of the calls on it, and all that follow.
type faultyOut struct {
	*os.File
	calls, at int
	err       error
}

func (f *faultyOut) call(op string) error {
	if f.calls++; f.at > 0 && f.calls >= f.at {
		return &os.PathError{Op: op, Path: f.Name(), Err: f.err}
	}
	return nil
}

func (f *faultyOut) Write(b []byte) (int, error) {
	if err := f.call("write"); err != nil {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, err
	}
	return f.File.Write(b)
}

func (f *faultyOut) Seek(at int64, from int) (int64, error) {
	if err := f.call("seek"); err != nil {
		return 0, err
	}
	return f.File.Seek(at, from)
}

// Each write of an export fails: the error says why, whatever the format, and at the end of the file too.
func TestExportEveryCallFails(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	testenv.CheckLeaks(t)
	s := camera(t, "320x180", 6, clips.X264B, clips.AAC)
	dir := t.TempDir()
	files := s.record(t, dir, "door", mux.FMP4, 3*time.Second, s.Packets)
	for _, f := range []mux.Format{mux.FMP4, mux.MP4, mux.MKV, mux.TS} {
		export := func(n int, err error) (*faultyOut, error) {
			file, cerr := os.Create(filepath.Join(dir, "out"+f.Extension()))
			require.NoError(t, cerr)
			defer file.Close()
			out := &faultyOut{File: file, at: n, err: err}
			_, err = Export(t.Context(), ExportOptions{Files: files, From: at(0), To: at(10), Format: f, Out: out, Seek: true})
			return out, err
		}
		whole, err := export(0, nil)
		require.NoError(t, err)
		require.Greater(t, whole.calls, 3)
		for i := 1; i <= whole.calls; i++ {
			for _, cause := range []error{syscall.ENOSPC, syscall.EIO} {
				_, err := export(i, cause)
				require.ErrorIs(t, err, cause, "%s, call %d of %d", f, i, whole.calls)
			}
		}
		t.Log(f, whole.calls, "calls")
	}
}

// An export to a disk that is full before it is complete, after as many blocks as you like, leaves nothing, and says that there is no space. With enough of
// it the file is there.
func TestExportDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting takes root")
	}
	testenv.Watchdog(t, 2*time.Minute)
	s := camera(t, "320x180", 6, clips.X264B, clips.AAC)
	dir := t.TempDir()
	files := s.record(t, dir, "door", mux.FMP4, 3*time.Second, s.Packets)
	disk := filepath.Join(dir, "disk")
	require.NoError(t, os.Mkdir(disk, 0o755))
	for _, f := range []mux.Format{mux.FMP4, mux.MP4, mux.MKV, mux.TS} {
		fits := 0
		for pages := 1; pages <= 101; pages += 4 {
			if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%dk", 4*pages)); err != nil {
				testenv.NoMounts(t, fmt.Errorf("mount a tmpfs: %w", err))
			}
			path := filepath.Join(disk, "out"+f.Extension())
			_, err := ExportFile(t.Context(), path, false, ExportOptions{Files: files, From: at(0), To: at(10), Format: f})
			names, rerr := os.ReadDir(disk)
			require.NoError(t, rerr)
			if err == nil {
				fits++
				require.Len(t, names, 1)
				x, err := os.Open(path)
				require.NoError(t, err)
				sum, err := mux.Summarize(t.Context(), x)
				x.Close()
				require.NoError(t, err)
				require.True(t, sum.Complete)
			} else {
				require.Zero(t, fits, "less was enough")
				require.ErrorIs(t, err, syscall.ENOSPC)
				require.Empty(t, names, "%s, %d pages: %v", f, pages, err)
			}
			require.NoError(t, syscall.Unmount(disk, 0))
		}
		require.NotZero(t, fits)
		require.Less(t, fits, 24)
		t.Log(f, 26-fits, "of 26 sizes were too small")
	}
}
