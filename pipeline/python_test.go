package pipeline

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// pythonCheck starts clients/python's check and returns its lines behind "ready".
func pythonCheck(t *testing.T, dir string, arg ...string) (*testenv.Process, *bufio.Scanner) {
	t.Helper()
	root := testenv.Root(t)
	cmd := exec.Command(testenv.Python(t), append([]string{filepath.Join(root, "clients/python/tests/check.py")}, arg...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, "clients/python/src"), "CUFRAMES_RUNTIME_DIR="+dir, "PYTHONDONTWRITEBYTECODE=1")
	p, out := testenv.StartPiped(t, cmd)
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan(), p.Stderr())
	require.Equal(t, "ready", lines.Text())
	return p, lines
}

// Python reads the frames that were published, in order and without a gap: its acknowledgements count under STRICT_WAIT.
func TestPythonFrames(t *testing.T) {
	testenv.Watchdog(t, 60*time.Second)
	for _, format := range []framering.Format{framering.NV12, framering.P010, framering.RGB24} {
		t.Run(format.String(), func(t *testing.T) {
			dir, key := place(t)
			meta, err := framering.MetaOf(format, 321, 121)
			require.NoError(t, err)
			planes, err := meta.Planes()
			require.NoError(t, err)
			p, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key})
			require.NoError(t, err)
			defer p.Close(framering.ReasonNormal)
			o := framering.FrameOptions{Meta: meta, Memory: cudavmm.Host{}, Policy: framering.StrictWait, AckTimeout: 20 * time.Second}
			w, err := p.StartFrames(o)
			require.NoError(t, err)
			require.NoError(t, p.Serve())
			const frames = 40
			python, lines := pythonCheck(t, dir, "frames", key, fmt.Sprint(frames))
			for i := range frames {
				if i == frames/2 { // a new generation: Python comes back by itself
					w, err = p.StartFrames(o)
					require.NoError(t, err)
				}
				slot, err := w.Acquire(t.Context())
				require.NoError(t, err)
				b, r := slot.Buffer.Bytes(), rand.NewPCG(uint64(i), 1)
				for at := 0; at+8 <= len(b); at += 8 {
					v := r.Uint64()
					for k := range 8 {
						b[at+k] = byte(v >> (8 * k))
					}
				}
				sum := sha256.New()
				for _, q := range planes {
					for y := range q.Lines {
						sum.Write(b[q.Offset+y*q.Pitch:][:q.Bytes])
					}
				}
				_, err = w.Publish(int64(i))
				require.NoError(t, err)
				require.True(t, lines.Scan(), python.Stderr())
				var got struct {
					Seq    int
					SHA256 string
					Intact bool
					Format string
					NumPy  bool
				}
				require.NoError(t, json.Unmarshal(lines.Bytes(), &got), lines.Text())
				require.Equal(t, i+1, got.Seq)
				require.Equal(t, fmt.Sprintf("%x", sum.Sum(nil)), got.SHA256)
				require.True(t, got.Intact)
				require.Equal(t, format.String(), got.Format)
				if testenv.Strict() {
					require.True(t, got.NumPy, "python3-numpy is missing")
				}
			}
			require.True(t, lines.Scan())
			require.JSONEq(t, `{"lost": 0}`, lines.Text())
			require.NoError(t, python.WaitFor(t, 10*time.Second))
			require.Zero(t, w.Stats().Dropped)
		})
	}
}

func TestPythonPackets(t *testing.T) {
	for _, protocol := range []uint32{4, 2} {
		t.Run(fmt.Sprintf("protocol-%d", protocol), func(t *testing.T) { pythonPackets(t, protocol) })
	}
}

func pythonPackets(t *testing.T, protocol uint32) {
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Protocol: protocol,
		Packets: packetring.Config{CodecID: 27, Slots: 64, DataSize: 64 << 10}})
	require.NoError(t, err)
	defer pub.Close(framering.ReasonNormal)
	put := func(i int) string {
		b := make([]byte, 1+i*397%9000) // goes round the data ring again and again
		for k := range b {
			b[k] = byte(k*i + k>>8)
		}
		flags := packetring.FlagLastInAU
		if i%10 == 0 {
			flags |= packetring.FlagKey
		}
		_, err := pub.Packet(packetring.Packet{PTS: int64(i), DTS: int64(i), Flags: flags, Data: b})
		require.NoError(t, err)
		return fmt.Sprintf("%x", sha256.Sum256(b))
	}
	var sums []string
	for i := range 15 {
		sums = append(sums, put(i))
	}
	python, lines := pythonCheck(t, dir, "packets", key, "60")
	for i := 10; i < 70; i++ { // from the keyframe of number 10
		if i >= 15 {
			sums = append(sums, put(i))
		}
		require.True(t, lines.Scan(), python.Stderr())
		var got struct {
			Seq    int
			SHA256 string
			PTS    int64 `json:"pts_ns"`
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &got), lines.Text())
		require.Equal(t, i+1, got.Seq)
		require.Equal(t, sums[i], got.SHA256)
		require.EqualValues(t, i, got.PTS)
	}
	require.True(t, lines.Scan())
	require.JSONEq(t, `{"lost": 0}`, lines.Text())
	require.NoError(t, python.WaitFor(t, 10*time.Second))
}
