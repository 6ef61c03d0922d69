package mux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
)

// faultyDisk fails one of the calls on its files, or all from there on: a write takes half of what it was given then.
type faultyDisk struct {
	calls, at int
	all       bool
	err       error
	failed    []string // what did
}

func (d *faultyDisk) call(op, name string) error {
	d.calls++
	if d.calls == d.at || d.all && d.at > 0 && d.calls > d.at {
		d.failed = append(d.failed, op)
		return &os.PathError{Op: op, Path: name, Err: d.err}
	}
	return nil
}

type faultyFile struct {
	File
	d *faultyDisk
}

func (f faultyFile) Write(b []byte) (int, error) {
	if err := f.d.call("write", f.Name()); err != nil {
		n, _ := f.File.Write(b[:len(b)/2])
		return n, err
	}
	return f.File.Write(b)
}

func (f faultyFile) Seek(at int64, from int) (int64, error) {
	if err := f.d.call("seek", f.Name()); err != nil {
		return 0, err
	}
	return f.File.Seek(at, from)
}

func (f faultyFile) Sync() error {
	return f.d.call("fsync", f.Name())
}

func (f faultyFile) Truncate(n int64) error {
	if err := f.d.call("truncate", f.Name()); err != nil {
		return err
	}
	return f.File.Truncate(n)
}

func (f faultyFile) Close() error {
	return errors.Join(f.d.call("close", f.Name()), f.File.Close())
}

// Each call on a file of a recording fails, alone and with all after it, until the disk is well again: the error is told, each file that stays says of itself
// what was told of it and plays, each access unit is in a file or counted as missing, and the recording goes on.
func TestEveryCallFails(t *testing.T) {
	testenv.Watchdog(t, 5*time.Minute)
	testenv.CheckLeaks(t)
	for _, f := range []Format{FMP4, MP4, MKV, TS} {
		t.Run(string(f), func(t *testing.T) {
			s := clip(t, "320x180", 3, slices.Concat(clips.X264B, clips.AAC))
			ps := repeat(s, 2, 3*time.Second)
			run := func(d *faultyDisk, all bool) (r *recording, dir string, told int) {
				dir = t.TempDir()
				p, err := ParsePattern(filepath.Join(dir, "%{key}-%s"+f.Extension()), "cam")
				require.NoError(t, err)
				r = &recording{}
				r.Segmenter = NewSegmenter(SegmenterOptions{
					Format: f, Length: 2 * time.Second, Fsync: FsyncFragment,
					Create: func(start time.Time) (File, error) {
						if err := d.call("create", "x"); err != nil {
							return nil, err
						}
						file, err := p.Create(start)
						if err != nil {
							return nil, err
						}
						return faultyFile{file, d}, nil
					},
					Done: func(s Segment) { r.segments = append(r.segments, s) },
				}, s.Video, s.Audio)
				check := func(err error) {
					if err != nil {
						var w *WriteError
						require.ErrorAs(t, err, &w)
						require.ErrorIs(t, err, d.err)
						told++
						r.retryAt = time.Time{} // a second later
					}
				}
				for i, p := range ps {
					if all && i == len(ps)*3/4 { // well again
						d.at = 0
					}
					check(r.Write(p.Track, p.Packet))
				}
				check(r.Close())
				return r, dir, told
			}
			whole := &faultyDisk{}
			r, _, _ := run(whole, false)
			given := int(r.Totals().Kept)
			require.Zero(t, r.Totals().Dropped)
			kinds := map[string]int{}
			for _, all := range []bool{false, true} {
				for at := 1; at <= whole.calls; at++ {
					d := &faultyDisk{at: at, all: all, err: []error{syscall.ENOSPC, syscall.EIO}[at%2]}
					r, dir, told := run(d, all)
					name := fmt.Sprintf("call %d of %d (%v), all after it: %v", at, whole.calls, d.failed, all)
					for _, op := range d.failed {
						kinds[op]++
					}
					if len(d.failed) > 0 && d.failed[0] != "truncate" {
						require.NotZero(t, told, name)
					}
					in, lost := 0, 0
					paths := map[string]bool{}
					for _, seg := range r.segments {
						paths[seg.Path] = true
						in += seg.Packets
						lost += int(seg.Lost)
						sum := summary(t, seg.Path)
						if seg.Err == nil {
							require.True(t, sum.Complete, name)
							require.Equal(t, Counts{seg.Packets, seg.Keyframes, int64(seg.Lost)}, sum.Counts, name)
						} else if f == FMP4 || f == MP4 {
							require.GreaterOrEqual(t, sum.Packets, seg.Packets, name)
							if f == MP4 && at > whole.calls-8 {
								checkPlayable(t, seg.Path)
							}
							if !all {
								require.LessOrEqual(t, sum.Packets, seg.Packets+1, name)
							}
						}
					}
					require.Equal(t, given, in+lost+int(r.lost), name)
					require.EqualValues(t, in, r.Totals().Kept, name)
					require.EqualValues(t, given-in, r.Totals().Dropped, name)
					require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
						if err == nil && !e.IsDir() {
							require.True(t, paths[path], "%s: %s is there, and was not told of", name, path)
						}
						return err
					}))
				}
			}
			t.Log(whole.calls, "calls;", kinds)
		})
	}
}
