package mux

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
)

type (
	stream = clips.Stream
	packet = clips.Packet
)

// epoch is when clips begin: their times are known to the ns.
var epoch = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC).UnixNano()

// clip encodes (once) duration seconds of a test picture of the size, and a tone, with the given codec arguments.
func clip(t *testing.T, size string, seconds int, args ...[]string) *stream {
	t.Helper()
	return clips.Encode(t, time.Unix(0, epoch), size, seconds, args...)
}

// probed is what ffprobe says of a file.
type probed struct {
	Streams []struct {
		CodecName string `json:"codec_name"`
		CodecType string `json:"codec_type"`
		Tag       string `json:"codec_tag_string"`
		Width     int    `json:"width"`
		Height    int    `json:"height"`
	} `json:"streams"`
	Packets []struct {
		Kind     string `json:"codec_type"`
		PTS      string `json:"pts_time"`
		DTS      string `json:"dts_time"`
		Duration string `json:"duration_time"`
		Flags    string `json:"flags"`
		Size     string `json:"size"`
	} `json:"packets"`
}

func probe(t *testing.T, file string) (p probed) {
	t.Helper()
	cmd := exec.Command(testenv.NeedTool(t, "ffprobe"), "-v", "error", "-show_streams", "-show_packets", "-of", "json", file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	if !strings.HasSuffix(file, ".nut") { // it misses its index, which streams have not
		require.Empty(t, stderr.String(), file)
	}
	require.NoError(t, json.Unmarshal(out, &p))
	return p
}

func seconds(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	require.NoError(t, err)
	return v
}

// track returns the times of one kind of packets.
func (p *probed) track(t *testing.T, kind string) (pts, dts []float64, keys []bool) {
	t.Helper()
	for _, q := range p.Packets {
		if q.Kind == kind {
			pts = append(pts, seconds(t, q.PTS))
			if q.DTS != "" { // Matroska has none
				dts = append(dts, seconds(t, q.DTS))
			}
			keys = append(keys, strings.HasPrefix(q.Flags, "K"))
		}
	}
	return pts, dts, keys
}

// checkPlayable decodes all of a file without a complaint, and checks that it begins with a keyframe and that time never steps
// back.
func checkPlayable(t *testing.T, file string) probed {
	t.Helper()
	cmd := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-xerror", "-i", "-", "-f", "null", "-")
	if strings.Contains(file, ".mp4") {
		cmd.Args[5] = file // its index stands at the end: not for a pipe
	} else {
		in, err := os.Open(file)
		require.NoError(t, err)
		defer in.Close()
		cmd.Stdin = in
	}
	cmd.Args = append(cmd.Args[:1], append([]string{"-threads", "1"}, cmd.Args[1:]...)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s: %s", file, out)
	require.Empty(t, string(out), file)
	p := probe(t, file)
	for _, kind := range []string{"video", "audio"} {
		_, dts, keys := p.track(t, kind)
		if kind == "video" {
			require.NotEmpty(t, keys, file)
			require.True(t, keys[0], "%s does not begin with a keyframe", file)
		}
		for i := 1; i < len(dts); i++ {
			require.Greater(t, dts[i], dts[i-1], "%s: %s dts of packet %d", file, kind, i)
		}
	}
	return p
}

// frames returns the NAL units (JPEGs) in a file without parameter sets and delimiters, read back by ffmpeg.
func frames(t *testing.T, file string, codec uint32) (units [][]byte) {
	t.Helper()
	format := map[uint32]string{media.H264: "h264", media.HEVC: "hevc", media.MJPEG: "mjpeg", media.AV1: "obu"}[codec]
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-i", file, "-map", "0:v", "-c", "copy", "-f", format, "-").Output()
	require.NoError(t, err)
	return split(codec, out)
}

func split(codec uint32, b []byte) (units [][]byte) {
	if codec == media.MJPEG {
		return [][]byte{b}
	}
	if codec == media.AV1 {
		for o := range bitstream.OBUs(b) {
			if o.Type != bitstream.OBUTemporalDelimiter && o.Type != bitstream.OBUSequenceHeader {
				units = append(units, bytes.Clone(o.Payload))
			}
		}
		return units
	}
	for nal := range bitstream.NALs(b) {
		if c := bitstream.Classify(codec, nal); !c.ParamSet && !c.AUD {
			units = append(units, bytes.Clone(nal))
		}
	}
	return units
}

func joined(ps []packet) (b []byte) {
	for _, p := range ps {
		if p.Track == VideoTrack {
			b = append(b, p.Data...)
		}
	}
	return b
}
