package recordings

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/mux"
)

// epoch is when everything in these tests begins; it stands on no tick of any container.
var epoch = time.Date(2026, 5, 4, 12, 0, 0, 123456789, time.UTC)

type packet = clips.Packet

// stream is what a camera has sent.
type stream struct{ *clips.Stream }

// camera encodes (once) some seconds, a keyframe each second.
func camera(t *testing.T, size string, seconds int, args ...[]string) *stream {
	t.Helper()
	return &stream{clips.Encode(t, epoch, size, seconds, args...)}
}

// between are the packets whose DTS lies in a span of seconds since the beginning.
func (s *stream) between(from, to float64) (ps []packet) {
	for _, p := range s.Packets {
		if at := time.Duration(p.DTS - epoch.UnixNano()).Seconds(); at >= from-0.001 && at < to-0.001 {
			ps = append(ps, p)
		}
	}
	return ps
}

// record writes packets as a recorder does, and returns its files. It begins with the first keyframe.
func (s *stream) record(t *testing.T, dir, key string, f mux.Format, length time.Duration, ps []packet) (files []File) {
	t.Helper()
	out := filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S"+f.Extension())
	p, err := mux.ParsePattern(out, key)
	require.NoError(t, err)
	g := mux.NewSegmenter(mux.SegmenterOptions{
		Format: f, Title: key, Length: length,
		Create: func(start time.Time) (mux.File, error) { return p.Create(start) },
		Done:   func(s mux.Segment) { files = append(files, FileOf(key, s)) },
	}, s.Video, s.Audio)
	for _, p := range ps {
		require.NoError(t, g.Write(p.Track, p.Packet))
	}
	require.NoError(t, g.Close())
	return files
}

// digest tells an access unit by what decoders see of it: containers add and drop delimiters and parameter sets.
func digest(codec uint32, b []byte) string {
	h := sha256.New()
	if media.IsAudio(codec) {
		h.Write(b)
	} else {
		for nal := range bitstream.NALs(b) {
			if c := bitstream.Classify(codec, nal); !c.ParamSet && !c.AUD {
				h.Write(bitstream.AppendNAL(nil, nal))
			}
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// moment is an access unit and when it is shown, to the ms.
type moment struct {
	Sum string
	PTS int64
}

func moments(codec uint32, track int, ps []packet) (list []moment) {
	for _, p := range ps {
		if p.Track == track {
			list = append(list, moment{digest(codec, p.Data), p.PTS})
		}
	}
	return list
}

// readBack reads a file by itself: nothing but its bytes tells its times.
func readBack(t *testing.T, path string, track int) (list []moment) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	r, err := mux.OpenReader(t.Context(), f, time.Time{}, nil)
	require.NoError(t, err)
	defer r.Close()
	for {
		got, p, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		if got == track {
			codec := r.Video().CodecID
			if track == mux.AudioTrack {
				codec = r.Audio().CodecID
			}
			list = append(list, moment{digest(codec, p.Data), p.PTS})
		}
	}
}

// requireSame compares what is in a file with what was sent: every access unit once, in order, at its time.
func requireSame(t *testing.T, want, got []moment, tick time.Duration, text string) {
	t.Helper()
	sums := func(list []moment) string {
		var b strings.Builder
		for _, m := range list {
			b.WriteString(m.Sum + "\n")
		}
		return b.String()
	}
	missing := map[string]int64{}
	for _, m := range want {
		missing[m.Sum] = m.PTS - epoch.UnixNano()
	}
	for _, m := range got {
		delete(missing, m.Sum)
	}
	require.Equal(t, len(want), len(got), "%s: missing (ns): %v", text, missing)
	require.Equal(t, sums(want), sums(got), text)
	for i := range want {
		require.InDelta(t, want[i].PTS, got[i].PTS, float64(tick), "%s: access unit %d", text, i)
	}
}

// plays lets ffmpeg decode a file, which must not complain.
func plays(t *testing.T, path string) {
	t.Helper()
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-xerror", "-threads", "1", "-i", path, "-f", "null", "-").CombinedOutput()
	require.NoError(t, err, "%s: %s", path, out)
	require.Empty(t, string(out), path)
}
