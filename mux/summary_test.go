package mux

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
)

func summary(t *testing.T, path string) Summary {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	s, err := Summarize(t.Context(), f)
	require.NoError(t, err, path)
	return s
}

// What a file tells of itself is what its recorder has reported: exact to the tick of the container.
func TestSummarize(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	testenv.CheckLeaks(t)
	for _, c := range []struct {
		name string
		f    Format
		args []string
		tick time.Duration
	}{
		{"fmp4", FMP4, slices.Concat(clips.X264B, clips.AAC), 12 * time.Microsecond},
		{"fmp4 quicktime", FMP4, slices.Concat(clips.X264, clips.G711), 12 * time.Microsecond},
		{"mp4", MP4, slices.Concat(clips.X265, clips.AAC), 12 * time.Microsecond},
		{"mp4 quicktime", MP4, slices.Concat(clips.X264B, clips.G711), 25 * time.Millisecond}, // FFmpeg puts the samples' offset into the first picture
		{"mkv", MKV, slices.Concat(clips.X265, clips.Opus), 2 * time.Millisecond},
		{"mkv without sound", MKV, clips.X264B, 2 * time.Millisecond},
		{"ts", TS, slices.Concat(clips.X264B, clips.AAC), 24 * time.Microsecond},
		{"ts h265", TS, clips.X265, 24 * time.Microsecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := clip(t, "320x180", 3, c.args)
			ps := repeat(s, 2, 3*time.Second)
			for i := range ps { // not on any tick
				ps[i].PTS += 123456789
				ps[i].DTS += 123456789
			}
			r := record(t, s, c.f, 2*time.Second)
			r.o.Title, r.o.Cause = "door", "event: a b"
			r.Lost(3)
			r.write(t, ps)
			r.Lost(2)
			require.NoError(t, r.Close())
			require.Greater(t, len(r.segments), 1)
			require.Equal(t, []uint64{3, 2}, []uint64{r.segments[0].Lost, r.segments[len(r.segments)-1].Lost})
			for _, seg := range r.segments {
				got := summary(t, seg.Path)
				require.Equal(t, "door", got.Key)
				require.Equal(t, "event: a b", got.Cause)
				require.True(t, got.Exact && got.Complete, "%+v", got)
				require.WithinDuration(t, seg.Start, got.Start.Add(got.Begin), c.tick)
				require.WithinDuration(t, seg.End, got.Start.Add(got.End), c.tick+map[Format]time.Duration{MKV: 25 * time.Millisecond}[c.f])
				require.Equal(t, []any{seg.Video, seg.Audio, seg.Width, seg.Height}, []any{got.Video, got.Audio, got.Width, got.Height})
				require.Equal(t, []any{s.Video.CodecID, 320, 180}, []any{got.Video, got.Width, got.Height})
				require.Equal(t, seg.Bytes, got.Bytes)
				require.Equal(t, Counts{seg.Packets, seg.Keyframes, int64(seg.Lost)}, got.Counts)
			}
		})
	}
}

