package mux

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
)

// recording is a Segmenter into a folder, with what it reported.
type recording struct {
	*Segmenter
	segments []Segment
}

func record(t *testing.T, s *stream, f Format, length time.Duration) *recording {
	t.Helper()
	p, err := ParsePattern(filepath.Join(t.TempDir(), "new", "%{key}-%s"+f.Extension()), "cam")
	require.NoError(t, err)
	r := &recording{}
	r.Segmenter = NewSegmenter(SegmenterOptions{
		Format: f, Length: length,
		Create: func(start time.Time) (File, error) { return p.Create(start) },
		Done:   func(s Segment) { r.segments = append(r.segments, s) },
	}, s.Video, s.Audio)
	return r
}

func (r *recording) write(t *testing.T, ps []packet) {
	t.Helper()
	for _, p := range ps {
		require.NoError(t, r.Write(p.Track, p.Packet))
	}
}

// checkSegments plays every file and compares the pictures of all of them with those published.
func (r *recording) checkSegments(t *testing.T, codec uint32, published []packet) {
	t.Helper()
	var got [][]byte
	packets, audio, keys := 0, 0, 0
	for _, s := range r.segments {
		require.NoError(t, s.Err)
		p := checkPlayable(t, s.Path)
		v, _, k := p.track(t, "video")
		require.Len(t, v, s.Packets, s.Path)
		n := 0
		for _, key := range k {
			if key {
				n++
			}
		}
		require.Equal(t, s.Keyframes, n, s.Path)
		keys += n
		packets += s.Packets
		audio += s.AudioPackets
		got = append(got, frames(t, s.Path, codec)...)
	}
	wantVideo, wantAudio := 0, 0
	for _, p := range published {
		if p.Track == VideoTrack {
			wantVideo++
		} else {
			wantAudio++
		}
	}
	require.Equal(t, wantVideo, packets, "access units")
	require.Equal(t, wantAudio, audio, "audio packets")
	require.Equal(t, split(codec, joined(published)), got)
}

// repeat plays the clip n times, one after the other.
func repeat(s *stream, n int, length time.Duration) (ps []packet) {
	for i := range n {
		ps = append(ps, s.Shifted(time.Duration(i)*length)...)
	}
	return ps
}

func total(segments []Segment) (d time.Duration) {
	for _, s := range segments {
		d += s.Duration()
	}
	return d
}

// Files end by the clock at keyframes; the sum of their durations is the time that has passed, to the frame; no access unit and
// no audio sample is lost between files (t7).
func TestSegments(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	testenv.CheckLeaks(t)
	for _, c := range []struct {
		f    Format
		args []string
	}{
		{FMP4, slices.Concat(clips.X264B, clips.AAC)}, {MKV, slices.Concat(clips.X265, clips.Opus)},
		{TS, slices.Concat(clips.X264, clips.AAC)}, {MP4, slices.Concat(clips.X264, clips.AAC)},
	} {
		s := clip(t, "320x180", 4, c.args)
		var whole []packet // whole GOPs, audio to match
		for _, p := range s.Packets {
			if p.PTS < epoch+4e9 || p.Track == VideoTrack {
				whole = append(whole, p)
			}
		}
		s.Packets = whole
		ps := repeat(s, 5, 4*time.Second)
		r := record(t, s, c.f, 5*time.Second)
		r.write(t, ps)
		require.NoError(t, r.Close())
		require.Len(t, r.segments, 4)
		r.checkSegments(t, s.Video.CodecID, ps)
		require.InDelta(t, 20e9, total(r.segments), 45e6)
		for i, seg := range r.segments {
			require.Zero(t, seg.Lost)
			require.False(t, seg.Discontinuous)
			if i > 0 {
				require.Equal(t, r.segments[i-1].End, seg.Start)
			}
			require.InDelta(t, 5e9, seg.Duration(), 45e6)
			if c.f == FMP4 { // the file says the same of itself: its last picture has its true duration
				p := probe(t, seg.Path)
				sum := 0.0
				for _, q := range p.Packets {
					if q.Kind == "video" {
						sum += seconds(t, q.Duration)
					}
				}
				require.InDelta(t, seg.Duration().Seconds(), sum, 0.001)
			}
		}
	}
}

