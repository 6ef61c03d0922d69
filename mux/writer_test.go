package mux

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
)

func writeFile(t *testing.T, path string, f Format, s *stream, ps []packet, live bool) {
	t.Helper()
	out, err := os.Create(path)
	require.NoError(t, err)
	defer out.Close()
	o := WriterOptions{Format: f, Video: s.Video, Audio: s.Audio, Key: ps[0].Data, Out: out, Seek: !live, Live: live, Start: ps[0].DTS}
	w, err := NewWriter(o)
	require.NoError(t, err)
	for _, p := range ps {
		if p.Track == AudioTrack && f == AnnexB {
			continue
		}
		require.NoError(t, w.Write(p.Track, p.Packet))
	}
	_, err = w.Finish(0)
	require.NoError(t, err)
}

// Every format with every codec it holds, as a file and as a live stream: Debian's tools see all packets at their times, decode
// them without a complaint and give the source's bytes back.
func TestFormats(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	testenv.CheckLeaks(t)
	for _, c := range []struct {
		name    string
		args    []string
		formats []Format
	}{
		{"h264+aac", slices.Concat(clips.X264B, clips.AAC), []Format{FMP4, MP4, MKV, TS, NUT, AnnexB}},
		{"h265+opus", slices.Concat(clips.X265, clips.Opus), []Format{FMP4, MP4, MKV, TS, NUT, AnnexB}},
		{"h264+g711", slices.Concat(clips.X264, clips.G711), []Format{FMP4, MP4, MKV, NUT}},
		{"h264+g726", slices.Concat(clips.X264, clips.G726), []Format{MKV}},
		{"mjpeg", clips.MJPEG, []Format{FMP4, MP4, MKV, NUT, AnnexB}},
		{"av1", clips.AV1, []Format{FMP4, MKV, NUT}},
	} {
		s := clip(t, "320x180", 3, c.args)
		for _, f := range c.formats {
			for _, live := range []bool{false, true} {
				if live && (f == MP4 || c.name == "h264+g711" || c.name == "h265+opus") { // MP4 patches its file; the others cost time alone
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/live=%v", c.name, f, live), func(t *testing.T) {
					path := filepath.Join(t.TempDir(), "x"+f.Extension())
					if f == AnnexB {
						path += map[uint32]string{media.H264: ".h264", media.HEVC: ".hevc", media.MJPEG: ".mjpeg"}[s.Video.CodecID]
					}
					writeFile(t, path, f, s, s.Packets, live)
					if f == AnnexB {
						got, err := os.ReadFile(path)
						require.NoError(t, err)
						require.Equal(t, joined(s.Packets), got)
						return
					}
					p := checkPlayable(t, path)
					checkPackets(t, f, s, &p)
					require.Equal(t, split(s.Video.CodecID, joined(s.Packets)), frames(t, path, s.Video.CodecID))
				})
			}
		}
	}
}

func checkPackets(t *testing.T, f Format, s *stream, p *probed) {
	t.Helper()
	tick := map[Format]float64{MKV: 0.00101, TS: 0.0001, NUT: 0.0011}[f]
	if tick == 0 {
		tick = 0.0001
	}
	for track, kind := range []string{"video", "audio"} {
		want := s.Of(track)
		pts, _, _ := p.track(t, kind)
		if f == TS && track == AudioTrack { // several frames share a PES packet
			require.InDelta(t, len(want), len(pts), 2)
			continue
		}
		if f == MP4 && track == AudioTrack && s.Audio != nil && s.Audio.CodecID == media.PCMMulaw { // read in chunks of any size
			require.NotEmpty(t, pts)
			continue
		}
		require.Len(t, pts, len(want), kind)
		if len(want) == 0 {
			continue
		}
		if track == AudioTrack && (f == MP4 || s.Audio.CodecID == media.PCMMulaw && f == FMP4) {
			continue // edit lists and PCM chunks: counted above, the times are those of the samples
		}
		videoPTS, _, _ := p.track(t, "video")
		offset := videoPTS[0] - float64(s.Of(VideoTrack)[0].PTS-s.Packets[0].DTS)/1e9
		for i, q := range want {
			require.InDelta(t, float64(q.PTS-s.Packets[0].DTS)/1e9+offset, pts[i], tick+0.001, "%s packet %d", kind, i)
		}
	}
}

func TestTags(t *testing.T) {
	for _, c := range []struct {
		args []string
		tag  string
	}{{clips.X264, "avc1"}, {clips.X265, "hvc1"}} {
		s := clip(t, "320x180", 3, c.args)
		path := filepath.Join(t.TempDir(), "x.mp4")
		writeFile(t, path, FMP4, s, s.Packets, false)
		p := probe(t, path)
		require.Equal(t, c.tag, p.Streams[0].Tag)
		require.Equal(t, []int{320, 180}, []int{p.Streams[0].Width, p.Streams[0].Height})
	}
}

// Audio that begins half a second after the video keeps that distance (t6).
func TestAudioOffset(t *testing.T) {
	s := clip(t, "320x180", 3, clips.X264, clips.AAC)
	var ps []packet
	for _, p := range s.Packets {
		if p.Track == VideoTrack || p.PTS >= epoch+5e8 {
			ps = append(ps, p)
		}
	}
	for _, f := range []Format{FMP4, MP4, MKV, TS, NUT} {
		path := filepath.Join(t.TempDir(), "x"+f.Extension())
		writeFile(t, path, f, s, ps, false)
		p := probe(t, path)
		video, _, _ := p.track(t, "video")
		audio, _, _ := p.track(t, "audio")
		if f == MP4 { // the first sample begins at once and lasts longer; all others keep their time
			require.InDelta(t, 0.5+0.0213, audio[1]-video[0], 0.025)
			continue
		}
		require.InDelta(t, 0.5, audio[0]-video[0], 0.025, string(f))
	}
}