// A file that was cut off anywhere tells of what can be played, and is never complete; one without pictures is no recording.
func TestSummarizeCutOff(t *testing.T) {
	s := clip(t, "320x180", 3, clips.X264)
	for _, f := range []Format{FMP4, MKV, TS} {
		path := filepath.Join(t.TempDir(), "x"+f.Extension())
		out, err := os.Create(path)
		require.NoError(t, err)
		w, err := NewWriter(WriterOptions{Format: f, Video: s.Video, Key: s.Packets[0].Data, Out: out, Seek: true, Start: s.Packets[0].DTS})
		require.NoError(t, err)
		for _, p := range s.Packets {
			require.NoError(t, w.Write(p.Track, p.Packet))
		}
		require.NoError(t, w.Flush())
		w.Close()
		out.Close()
		whole := summary(t, path)
		require.False(t, whole.Complete)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		last, end, found := 0, time.Duration(0), 0
		for n := 0; n < len(b)-10; n += 977 {
			require.NoError(t, os.WriteFile(path, b[:n], 0o600))
			file, err := os.Open(path)
			require.NoError(t, err)
			got, err := Summarize(t.Context(), file)
			file.Close()
			if err != nil {
				require.ErrorIs(t, err, ErrNoRecording)
				continue
			}
			found++
			require.LessOrEqual(t, got.Bytes, int64(n))
			require.LessOrEqual(t, got.End, whole.End+time.Millisecond)
			require.False(t, got.Complete, n)
			require.GreaterOrEqual(t, got.End, end, "%s cut at %d", f, n)
			end = got.End
			if f != FMP4 {
				require.Equal(t, []int{-1, -1}, []int{got.Packets, got.Keyframes})
				continue
			}
			require.GreaterOrEqual(t, got.Packets, last, "%s cut at %d", f, n)
			last = got.Packets
		}
		require.NotZero(t, found)
		require.Greater(t, end, 45*40*time.Millisecond)
		require.True(t, f != FMP4 || last > 45)
	}
}

// A transport stream is cut off when it says of itself that its end is marked, and it is not; one that says nothing is whole, as far as can be told.
func TestTransportStreamCut(t *testing.T) {
	s := clip(t, "320x180", 3, clips.X264)
	r := record(t, s, TS, time.Hour)
	r.write(t, s.Packets)
	require.NoError(t, r.Close())
	path := r.segments[0].Path
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Zero(t, len(b)%tsPacket)
	for name, c := range map[string]struct {
		b        []byte
		complete bool
	}{
		"whole": {b, true}, "without its end": {b[:len(b)-tsPacket], false}, "in the last packet": {b[:len(b)-1], false}, "half": {b[:len(b)/2], false},
		"of an older version": {b[tsPacket : len(b)-tsPacket], true}, "older, half": {b[tsPacket : len(b)/2], true},
	} {
		require.NoError(t, os.WriteFile(path, c.b, 0o600))
		require.Equal(t, c.complete, summary(t, path).Complete, name)
	}
}

// A text that FFmpeg would take for a list of other files, or for an address to listen at, is no recording, whatever it is called.
func TestListsAreNoRecordings(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	s := clip(t, "320x180", 2, clips.X264)
	r := record(t, s, TS, time.Hour)
	r.write(t, s.Packets)
	require.NoError(t, r.Close())
	other := r.segments[0].Path
	require.NotZero(t, summary(t, other).Video)
	for name, text := range map[string]string{
		"ffconcat": "ffconcat version 1.0\nfile '" + filepath.Base(other) + "'\n",
		"HLS":      "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n" + other + "\n#EXT-X-ENDLIST\n",
		"SDP":      "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 47112 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
	} {
		path := filepath.Join(filepath.Dir(other), name+".mp4")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		f, err := os.Open(path)
		require.NoError(t, err)
		_, err = Summarize(t.Context(), f)
		require.ErrorIs(t, err, ErrNoRecording, name)
		require.ErrorContains(t, err, ": open: Invalid", name)
		f.Close()
	}
}

// A file of nothing but heads of boxes is given up, and reading ends with its context.
func TestManyBoxes(t *testing.T) {
	ftyp := []byte("\x00\x00\x00\x08ftyp")
	b := append(ftyp, bytes.Repeat([]byte("\x00\x00\x00\x08free"), 4*maxIdle)...)
	_, err := summarizeMP4(t.Context(), bytes.NewReader(b), int64(len(b)))
	require.ErrorIs(t, err, errBox)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = summarizeMP4(ctx, bytes.NewReader(b), int64(len(b)))
	require.ErrorIs(t, err, context.Canceled)
	r := record(t, clip(t, "320x180", 2, clips.X264), MKV, time.Hour)
	r.write(t, clip(t, "320x180", 2, clips.X264).Packets)
	require.NoError(t, r.Close())
	f, err := os.Open(r.segments[0].Path)
	require.NoError(t, err)
	defer f.Close()
	_, err = Summarize(ctx, f)
	require.ErrorIs(t, err, context.Canceled)
}

