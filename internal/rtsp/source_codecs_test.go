package rtsp_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"image/jpeg"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// allOf keeps the packets of every track.
type allOf struct {
	mu      sync.Mutex
	tracks  []media.Track
	packets map[media.Kind][]media.Packet
}

func (a *allOf) Tracks(t []media.Track) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tracks = t
	return nil
}

func (a *allOf) Packet(track int, p media.Packet) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.Data = bytes.Clone(p.Data)
	a.packets[a.tracks[track].Kind] = append(a.packets[a.tracks[track].Kind], p)
	return nil
}

// Every codec, through the camera's packets and back: the units are the same, and the time is the camera's.
func TestEveryCodec(t *testing.T) {
	t.Parallel() // it mostly waits
	testenv.Watchdog(t, 2*time.Minute)
	x264 := []string{"-c:v", "libx264", "-preset", "ultrafast", "-bf", "0", "-ac", "1"}
	for name, args := range map[string][]string{
		"h264 aac.mp4":  {"-c:v", "libx264", "-preset", "veryfast", "-bf", "3", "-c:a", "aac"},
		"hevc opus.mkv": {"-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=error:bframes=2", "-c:a", "libopus"},
		"av1.mp4":       {"-c:v", "libsvtav1", "-preset", "12", "-an"},
		"mjpeg.mkv":     {"-c:v", "mjpeg", "-huffman", "default", "-pix_fmt", "yuvj420p", "-an"},
		"h264 ulaw.mkv": append(x264, "-c:a", "pcm_mulaw", "-ar", "8000"),
		"h264 alaw.mkv": append(x264, "-c:a", "pcm_alaw", "-ar", "8000"),
		"h264 l16.nut":  append(x264, "-c:a", "pcm_s16be", "-ar", "16000"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clip := makeClip(t, name, args...)
			camera := startCamera(t, testcam.Options{Clip: clip})
			s, err := rtsp.NewSource(rtsp.SourceOptions{URL: camera.URL(0), Transport: rtsp.TransportTCP})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
			defer cancel()
			got := &allOf{packets: map[media.Kind][]media.Packet{}}
			require.ErrorIs(t, s.Run(ctx, got), context.DeadlineExceeded)
			for i, want := range clip.Tracks() {
				packets := got.packets[want.Kind]
				require.Greater(t, len(packets), 20)
				require.Equal(t, want.CodecID, got.tracks[i].CodecID)
				require.NotEmpty(t, want.CodecID == media.MJPEG || len(got.tracks[i].Extradata) > 0)
				if want.CodecID == media.H264 || want.CodecID == media.HEVC {
					require.Equal(t, want.Extradata, got.tracks[i].Extradata)
				}
				var sums []string
				var sound []byte
				for n, p := range packets {
					h := md5.Sum(p.Data)
					sums = append(sums, hex.EncodeToString(h[:]))
					sound = append(sound, p.Data...)
					require.Zero(t, p.Flags&(media.FlagCorrupt|media.FlagDiscontinuity))
					require.LessOrEqual(t, p.DTS, p.PTS)
					if n > 0 {
						require.Greater(t, p.DTS, packets[n-1].DTS)
					}
				}
				switch want.CodecID {
				case media.MJPEG: // RTP carries the scan, the headers are made anew
					for _, p := range packets[:5] {
						img, err := jpeg.Decode(bytes.NewReader(p.Data))
						require.NoError(t, err)
						first, err := jpeg.Decode(bytes.NewReader(clip.Packets(i)[0].Data))
						require.NoError(t, err)
						size := first.Bounds().Size() // RTP counts in units of 8
						require.Equal(t, [2]int{size.X, (size.Y + 7) / 8 * 8}, [2]int{img.Bounds().Dx(), img.Bounds().Dy()})
					}
				case media.PCMMulaw, media.PCMAlaw, media.PCMS16BE: // cut anew, the samples are the same
					var loop []byte
					for range 2 {
						for _, p := range clip.Packets(i) {
							loop = append(loop, p.Data...)
						}
					}
					require.True(t, bytes.Contains(append(loop, loop...), sound))
				default:
					requireLoop(t, hashes(clip, i), sums)
				}
				// the time of day is the camera's, which is this host's
				require.WithinDuration(t, time.Now(), time.Unix(0, packets[len(packets)-1].PTS), 5*time.Second)
			}
		})
	}
}
