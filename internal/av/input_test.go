package av

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// collector is a sink that keeps what it gets.
type collector struct {
	tracks  []media.Track
	packets [][]media.Packet
	stop    func(n int) error // asked with the number of video packets
}

func (c *collector) Tracks(tracks []media.Track) error {
	c.tracks = slices.Clone(tracks)
	for len(c.packets) < len(tracks) {
		c.packets = append(c.packets, nil)
	}
	return nil
}

func (c *collector) Packet(i int, p media.Packet) error {
	p.Data = bytes.Clone(p.Data)
	c.packets[i] = append(c.packets[i], p)
	if c.stop != nil {
		return c.stop(len(c.packets[0]))
	}
	return nil
}

// clip makes a file with ffmpeg: 2 s of a test picture and, where the arguments map it (1:a), a tone.
func clip(t *testing.T, name string, args ...string) string {
	t.Helper()
	ffmpeg := testenv.NeedTool(t, "ffmpeg")
	p := filepath.Join(t.TempDir(), name)
	a := append([]string{"-v", "error", "-f", "lavfi", "-i", "testsrc=size=320x180:rate=25:duration=2",
		"-f", "lavfi", "-i", "sine=frequency=440:sample_rate=48000:duration=2", "-pix_fmt", "yuv420p"}, args...)
	out, err := exec.Command(ffmpeg, append(a, p)...).CombinedOutput()
	require.NoError(t, err, string(out))
	return p
}

// rawVideo is the file's video as ffmpeg writes it to a bare byte stream.
func rawVideo(t *testing.T, file, format string) []byte {
	t.Helper()
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-i", file, "-map", "0:v", "-c", "copy", "-f", format, "-").Output()
	require.NoError(t, err)
	return out
}

// pictures are the NAL units without parameter sets and delimiters.
func pictures(codec uint32, annexB []byte) (nals [][]byte) {
	for nal := range bitstream.NALs(annexB) {
		if c := bitstream.Classify(codec, nal); !c.ParamSet && !c.AUD {
			nals = append(nals, bytes.Clone(nal))
		}
	}
	return nals
}

func join(ps []media.Packet) (b []byte) {
	for _, p := range ps {
		b = append(b, p.Data...)
	}
	return b
}

func checkTimes(t *testing.T, ps []media.Packet) {
	t.Helper()
	for i, p := range ps {
		require.GreaterOrEqual(t, p.PTS, p.DTS, "packet %d", i)
		if i > 0 {
			require.Greater(t, p.DTS, ps[i-1].DTS, "packet %d", i)
		}
		require.NotZero(t, p.Flags&media.FlagLastInAU)
	}
}

var bframes = []string{"-map", "0:v", "-map", "1:a", "-c:v", "libx264", "-preset", "ultrafast", "-bf", "2", "-g", "25", "-c:a", "aac"}

func TestInputFiles(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	for _, c := range []struct {
		name  string
		codec uint32
		raw   string
		audio uint32
		args  []string
	}{
		{"b.mp4", media.H264, "h264", media.AAC, bframes},
		{"b.ts", media.H264, "h264", media.AAC, bframes},
		{"v.mkv", media.HEVC, "hevc", media.Opus, []string{"-map", "0:v", "-map", "1:a", "-c:v", "libx265", "-preset", "ultrafast",
			"-x265-params", "log-level=error:info=0:keyint=25:bframes=2", "-c:a", "libopus"}},
		{"v.h264", media.H264, "h264", 0, []string{"-map", "0:v", "-c:v", "libx264", "-preset", "ultrafast", "-bf", "0", "-g", "25"}},
		{"m.mkv", media.MJPEG, "mjpeg", media.PCMMulaw, []string{"-map", "0:v", "-map", "1:a", "-c:v", "mjpeg", "-pix_fmt", "yuvj420p",
			"-ar", "8000", "-c:a", "pcm_mulaw"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := clip(t, c.name, c.args...)
			var got collector
			before := time.Now()
			require.NoError(t, NewInput(InputOptions{URL: file}).Run(t.Context(), &got))
			require.Equal(t, c.codec, got.tracks[0].CodecID)
			video := got.packets[0]
			require.Len(t, video, 50)
			checkTimes(t, video)
			require.InDelta(t, before.UnixNano(), video[0].DTS, float64(10*time.Second))
			require.InDelta(t, 49*40e6, video[49].DTS-video[0].DTS, 2e6)
			keys := 0
			for i, p := range video {
				key := p.Flags&media.FlagKey != 0
				require.Zero(t, p.Flags&media.FlagDiscontinuity)
				if key {
					keys++
				}
				if c.codec == media.H264 || c.codec == media.HEVC {
					require.True(t, bytes.HasPrefix(p.Data, []byte{0, 0, 0, 1}))
					require.Equal(t, i%25 == 0, key, "packet %d", i)
					if key {
						sets := bitstream.NewParameterSets(c.codec)
						sets.Update(p.Data)
						require.True(t, sets.Complete(), "parameter sets in front of keyframe %d", i)
					}
				}
			}
			if c.codec == media.MJPEG {
				require.Equal(t, 50, keys)
				require.Equal(t, rawVideo(t, file, c.raw), join(video))
			} else {
				require.Equal(t, pictures(c.codec, rawVideo(t, file, c.raw)), pictures(c.codec, join(video)))
				require.NotEmpty(t, got.tracks[0].Extradata)
			}
			if c.audio == 0 {
				require.Len(t, got.tracks, 1)
				return
			}
			a := got.tracks[1]
			require.Equal(t, media.Audio, a.Kind)
			require.Equal(t, c.audio, a.CodecID)
			checkTimes(t, got.packets[1])
			require.InDelta(t, 2e9, got.packets[1][len(got.packets[1])-1].PTS-got.packets[1][0].PTS, 0.1e9)
			switch c.audio {
			case media.AAC:
				require.Equal(t, []byte{0x11, 0x88}, a.Extradata[:2]) // AAC-LC, 48 kHz, mono
				require.NotEqual(t, byte(0xFF), got.packets[1][3].Data[0], "no ADTS header")
			case media.Opus:
				require.True(t, bytes.HasPrefix(a.Extradata, []byte("OpusHead")))
			case media.PCMMulaw:
				require.Equal(t, "rate=8000;channels=1", string(a.Extradata))
			}
		})
	}
}