// Pictures stand where they belong, and sound but for its first sample too, however late the sound begins: in a finished mp4 as well.
func TestLateSound(t *testing.T) {
	for _, encoder := range [][]string{clips.X264, append(slices.Clone(clips.X264), "-bf", "2")} {
		s := clip(t, "320x180", 3, encoder, clips.AAC)
		for _, late := range []time.Duration{0, 15 * time.Millisecond, 500 * time.Millisecond} {
			var ps []packet
			for _, p := range s.Packets {
				if p.Track == AudioTrack {
					p.PTS += int64(late)
					p.DTS = p.PTS
				}
				ps = append(ps, p)
			}
			path := filepath.Join(t.TempDir(), "x.mp4")
			writeFile(t, path, MP4, s, ps, false)
			p := probe(t, path)
			video, _, _ := p.track(t, "video")
			audio, _, _ := p.track(t, "audio")
			pictures, sound := s.Of(VideoTrack), s.Of(AudioTrack)
			require.Len(t, video, len(pictures))
			require.Len(t, audio, len(sound))
			for i := range pictures {
				require.InDelta(t, float64(pictures[i].PTS-pictures[0].PTS)/1e9, video[i]-video[0], 0.001, "picture %d, sound late by %v", i, late)
			}
			for i := range sound[1:] {
				require.InDelta(t, float64(sound[i+1].PTS+int64(late)-pictures[0].PTS)/1e9, audio[i+1]-video[0], 0.002, "sound %d, late by %v", i+1, late)
			}
		}
	}
}

// A file cut off anywhere plays up to the last whole fragment (f3).
func TestTornFile(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := clip(t, "320x180", 6, clips.X264B, clips.AAC)
	ffmpeg := testenv.NeedTool(t, "ffmpeg")
	for _, f := range []Format{FMP4, MP4, MKV, TS} {
		path := filepath.Join(t.TempDir(), "x"+f.Extension())
		out, err := os.Create(path)
		require.NoError(t, err)
		var whole int64 // after the last flush
		flushes := 0
		w, err := NewWriter(WriterOptions{Format: f, Video: s.Video, Audio: s.Audio, Key: s.Packets[0].Data, Out: out, Seek: true,
			Start: s.Packets[0].DTS, OnFlush: func() error { flushes++; whole, err = out.Seek(0, 1); return err }})
		require.NoError(t, err)
		videoAtFlush := 0
		video := 0
		for _, p := range s.Packets {
			before := flushes
			require.NoError(t, w.Write(p.Track, p.Packet))
			if flushes > before {
				videoAtFlush = video - 1 // the newest waits for its duration, and this one began the next fragment
			}
			if p.Track == VideoTrack {
				video++
			}
		}
		require.GreaterOrEqual(t, flushes, 4, string(f))
		w.Close() // no trailer: killed
		require.NoError(t, out.Close())
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Len(t, b, int(whole))
		for _, torn := range []int{0, 1, 100, 3000} { // bytes of the next fragment
			name := filepath.Join(t.TempDir(), "torn"+f.Extension())
			tail := bytes.Repeat([]byte{0, 0, 16, 1}, torn/4+1)[:torn]
			require.NoError(t, os.WriteFile(name, append(bytes.Clone(b), tail...), 0o600))
			o, err := exec.Command(ffmpeg, "-v", "quiet", "-i", name, "-map", "0:v", "-c", "copy", "-f", "framecrc", "-").Output()
			require.NoError(t, err, "%s +%d", f, torn)
			n := 0
			for line := range bytes.Lines(o) {
				if line[0] != '#' {
					n++
				}
			}
			require.GreaterOrEqual(t, n, videoAtFlush, "%s +%d", f, torn)
			require.GreaterOrEqual(t, n, 100, "%s +%d", f, torn)
		}
	}
}

func TestRefusals(t *testing.T) {
	s := clip(t, "320x180", 3, clips.MJPEG)
	_, err := NewWriter(WriterOptions{Format: TS, Video: s.Video, Key: s.Packets[0].Data, Out: &bytes.Buffer{}})
	require.ErrorContains(t, err, "cannot hold")
	require.Error(t, HoldsAudio(TS, media.PCMAlaw))
	require.Error(t, HoldsAudio(FMP4, media.G726))
	require.Error(t, HoldsAudio(AnnexB, media.AAC))
	require.NoError(t, HoldsAudio(MKV, media.G726))
	_, err = NewWriter(WriterOptions{Format: FMP4, Video: media.Track{CodecID: media.H264}, Key: []byte{0, 0, 0, 1, 0x65, 1, 2}, Out: &bytes.Buffer{}})
	require.ErrorIs(t, err, ErrNoSize)
	for _, bad := range []string{"", "avi"} {
		_, err := ParseFormat(bad)
		require.Error(t, err)
	}
	for name, want := range map[string]Format{"fmp4": FMP4, "mpegts": TS, "TS": TS, "matroska": MKV, "nut": NUT, "annexb": AnnexB, "mp4": MP4} {
		f, err := ParseFormat(name)
		require.NoError(t, err)
		require.Equal(t, want, f)
	}
}
