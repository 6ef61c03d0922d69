package recordings

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/mux"
)

func at(seconds float64) time.Time { return epoch.Add(time.Duration(seconds * float64(time.Second))) }

var ticks = map[mux.Format]time.Duration{mux.FMP4: 50 * time.Microsecond, mux.MP4: 50 * time.Microsecond, mux.TS: 50 * time.Microsecond, mux.MKV: 2 * time.Millisecond}

// Files are joined without a loss: every access unit of the source is in the export once, in order, at its time, in every format, from every
// format, with pictures that are reordered, in H.265, with sound.
func TestExport(t *testing.T) {
	testenv.Watchdog(t, 3*time.Minute)
	testenv.CheckLeaks(t)
	for _, c := range []struct {
		name string
		arg  []string
		from mux.Format
		to   []mux.Format
	}{
		{"h264 with B pictures, AAC, fmp4", slices.Concat(clips.X264B, clips.AAC), mux.FMP4, []mux.Format{mux.FMP4, mux.MP4, mux.MKV, mux.TS}},
		{"h265 with B pictures, AAC, fmp4", slices.Concat(clips.X265, clips.AAC), mux.FMP4, []mux.Format{mux.FMP4, mux.MKV, mux.TS}},
		{"h264, G.711, fmp4", slices.Concat(clips.X264, clips.G711), mux.FMP4, []mux.Format{mux.FMP4, mux.MKV}},
		{"h264 with B pictures, AAC, mkv", slices.Concat(clips.X264B, clips.AAC), mux.MKV, []mux.Format{mux.FMP4, mux.MKV}},
		{"h264 with B pictures, AAC, ts", slices.Concat(clips.X264B, clips.AAC), mux.TS, []mux.Format{mux.FMP4, mux.TS}},
		{"h265, mp4", clips.X265, mux.MP4, []mux.Format{mux.FMP4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := camera(t, "320x180", 10, c.arg)
			dir := t.TempDir()
			files := s.record(t, dir, "door", c.from, 3*time.Second, s.Packets)
			require.Len(t, files, 4)
			tick := ticks[c.from]
			for _, f := range c.to {
				path := filepath.Join(dir, "out"+string(f)+f.Extension())
				// 2.5 s lies in the GOP that begins at 2 s (and at 2.08 s where pictures are reordered).
				lead := float64(s.Packets[0].PTS-s.Packets[0].DTS) / 1e9
				done, err := ExportFile(t.Context(), path, false, ExportOptions{Files: files, From: at(lead + 2.5), To: at(7.2), Format: f})
				require.NoError(t, err)
				require.Empty(t, done.Gaps)
				want := moments(s.Video.CodecID, mux.VideoTrack, s.between(2, 7.2))
				requireSame(t, want, readBack(t, path, mux.VideoTrack), max(tick, ticks[f]), string(f))
				require.Equal(t, len(want), done.Packets)
				plays(t, path)
				if s.Audio != nil {
					sound := readBack(t, path, mux.AudioTrack)
					require.NotEmpty(t, sound)
					if f != mux.MP4 { // it lengthens the first frame of a track that begins late
						require.InDelta(t, at(lead+2).UnixNano(), sound[0].PTS, 40e6)
					}
					require.InDelta(t, at(7.2).UnixNano(), sound[len(sound)-1].PTS, 140e6)
					if s.Audio.CodecID != 65542 { // the frames of G.711 are cut anew by MP4
						var all []moment
						for _, m := range moments(s.Audio.CodecID, mux.AudioTrack, s.Packets) {
							if m.PTS >= sound[0].PTS-int64(2*time.Millisecond) && m.PTS <= sound[len(sound)-1].PTS+int64(2*time.Millisecond) {
								all = append(all, m)
							}
						}
						if f == mux.MP4 {
							all, sound = all[len(all)-100:], sound[len(sound)-100:]
						}
						requireSame(t, all, sound, max(tick, ticks[f], 2*time.Millisecond), "sound in "+string(f))
					}
				}
				info, err := os.Stat(path)
				require.NoError(t, err)
				require.NotZero(t, info.Size())
			}
			requireNoPart(t, dir)
		})
	}
}