// Whatever stands in the boxes: no crash, no end that lies behind the end, and no more samples than there is room for.
func FuzzBoxes(f *testing.F) {
	clip, err := testcam.EmbeddedClip("h264", true)
	require.NoError(f, err)
	tracks := clip.Tracks()
	for _, format := range []Format{FMP4, MP4} {
		path := filepath.Join(f.TempDir(), "x.mp4")
		out, err := os.Create(path)
		require.NoError(f, err)
		ps := clip.Packets(0)
		w, err := NewWriter(WriterOptions{Format: format, Video: tracks[0], Key: ps[0].Data, Out: out, Seek: true, Start: ps[0].DTS, Title: "door", Flush: 100 * time.Millisecond})
		require.NoError(f, err)
		for _, p := range ps[:8] {
			p.Data = p.Data[:min(len(p.Data), 100)]
			require.NoError(f, w.Write(VideoTrack, p))
		}
		_, err = w.Finish(0)
		require.NoError(f, err)
		require.NoError(f, out.Close())
		b, err := os.ReadFile(path)
		require.NoError(f, err)
		s, err := summarizeMP4(f.Context(), bytes.NewReader(b), int64(len(b)))
		require.NoError(f, err)
		require.Equal(f, []any{8, true, "door"}, []any{s.Packets, s.Complete, s.Key})
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := summarizeMP4(t.Context(), bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		require.NotZero(t, s.Video)
		require.LessOrEqual(t, s.Bytes, int64(len(b)))
		require.GreaterOrEqual(t, s.Packets, 0)
	})
}

// Origins of transport streams stand in one text.
func TestOrigin(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)
	for _, f := range []Format{FMP4, MKV, TS} {
		for _, o := range []Origin{{Key: "door", Start: at}, {Start: at}, {Key: "door", Cause: "event by a b", Start: at}, {Cause: "", Start: at}} {
			m := o.metadata(f)
			got := readOrigin(func(name string) string { return m[name] })
			o.Exact = true
			require.Equal(t, o, got, f)
		}
	}
	require.Equal(t, Origin{Start: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}, readOrigin(func(name string) string {
		return map[string]string{"creation_time": "2026-01-02T03:04:05.000000Z"}[name]
	}))
	require.Zero(t, readOrigin(func(string) string { return "" }))
}

// What a file from elsewhere says of itself is bounded.
func TestOriginOfStrangers(t *testing.T) {
	read := func(m map[string]string) Origin { return readOrigin(func(name string) string { return m[name] }) }
	long := strings.Repeat("x", 1<<20)
	o := read(map[string]string{"title": long, "comment": "a\nb\x00" + long, "date": "2262-01-01T00:00:00.000000000Z", "creation_time": "1969-12-31T23:59:59Z"})
	require.Len(t, o.Key, maxKey)
	require.LessOrEqual(t, len(o.Cause), maxCause)
	require.True(t, strings.HasPrefix(o.Cause, "a b x"), o.Cause)
	require.False(t, o.Exact)
	require.Zero(t, o.Start)
	for _, date := range []string{"0001-01-01T00:00:00.000000001Z", "9999-12-31T23:59:59.000000000Z", "1969-12-31T23:59:59.000000000Z"} {
		require.Zero(t, read(map[string]string{"date": date}).Start, date)
		require.Zero(t, read(map[string]string{"creation_time": date}).Start, date)
	}
	o = read(map[string]string{"service_provider": provider, "service_name": "door 2300-01-01T00:00:00.000000000Z " + long})
	require.Equal(t, "door", o.Key)
	require.Zero(t, o.Start)
	require.Len(t, o.Cause, maxCause)
}