// 25 fps declared, 21 delivered (t5): files end by the clock.
func TestSlowCamera(t *testing.T) {
	s := clip(t, "320x180", 4, clips.X264)
	ps := repeat(s, 5, 4*time.Second)
	for i := range ps {
		ps[i].DTS = epoch + (ps[i].DTS-epoch)*25/21
		ps[i].PTS = ps[i].DTS
	}
	r := record(t, s, FMP4, 6*time.Second)
	r.write(t, ps)
	require.NoError(t, r.Close())
	r.checkSegments(t, s.Video.CodecID, ps)
	require.InDelta(t, 20e9*25/21, total(r.segments), 50e6)
	for _, seg := range r.segments[:len(r.segments)-1] {
		require.InDelta(t, 6e9, seg.Duration(), 1.2e9)
	}
	// cuts keep to the plan: they do not drift by the length of a GOP each time
	for i, seg := range r.segments {
		require.InDelta(t, float64(i)*6, seg.Start.Sub(r.segments[0].Start).Seconds(), 1.2)
	}
}

// A keyframe every three minutes and files of a minute (f2): all is in the file, and on the disk while it is written.
func TestLongGOP(t *testing.T) {
	s := clip(t, "320x180", 2, []string{"-c:v", "libx264", "-preset", "ultrafast", "-g", "1000", "-bf", "0"})
	var ps []packet
	for i := range 45 { // one keyframe and then only the others, every 4.5 s
		p := s.Packets[min(i, 49)]
		p.DTS = epoch + int64(i)*45e8
		p.PTS = p.DTS
		ps = append(ps, p)
	}
	r := record(t, s, FMP4, time.Minute)
	for i, p := range ps {
		require.NoError(t, r.Write(p.Track, p.Packet))
		if i == 30 {
			written := probe(t, r.seg.Path)
			require.GreaterOrEqual(t, len(written.Packets), 28)
		}
	}
	require.NoError(t, r.Close())
	require.Len(t, r.segments, 1)
	require.Equal(t, 45, r.segments[0].Packets)
	checkPlayable(t, r.segments[0].Path)
}

// The SPS alternates, same size, other VUI (b1): the recording is not cut, and every file decodes.
func TestHarmlessSPS(t *testing.T) {
	a := clip(t, "320x180", 2, clips.X264)
	b := clip(t, "320x180", 2, clips.X264, []string{"-color_primaries", "bt709", "-color_trc", "bt709", "-colorspace", "bt709"})
	require.NotEqual(t, a.Video.Extradata, b.Video.Extradata)
	for _, f := range []Format{FMP4, MP4, MKV, TS} {
		var ps []packet
		for i := range 4 {
			ps = append(ps, a.Shifted(time.Duration(i)*4*time.Second)...)
			ps = append(ps, b.Shifted(time.Duration(i)*4*time.Second+2*time.Second)...)
		}
		r := record(t, a, f, time.Minute)
		r.write(t, ps)
		require.NoError(t, r.Close())
		require.Len(t, r.segments, 1, string(f))
		r.checkSegments(t, media.H264, ps)
	}
}

// The picture size changes at a keyframe (b10): a new file, in which nothing of the old size stands.
func TestSizeChange(t *testing.T) {
	a := clip(t, "320x180", 2, clips.X264)
	b := clip(t, "640x360", 2, clips.X264)
	ps := append(a.Shifted(0), b.Shifted(2*time.Second)...)
	ps = append(ps, a.Shifted(4*time.Second)...)
	for _, f := range []Format{FMP4, MKV, TS} {
		r := record(t, a, f, time.Minute)
		r.write(t, ps)
		require.NoError(t, r.Close())
		require.Len(t, r.segments, 3)
		r.checkSegments(t, media.H264, ps)
		for i, w := range []int{320, 640, 320} {
			require.Equal(t, w, probe(t, r.segments[i].Path).Streams[0].Width)
			require.False(t, r.segments[i].Discontinuous)
		}
		require.InDelta(t, 6e9, total(r.segments), 1e6)
	}
}

// Time jumps, marked and not, forth and back, by seconds, hours and a day (t3, t8): a new file at the right wall time, no sample
// of hours, and the durations are those of the pictures.
func TestTimeJumps(t *testing.T) {
	s := clip(t, "320x180", 2, clips.X264, clips.AAC)
	for _, jump := range []time.Duration{27778 * time.Millisecond, -27778 * time.Millisecond, 8520 * time.Second, 24 * time.Hour, -24 * time.Hour} {
		for _, marked := range []bool{true, false} {
			second := s.Shifted(2*time.Second + jump)
			if marked {
				second[0].Flags |= media.FlagDiscontinuity
			}
			ps := append(s.Shifted(0), second...)
			r := record(t, s, FMP4, time.Minute)
			r.write(t, ps)
			require.NoError(t, r.Close())
			require.Len(t, r.segments, 2)
			require.Equal(t, []bool{false, true}, []bool{r.segments[0].Discontinuous, r.segments[1].Discontinuous})
			require.Equal(t, time.Unix(0, epoch).Add(2*time.Second+jump).UnixMilli(), r.segments[1].Start.UnixMilli())
			require.InDelta(t, 4e9, total(r.segments), 50e6)
			for _, seg := range r.segments {
				require.Equal(t, 50, seg.Packets)
				p := probe(t, seg.Path)
				for _, q := range p.Packets {
					if q.Duration != "" {
						require.Less(t, seconds(t, q.Duration), 0.2)
					}
				}
			}
		}
	}
}