// A recorder that was started again with --pre makes files that overlap, several of them make many: every access unit is taken once. A file that
// lies within another adds nothing.
func TestExportOverlap(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	for _, f := range []mux.Format{mux.FMP4, mux.MKV, mux.TS} {
		for _, arg := range [][]string{slices.Concat(clips.X264B, clips.AAC), slices.Concat(clips.X265, clips.AAC)} {
			s := camera(t, "320x180", 10, arg)
			dir := t.TempDir()
			files := s.record(t, dir, "door", f, 4*time.Second, s.between(0, 5.48)) // it ends in the middle of a GOP
			files = append(files, s.record(t, filepath.Join(dir, "b"), "door", f, 4*time.Second, s.between(3, 99))...)
			files = append(files, s.record(t, filepath.Join(dir, "c"), "door", f, time.Minute, s.between(1, 2.5))...)
			require.Len(t, files, 5)
			var b bytes.Buffer
			done, err := Export(t.Context(), ExportOptions{Files: files, From: at(-10), To: at(20), Out: &b, Format: f})
			require.NoError(t, err)
			require.Equal(t, []Gap{{From: at(-10).UTC(), To: done.Start}, {From: done.End, To: at(20).UTC()}}, done.Gaps, "at the ends alone")
			path := filepath.Join(dir, "out"+f.Extension())
			require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
			requireSame(t, moments(s.Video.CodecID, mux.VideoTrack, s.Packets), readBack(t, path, mux.VideoTrack), 2*ticks[f], string(f))
			requireSame(t, moments(s.Audio.CodecID, mux.AudioTrack, s.Packets), readBack(t, path, mux.AudioTrack), 2*time.Millisecond, "sound in "+string(f))
			plays(t, path)
		}
	}
}

// The files of a camera that was connected again, and tells an earlier time then, overlap with other pictures in them: all of the time is in the
// export, because it goes over to the second at a keyframe in the overlap.
func TestExportReconnect(t *testing.T) {
	a, b := camera(t, "320x180", 10, clips.X264B, clips.AAC), camera(t, "320x180", 10, clips.X264, clips.AAC)
	for _, f := range []mux.Format{mux.FMP4, mux.MKV, mux.TS} {
		dir := t.TempDir()
		files := a.record(t, dir, "door", f, 3*time.Second, a.between(0, 5.48))
		files = append(files, b.record(t, filepath.Join(dir, "b"), "door", f, 4*time.Second, b.between(4, 10))...)
		require.Len(t, files, 4)
		path := filepath.Join(dir, "out"+f.Extension())
		done, err := ExportFile(t.Context(), path, false, ExportOptions{Files: files, From: at(1.1), To: at(9), Format: f})
		require.NoError(t, err)
		require.Empty(t, done.Gaps)
		want := moments(a.Video.CodecID, mux.VideoTrack, append(a.between(1, 5), b.between(5, 9)...))
		requireSame(t, want, readBack(t, path, mux.VideoTrack), 2*ticks[f], string(f))
		sound := readBack(t, path, mux.AudioTrack)
		for i := range sound[1:] {
			require.Less(t, sound[i+1].PTS-sound[i].PTS, int64(50e6), "sound goes on")
			require.Greater(t, sound[i+1].PTS-sound[i].PTS, int64(5e6))
		}
	}
}

// A span is told of as what it is: nothing is recorded, or something is and is not in the export.
func TestGapSplit(t *testing.T) {
	files := []File{{Start: at(1), End: at(3)}, {Start: at(2), End: at(4)}, {Start: at(6), End: at(9)}}
	require.Equal(t, []Gap{{From: at(0), To: at(1)}, {From: at(1), To: at(4), LeftOut: true}, {From: at(4), To: at(6)}, {From: at(6), To: at(8), LeftOut: true}}, Gap{From: at(0), To: at(8)}.split(files))
	require.Equal(t, []Gap{{From: at(4.5), To: at(5.5)}}, Gap{From: at(4.5), To: at(5.5)}.split(files))
	require.Equal(t, []Gap{{From: at(3.9), To: at(6.1)}}, Gap{From: at(3.9), To: at(6.1)}.split(files), "some pictures at the ends")
	require.Equal(t, []Gap{{From: at(2), To: at(3.5), LeftOut: true}}, Gap{From: at(2), To: at(3.5)}.split(files))
}