// Time goes on through loops, without a mark, at the stream's own pace; audio never goes back.
func TestInputLoop(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	for _, name := range []string{"l.mp4", "l.ts", "l.h264"} {
		args := bframes
		if name == "l.h264" {
			args = []string{"-map", "0:v", "-c:v", "libx264", "-preset", "ultrafast", "-bf", "0", "-g", "25"}
		}
		file := clip(t, name, args...)
		done := errors.New("enough")
		got := collector{stop: func(n int) error {
			if n == 160 {
				return done
			}
			return nil
		}}
		require.Equal(t, done, NewInput(InputOptions{URL: file, Loop: true}).Run(t.Context(), &got), name)
		for _, ps := range got.packets {
			checkTimes(t, ps)
			for i, p := range ps {
				require.Zero(t, p.Flags&media.FlagDiscontinuity, "%s %d", name, i)
			}
		}
		v := got.packets[0]
		for i := 1; i < len(v); i++ {
			require.InDelta(t, 40e6, v[i].DTS-v[i-1].DTS, 1e6, "%s packet %d", name, i)
		}
		require.Equal(t, v[3].Data, v[103].Data)
	}
}

func TestInputRealtime(t *testing.T) {
	file := clip(t, "r.mp4", bframes...)
	start := time.Now()
	got := collector{stop: func(n int) error {
		if n == 26 {
			return io.ErrShortWrite
		}
		return nil
	}}
	require.Equal(t, io.ErrShortWrite, NewInput(InputOptions{URL: file, Realtime: true}).Run(t.Context(), &got))
	require.Greater(t, time.Since(start), 900*time.Millisecond)
}

// Two recordings one after the other in one transport stream: time goes back in the middle, which is marked; the clock goes on.
func TestInputJump(t *testing.T) {
	file := clip(t, "j.ts", bframes...)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	twice := tempFile(t, "twice.ts", append(bytes.Clone(b), b...))
	var got collector
	require.NoError(t, NewInput(InputOptions{URL: twice}).Run(t.Context(), &got))
	v := got.packets[0]
	require.GreaterOrEqual(t, len(v), 99)
	checkTimes(t, v)
	marks := 0
	for _, p := range v {
		if p.Flags&media.FlagDiscontinuity != 0 {
			marks++
		}
	}
	require.Equal(t, 1, marks)
	require.Less(t, v[len(v)-1].DTS-v[0].DTS, int64(6e9))
}

func TestInputPipes(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	file := clip(t, "p.ts", bframes...)
	b, err := os.ReadFile(file)
	require.NoError(t, err)

	r, w := io.Pipe()
	go func() {
		_, _ = w.Write(b)
		w.Close()
	}()
	var got collector
	require.NoError(t, NewInput(InputOptions{URL: "-", Reader: r}).Run(t.Context(), &got))
	require.Len(t, got.packets[0], 50)

	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	go func() {
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err == nil {
			_, _ = f.Write(b)
			f.Close()
		}
	}()
	got = collector{}
	require.NoError(t, NewInput(InputOptions{URL: fifo}).Run(t.Context(), &got))
	require.Len(t, got.packets[0], 50)
}

// A source that says nothing is given up as soon as the context is done: a silent pipe, a named pipe without a writer, a server
// that accepts and is silent.
func TestInputInterrupt(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	run := func(o InputOptions) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, NewInput(o).Run(ctx, &collector{}), context.DeadlineExceeded)
	}
	r, w := io.Pipe()
	run(InputOptions{URL: "-", Reader: r})
	w.Close()
	r.Close()

	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	run(InputOptions{URL: fifo})

	l, err := (&listener{}).listen()
	require.NoError(t, err)
	defer l.Close()
	run(InputOptions{URL: "tcp://" + l.Addr().String()})
}

func TestInputErrors(t *testing.T) {
	err := NewInput(InputOptions{URL: "/no/such/file.mp4"}).Run(t.Context(), &collector{})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "/no/such/file.mp4")
	require.ErrorContains(t, err, "open")

	err = NewInput(InputOptions{URL: tempFile(t, "noise.bin", []byte(strings.Repeat("noise", 1000)))}).Run(t.Context(), &collector{})
	require.ErrorIs(t, err, ErrInvalidData)
	require.ErrorContains(t, err, "no format that is known here")

	err = NewInput(InputOptions{URL: "tcp://joe:secret@127.0.0.1:1"}).Run(t.Context(), &collector{})
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")

	err = NewInput(InputOptions{URL: "x", Format: "no such"}).Run(t.Context(), &collector{})
	require.ErrorIs(t, err, media.ErrUnsupported)
}