// A camera that is connected again tells a time that goes back: whatever sound is handed over in front of its pictures, or late, a file's own goes
// forward, each packet in a place of its own.
func TestSoundGoesBack(t *testing.T) {
	s := clip(t, "320x180", 2, clips.X264, clips.AAC)
	second := s.Shifted(2*time.Second - 600*time.Millisecond)
	second[0].Flags |= media.FlagDiscontinuity
	require.Equal(t, VideoTrack, second[0].Track)
	first := s.Shifted(0)
	var early, pictures []packet // of the second run: sound that is here in front of the first picture
	for _, p := range second {
		if p.Track == AudioTrack && len(early) < 20 {
			early = append(early, p)
		} else {
			pictures = append(pictures, p)
		}
	}
	late := slices.Clone(first[len(first)-6:])
	for _, f := range []Format{FMP4, MP4, MKV, TS} {
		for name, ps := range map[string][]packet{
			"early": slices.Concat(first, early, pictures),
			"late":  slices.Concat(first[:len(first)-6], pictures[:1], late, pictures[1:]),
		} {
			log := &bytes.Buffer{}
			av.SetLogger(slog.New(slog.NewTextHandler(log, nil)))
			r := record(t, s, f, time.Minute)
			r.write(t, ps)
			require.NoError(t, r.Close())
			av.SetLogger(nil)
			require.Empty(t, log.String(), "%s %s", f, name)
			require.Len(t, r.segments, 2)
			for _, seg := range r.segments {
				p := probe(t, seg.Path)
				audio, _, _ := p.track(t, "audio")
				require.Len(t, audio, seg.AudioPackets)
				for i := range audio[1:] {
					require.Greater(t, audio[i+1]-audio[i], 0.01, "%s %s: sound %d of %s", f, name, i, seg.Path)
				}
			}
		}
	}
}

// A gap inside a GOP: what decodes badly is still footage; the next keyframe begins the new file.
func TestGapInGOP(t *testing.T) {
	s := clip(t, "320x180", 4, clips.X264)
	ps := append(s.Shifted(0)[:30], s.Shifted(0)[34:]...)
	ps[30].Flags |= media.FlagDiscontinuity
	r := record(t, s, MKV, time.Minute)
	r.write(t, ps)
	require.NoError(t, r.Close())
	require.Len(t, r.segments, 2)
	require.Equal(t, []int{46, 50}, []int{r.segments[0].Packets, r.segments[1].Packets})
	require.True(t, r.segments[1].Discontinuous)
}

// The file starts at the first keyframe, and audio from then on (t6).
func TestAudioFirst(t *testing.T) {
	s := clip(t, "320x180", 4, clips.X264, clips.AAC)
	var ps []packet
	for _, p := range s.Packets {
		if p.Track == AudioTrack || p.PTS >= epoch+2e9-20e6 { // video from the keyframe at 2 s on
			ps = append(ps, p)
		}
	}
	r := record(t, s, FMP4, time.Minute)
	r.write(t, ps)
	require.NoError(t, r.Close())
	require.Len(t, r.segments, 1)
	require.Equal(t, epoch/1e6+2000, r.segments[0].Start.UnixMilli())
	p := checkPlayable(t, r.segments[0].Path)
	video, _, _ := p.track(t, "video")
	audio, _, _ := p.track(t, "audio")
	require.InDelta(t, 0, video[0], 0.001)
	want := 0.0
	for _, q := range s.Of(AudioTrack) {
		if q.PTS >= s.Of(VideoTrack)[50].PTS {
			want = float64(q.PTS-s.Of(VideoTrack)[50].PTS) / 1e9
			break
		}
	}
	require.InDelta(t, want, audio[0], 0.002)
}