// A gap stays a gap: time goes on, it is told of, and what follows begins with a keyframe.
func TestExportGap(t *testing.T) {
	s := camera(t, "320x180", 10, clips.X264B, clips.AAC)
	for _, f := range []mux.Format{mux.FMP4, mux.MKV, mux.TS} {
		dir := t.TempDir()
		files := s.record(t, dir, "door", mux.FMP4, time.Minute, s.between(0, 3.4))
		files = append(files, s.record(t, dir, "door", mux.FMP4, time.Minute, s.between(6.5, 10))...) // the first keyframe is at 7 s
		require.Len(t, files, 2)
		path := filepath.Join(dir, "out"+f.Extension())
		done, err := ExportFile(t.Context(), path, false, ExportOptions{Files: files, From: at(1), To: at(9), Format: f})
		require.NoError(t, err)
		require.Len(t, done.Gaps, 1)
		require.Equal(t, Gaps(files), done.Gaps)
		require.InDelta(t, at(7.08).UnixNano(), done.Gaps[0].To.UnixNano(), 1e6)
		want := moments(s.Video.CodecID, mux.VideoTrack, append(s.between(0, 3.4), s.between(7, 9)...))
		requireSame(t, want, readBack(t, path, mux.VideoTrack), ticks[f], string(f))

		// A span that begins in the gap begins with what comes after it; one that lies in it has nothing.
		_, err = ExportFile(t.Context(), path, true, ExportOptions{Files: files, From: at(5), To: at(8), Format: f})
		require.NoError(t, err)
		requireSame(t, moments(s.Video.CodecID, mux.VideoTrack, s.between(7, 8)), readBack(t, path, mux.VideoTrack), ticks[f], string(f))
		_, err = ExportFile(t.Context(), filepath.Join(dir, "none.mp4"), false, ExportOptions{Files: files, From: at(4), To: at(6)})
		require.ErrorIs(t, err, ErrNothing)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.NoFileExists(t, filepath.Join(dir, "none.mp4"))
		requireNoPart(t, dir)
	}
}

// Another size in the middle is an error that says when, before anything is written; both sides of it can be exported.
func TestExportChange(t *testing.T) {
	a, b := camera(t, "320x180", 10, clips.X264), camera(t, "160x90", 10, clips.X264)
	c := camera(t, "320x180", 10, clips.X265, clips.AAC)
	dir := t.TempDir()
	for _, other := range []*stream{b, c} {
		files := a.record(t, dir, "door", mux.FMP4, time.Minute, a.between(0, 4))
		files = append(files, other.record(t, dir, "door", mux.FMP4, time.Minute, other.between(4, 10))...)
		path := filepath.Join(dir, "out.mp4")
		o := ExportOptions{Files: files, From: at(0), To: at(10)}
		_, err := ExportFile(t.Context(), path, false, o)
		var change *ChangeError
		require.ErrorAs(t, err, &change)
		require.NoFileExists(t, path)
		for i := range o.Files { // nor does it pass when the index does not know
			o.Files[i].Video, o.Files[i].Width = 0, 0
		}
		_, err = ExportFile(t.Context(), path, false, o)
		require.ErrorAs(t, err, &change)
		require.NoFileExists(t, path)
		requireNoPart(t, dir)
		o.To = change.At
		_, err = ExportFile(t.Context(), path, true, o)
		require.NoError(t, err)
		o.From, o.To = change.At, at(10)
		_, err = ExportFile(t.Context(), path, true, o)
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
	}
}

