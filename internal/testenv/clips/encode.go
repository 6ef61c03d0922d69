package clips

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// Arguments of Encode: the pictures of a stream, with a keyframe a second, and the sound beside them.
var (
	X264  = []string{"-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-bf", "0", "-x264-params", "scenecut=0"}
	X264B = []string{"-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-bf", "2", "-x264-params", "scenecut=0"} // with B pictures
	X265  = []string{"-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=error:info=0:keyint=25:bframes=2:scenecut=0"}
	AV1   = []string{"-c:v", "libsvtav1", "-preset", "12", "-g", "25", "-svtav1-params", "lookahead=0"}
	MJPEG = []string{"-c:v", "mjpeg", "-pix_fmt", "yuvj420p"}

	AAC  = []string{"-map", "1:a", "-c:a", "aac"}
	Opus = []string{"-map", "1:a", "-c:a", "libopus"}
	G711 = []string{"-map", "1:a", "-ar", "8000", "-c:a", "pcm_mulaw"}
	G726 = []string{"-map", "1:a", "-ar", "8000", "-c:a", "g726"}
)

// Packet is a packet of a track: 0 has pictures, 1 sound.
type Packet struct {
	Track int
	media.Packet
}

// Stream is a clip in memory as a camera sends it: its packets in the order in which they came.
type Stream struct {
	Video   media.Track
	Audio   *media.Track // nil = without sound
	Packets []Packet
}

var encoded struct {
	sync.Mutex
	m map[string]*Stream
}

// Encode makes (once) some seconds of a test picture of a size at 25 a second, and of a tone, with FFmpeg's arguments, one list behind the
// other. DTS begin at the given time; what stands in front of the first picture is left out. The slice of packets is the caller's, their
// data is not.
func Encode(t testing.TB, begin time.Time, size string, seconds int, args ...[]string) *Stream {
	t.Helper()
	encoded.Lock()
	defer encoded.Unlock()
	name := fmt.Sprint(begin.UnixNano(), size, seconds, args)
	s := encoded.m[name]
	if s == nil {
		s = encode(t, begin, size, seconds, slices.Concat(args...))
		if encoded.m == nil {
			encoded.m = map[string]*Stream{}
		}
		encoded.m[name] = s
	}
	c := *s
	c.Packets = slices.Clone(s.Packets)
	return &c
}

func encode(t testing.TB, begin time.Time, size string, seconds int, args []string) *Stream {
	t.Helper()
	file := filepath.Join(t.TempDir(), "clip.mkv")
	a := slices.Concat([]string{"-v", "error", "-f", "lavfi", "-i", "testsrc=rate=25:size=" + size,
		"-f", "lavfi", "-i", "sine=frequency=440:sample_rate=48000",
		"-t", fmt.Sprint(seconds), "-pix_fmt", "yuv420p", "-map", "0:v"}, args, []string{file})
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), a...).CombinedOutput()
	require.NoError(t, err, string(out))
	s := &Stream{}
	require.NoError(t, av.NewInput(av.InputOptions{URL: file}).Run(t.Context(), (*sink)(s)))
	i := slices.IndexFunc(s.Packets, func(p Packet) bool { return p.Track == 0 })
	require.GreaterOrEqual(t, i, 0, "no pictures")
	first := s.Packets[i]
	s.Packets = slices.DeleteFunc(s.Packets[i:], func(p Packet) bool { return p.PTS < first.PTS }) // audio encoders begin a frame early
	for i := range s.Packets {
		s.Packets[i].PTS += begin.UnixNano() - first.DTS
		s.Packets[i].DTS += begin.UnixNano() - first.DTS
	}
	return s
}

// sink collects a Stream.
type sink Stream

func (s *sink) Tracks(tracks []media.Track) error {
	for _, t := range tracks {
		if t.Kind == media.Video {
			s.Video = t
		} else {
			s.Audio = &t
		}
	}
	return nil
}

func (s *sink) Packet(track int, p media.Packet) error {
	p.Data = bytes.Clone(p.Data)
	s.Packets = append(s.Packets, Packet{track, p})
	return nil
}

// Of are the packets of a track.
func (s *Stream) Of(track int) (ps []Packet) {
	for _, p := range s.Packets {
		if p.Track == track {
			ps = append(ps, p)
		}
	}
	return ps
}

// Shifted are the packets d later.
func (s *Stream) Shifted(d time.Duration) []Packet {
	ps := slices.Clone(s.Packets)
	for i := range ps {
		ps[i].PTS += int64(d)
		ps[i].DTS += int64(d)
	}
	return ps
}