// Audio that appears, changes or goes begins a new file with the next keyframe.
func TestTracksChange(t *testing.T) {
	s := clip(t, "320x180", 4, clips.X264, clips.AAC)
	audio := s.Audio
	s.Audio = nil
	r := record(t, s, FMP4, time.Minute)
	for i, p := range s.Packets {
		if i == len(s.Packets)/2 {
			r.SetTracks(s.Video, audio)
		}
		require.NoError(t, r.Write(p.Track, p.Packet))
	}
	require.NoError(t, r.Close())
	require.Len(t, r.segments, 2)
	require.Len(t, probe(t, r.segments[0].Path).Streams, 1)
	require.Len(t, probe(t, r.segments[1].Path).Streams, 2)
	require.Equal(t, 100, r.segments[0].Packets+r.segments[1].Packets)
	require.False(t, r.segments[1].Discontinuous)
}

// fullDisk fails with ENOSPC once its room is used up; Truncate gives room back.
type fullDisk struct {
	*os.File
	room *int64
}

func (f fullDisk) Write(b []byte) (int, error) {
	if int64(len(b)) > *f.room {
		n, _ := f.File.Write(b[:*f.room])
		*f.room = 0
		return n, &os.PathError{Op: "write", Path: f.Name(), Err: syscall.ENOSPC}
	}
	*f.room -= int64(len(b))
	return f.File.Write(b)
}

// The disk fills up and is freed again (f4): what was written plays, recording goes on by itself, what is missing is counted.
func TestDiskFull(t *testing.T) {
	s := clip(t, "320x180", 4, clips.X264, clips.AAC)
	ps := repeat(s, 8, 4*time.Second)
	room := int64(240 << 10)
	r := record(t, s, FMP4, 3*time.Second)
	create := r.o.Create
	r.o.Create = func(start time.Time) (File, error) {
		f, err := create(start)
		if err != nil {
			return nil, err
		}
		return fullDisk{f.(*os.File), &room}, nil
	}
	failures := 0
	for i, p := range ps {
		if i == len(ps)*3/4 {
			room = 1 << 30
		}
		if err := r.Write(p.Track, p.Packet); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			require.ErrorAs(t, err, new(*WriteError))
			failures++
			r.retryAt = time.Time{} // the clip plays faster than time
		}
	}
	require.NoError(t, r.Close())
	require.NotZero(t, failures)
	packets, lost := 0, uint64(0)
	torn := 0
	for _, seg := range r.segments {
		checkPlayable(t, seg.Path)
		p := probe(t, seg.Path)
		v, _, _ := p.track(t, "video")
		require.GreaterOrEqual(t, len(v), seg.Packets)
		require.Less(t, len(v), seg.Packets+2)
		packets += seg.Packets
		lost += seg.Lost
		if seg.Err != nil {
			torn++
		}
	}
	require.NotZero(t, torn)
	require.EqualValues(t, 800, uint64(packets)+lost)
	files, err := filepath.Glob(filepath.Join(filepath.Dir(r.segments[0].Path), "*"))
	require.NoError(t, err)
	require.Len(t, files, len(r.segments), "no file without pictures stays")
}

// countedSync counts what is forced to the disk.
type countedSync struct {
	*os.File
	n *int
}

func (f countedSync) Sync() error {
	*f.n++
	return f.File.Sync()
}

func TestFsync(t *testing.T) {
	s := clip(t, "320x180", 4, clips.X264)
	for policy, want := range map[Fsync][2]int{FsyncNever: {0, 0}, FsyncSegment: {1, 1}, FsyncFragment: {4, 6}, "": {0, 0}} {
		r := record(t, s, FMP4, 0)
		n := 0
		create := r.o.Create
		r.o.Fsync = policy
		r.o.Create = func(start time.Time) (File, error) {
			f, err := create(start)
			if err != nil {
				return nil, err
			}
			return countedSync{f.(*os.File), &n}, nil
		}
		r.write(t, s.Packets)
		require.NoError(t, r.Close())
		require.GreaterOrEqual(t, n, want[0], string(policy))
		require.LessOrEqual(t, n, want[1], string(policy))
	}
}

// The folder is deleted while a file in it is open: that is a failure like a full disk, and a new file begins, not a recording
// into nothing until the next cut.
func TestFileDeleted(t *testing.T) {
	s := clip(t, "320x180", 4, clips.X264)
	ps := repeat(s, 4, 4*time.Second)
	r := record(t, s, FMP4, 0)
	failures := 0
	for i, p := range ps {
		if i == 60 {
			require.NoError(t, os.RemoveAll(filepath.Dir(r.seg.Path)))
		}
		if err := r.Write(p.Track, p.Packet); err != nil {
			require.ErrorIs(t, err, os.ErrNotExist)
			require.ErrorAs(t, err, new(*WriteError))
			require.ErrorContains(t, err, "deleted")
			failures++
			r.retryAt = time.Time{} // the clip plays faster than time
		}
	}
	require.NoError(t, r.Close())
	require.Equal(t, 1, failures)
	require.Len(t, r.segments, 2)
	require.Error(t, r.segments[0].Err)
	require.Zero(t, r.segments[0].Packets, "none of it is left")
	require.True(t, r.segments[1].Discontinuous)
	require.EqualValues(t, len(ps)-r.segments[1].Packets, r.segments[1].Lost)
	require.Greater(t, r.segments[1].Packets, len(ps)/2)
	checkPlayable(t, r.segments[1].Path)
}