func requireNoPart(t *testing.T, dir string) {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, "*.part"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// Exports into one file at once touch neither each other nor a file of the user: the first that is complete makes it, the others fail unless
// they replace it by force.
func TestExportIntoOneFile(t *testing.T) {
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	files := s.record(t, dir, "door", mux.FMP4, 3*time.Second, s.Packets)
	path := filepath.Join(dir, "out.mp4")
	own := path + ".part"
	require.NoError(t, os.WriteFile(own, []byte("precious"), 0o600))
	for _, force := range []bool{false, true} {
		var inner []byte
		o := ExportOptions{Files: files, From: at(0), To: at(10), Progress: func(done float64) {
			if done < 0.5 || inner != nil {
				return
			}
			_, err := ExportFile(t.Context(), path, false, ExportOptions{Files: files, From: at(2), To: at(4)})
			require.NoError(t, err)
			inner, err = os.ReadFile(path)
			require.NoError(t, err)
			requireSame(t, moments(s.Video.CodecID, mux.VideoTrack, s.between(2, 4)), readBack(t, path, mux.VideoTrack), ticks[mux.FMP4], "inner")
		}}
		_, err := ExportFile(t.Context(), path, force, o)
		if force {
			require.NoError(t, err)
			requireSame(t, moments(s.Video.CodecID, mux.VideoTrack, s.Packets), readBack(t, path, mux.VideoTrack), ticks[mux.FMP4], "outer")
		} else {
			require.ErrorIs(t, err, ErrExists)
			left, err := os.ReadFile(path)
			require.NoError(t, err)
			require.True(t, bytes.Equal(inner, left))
		}
		b, err := os.ReadFile(own)
		require.NoError(t, err)
		require.Equal(t, "precious", string(b))
		require.NoError(t, os.Remove(path))
	}
	require.NoError(t, os.Remove(own))
	requireNoPart(t, dir)
}

// What exists is not replaced, and a cancelled or failed export leaves nothing.
func TestExportFile(t *testing.T) {
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	files := s.record(t, dir, "door", mux.FMP4, 3*time.Second, s.Packets)
	path := filepath.Join(dir, "out.mp4")
	require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
	o := ExportOptions{Files: files, From: at(0), To: at(10)}
	_, err := ExportFile(t.Context(), path, false, o)
	require.ErrorIs(t, err, ErrExists)
	ctx, cancel := context.WithCancel(t.Context())
	o.Progress = func(done float64) {
		if done > 0.5 {
			cancel()
		}
	}
	_, err = ExportFile(ctx, path, true, o)
	require.ErrorIs(t, err, context.Canceled)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "precious", string(b))
	requireNoPart(t, dir)

	o.Out = failing{}
	_, err = Export(t.Context(), ExportOptions{Files: files, From: at(0), To: at(10), Out: failing{}})
	require.ErrorIs(t, err, errFull)
}

var errFull = errors.New("no room")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }

// A file that was cut off, by kill -9 or by a loss of power, is exported as far as it goes.
func TestExportCutOff(t *testing.T) {
	s := camera(t, "320x180", 10, clips.X264B, clips.AAC)
	dir := t.TempDir()
	files := s.record(t, dir, "door", mux.FMP4, 4*time.Second, s.Packets)
	require.Len(t, files, 3)
	info, err := os.Stat(files[1].Path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(files[1].Path, info.Size()*6/10))
	p, err := Folder(dir)
	require.NoError(t, err)
	found, err := Scan(t.Context(), []Place{p}, Query{}, nil)
	require.NoError(t, err)
	require.Len(t, found, 3)
	require.Equal(t, []string{"finished", "cut", "finished"}, []string{found[0].State(), found[1].State(), found[2].State()})
	require.WithinDuration(t, files[1].Start, found[1].Start, ticks[mux.FMP4])
	require.Less(t, found[1].Packets, files[1].Packets)
	require.NotZero(t, found[1].Packets)
	path := filepath.Join(dir, "out.mp4")
	done, err := ExportFile(t.Context(), path, false, ExportOptions{Files: found, From: at(0), To: at(20)})
	require.NoError(t, err)
	require.Len(t, done.Gaps, 2)
	require.Equal(t, Gap{From: done.End, To: at(20).UTC()}, done.Gaps[1], "recorded only until")
	got := readBack(t, path, mux.VideoTrack)
	require.GreaterOrEqual(t, int64(len(got)), found[0].Packets+found[1].Packets+found[2].Packets)
	want := map[string]bool{}
	for _, m := range moments(s.Video.CodecID, mux.VideoTrack, s.Packets) {
		want[m.Sum] = true
	}
	require.EqualValues(t, done.Packets, len(got))
	for _, m := range got {
		require.True(t, want[m.Sum])
	}
	plays(t, path)
}

// A file that its recorder has just begun holds nothing yet, which is no reason to warn: an export up to now meets one now and then.
func TestExportJustBegun(t *testing.T) {
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	files := s.record(t, dir, "door", mux.FMP4, time.Minute, s.Packets)
	require.Len(t, files, 1)
	path := filepath.Join(dir, "next.mp4")
	require.NoError(t, os.WriteFile(path, []byte("\x00\x00\x00\x1cftyp0123456789abcdefghij"), 0o600))
	end := files[0].End
	files = append(files, File{Key: "door", Path: path, Start: end, End: end, Open: true})
	var log bytes.Buffer
	done, err := Export(t.Context(), ExportOptions{Files: files, From: at(0), To: at(20), Out: io.Discard, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	require.Equal(t, 1, done.Files)
	require.Empty(t, log.String())
	files[1].Open = false // it is cut off: that is told
	_, err = Export(t.Context(), ExportOptions{Files: files, From: at(0), To: at(20), Out: io.Discard, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	require.Contains(t, log.String(), path)
}