// A keyframe whose parameter sets cannot be read begins no file; the next one does.
func TestUnreadableKeyframe(t *testing.T) {
	s := clip(t, "320x180", 4, clips.X264)
	broken := s.Packets[0].Packet
	broken.Data = []byte{0, 0, 0, 1, 0x67, 0x64, 0, 0, 0, 1, 0x68, 0xEE, 0, 0, 0, 1, 0x65, 0x88, 0x84}
	broken.DTS -= 40e6
	broken.PTS -= 40e6
	s.Video.Extradata = nil
	r := record(t, s, FMP4, time.Minute)
	err := r.Write(VideoTrack, broken)
	require.ErrorIs(t, err, ErrNoSize)
	require.False(t, errors.As(err, new(*WriteError)))
	r.write(t, s.Packets)
	require.NoError(t, r.Close())
	require.Len(t, r.segments, 1)
	r.checkSegments(t, media.H264, s.Packets)
}

func TestOpenFails(t *testing.T) {
	s := clip(t, "320x180", 2, clips.X264)
	r := record(t, s, FMP4, 0)
	r.o.Create = func(time.Time) (File, error) { return nil, io.ErrClosedPipe }
	err := r.Write(VideoTrack, s.Packets[0].Packet)
	require.ErrorIs(t, err, io.ErrClosedPipe)
	require.ErrorAs(t, err, new(*WriteError))
	require.NoError(t, r.Write(VideoTrack, s.Packets[0].Packet), "it waits before it tries again")
	require.NoError(t, r.Close())
}

func TestPattern(t *testing.T) {
	dir := t.TempDir()
	at := time.Date(2026, 3, 9, 7, 5, 4, 123e6, time.Local)
	p, err := ParsePattern(dir+"/%{key}/%Y-%m-%d/%H%M%S-%f%%.mp4", "cam-1")
	require.NoError(t, err)
	f, err := p.Create(at)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, dir+"/cam-1/2026-03-09/070504-123%.mp4", f.Name())

	// nothing is overwritten
	p, err = ParsePattern(dir+"/a.b/%H%M.mp4", "cam")
	require.NoError(t, err)
	var names []string
	for range 3 {
		f, err := p.Create(at)
		require.NoError(t, err)
		names = append(names, strings.TrimPrefix(f.Name(), dir))
		// a file being written is locked, whoever asks
		other, err := os.Open(f.Name())
		require.NoError(t, err)
		another, err := os.Open(f.Name())
		require.NoError(t, err)
		require.True(t, InUse(other))
		require.True(t, InUse(another))
		require.NoError(t, f.Close())
		require.False(t, InUse(other))
		require.False(t, InUse(another), "asking takes no lock")
		require.NoError(t, other.Close())
		require.NoError(t, another.Close())
	}
	require.Equal(t, []string{"/a.b/0705.mp4", "/a.b/0705-2.mp4", "/a.b/0705-3.mp4"}, names)

	for _, bad := range []string{"", "x/", "%Q.mp4", "a%", "%{name}.mp4"} {
		_, err := ParsePattern(bad, "cam")
		require.Error(t, err, bad)
	}
}

// A codec for which the container has no place is no failure of the disk, and leaves no file behind.
func TestSegmenterCannotHold(t *testing.T) {
	for _, f := range []Format{TS, FLV, MKV, FMP4, MP4} {
		s := NewSegmenter(SegmenterOptions{Format: f, Create: func(time.Time) (File, error) {
			t.Error("a file was made")
			return nil, io.ErrClosedPipe
		}}, media.Track{Kind: media.Video, CodecID: media.VP9}, nil)
		for range 2 {
			err := s.Write(VideoTrack, media.Packet{PTS: 1, DTS: 1, Flags: media.FlagKey, Data: []byte{1}})
			var w *WriteError
			require.False(t, errors.As(err, &w), err)
			require.ErrorIs(t, err, ErrCannotHold)
			require.ErrorContains(t, err, "vp9")
		}
	}
}

func TestWriteErrorUnwraps(t *testing.T) {
	require.True(t, errors.Is(&WriteError{Err: io.EOF}, io.EOF))
}
