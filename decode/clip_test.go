package decode

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/asticode/go-astiav"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func ffmpeg(t testing.TB, arg ...string) []byte {
	t.Helper()
	cmd := exec.Command(testenv.NeedTool(t, "ffmpeg"), append([]string{"-nostdin", "-v", "error", "-y"}, arg...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "ffmpeg %s\n%s", strings.Join(arg, " "), stderr.String())
	return out
}

// clip makes a file of moving pictures with noise; the file's name chooses the container.
func clip(t testing.TB, name, size string, frames int, arg ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	a := []string{"-f", "lavfi", "-i", fmt.Sprintf("testsrc2=s=%s:r=25,noise=alls=12:allf=t", size), "-frames:v", fmt.Sprint(frames)}
	ffmpeg(t, append(append(a, arg...), path)...)
	return path
}

// accessUnits reads the packets of a file, whose video is in Annex B form.
func accessUnits(t testing.TB, path string) (codecID uint32, extradata []byte, all []Packet) {
	t.Helper()
	f := astiav.AllocFormatContext()
	require.NotNil(t, f)
	defer f.Free()
	require.NoError(t, f.OpenInput(path, nil, nil))
	defer f.CloseInput()
	require.NoError(t, f.FindStreamInfo(nil))
	s := f.Streams()[0]
	pkt := astiav.AllocPacket()
	defer pkt.Free()
	for {
		err := f.ReadFrame(pkt)
		if errors.Is(err, astiav.ErrEof) {
			break
		}
		require.NoError(t, err)
		ns := func(v int64) int64 { return astiav.RescaleQ(v, s.TimeBase(), astiav.NewRational(1, 1e9)) }
		all = append(all, Packet{
			Data: pkt.Data(), PTS: ns(pkt.Pts()), DTS: ns(pkt.Dts()), Key: pkt.Flags().Has(astiav.PacketFlagKey),
		})
		pkt.Unref()
	}
	return uint32(s.CodecParameters().CodecID()), s.CodecParameters().ExtraData(), all
}

// got is a picture without the padding of its lines.
type got struct {
	Layout
	pts    int64
	pixels []byte
}

// packed copies the pixels out of a slot.
func packed(l Layout, b []byte) []byte {
	var out []byte
	for y := range l.Height {
		out = append(out, b[y*l.Pitch:][:l.LumaBytes()]...)
	}
	for y := range l.ChromaLines() {
		out = append(out, b[l.ChromaOffset()+y*l.Pitch:][:l.ChromaBytes()]...)
	}
	return out
}

// collector stores pictures through a slot of host memory.
type collector struct {
	t   testing.TB
	all []got
}

func (c *collector) emit(p *Picture) error {
	slot, err := cudavmm.Host{}.Alloc("cuframes-test-slot", p.Layout.Size())
	if err != nil {
		return err
	}
	defer slot.Close()
	if err := p.Store(slot); err != nil {
		return err
	}
	c.all = append(c.all, got{p.Layout, p.PTS, packed(p.Layout, slot.Bytes())})
	return nil
}

// reference is what ffmpeg decodes, cut into pictures.
func reference(t testing.TB, path, pixelFormat string, w, h int, arg ...string) [][]byte {
	t.Helper()
	a := append([]string{"-i", path}, arg...)
	raw := ffmpeg(t, append(a, "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", pixelFormat, "-")...)
	n := 1
	if strings.Contains(pixelFormat, "10") {
		n = 2
	}
	size := n * (w*h + (w+1)/2*2*((h+1)/2))
	require.Zero(t, len(raw)%size, "%d bytes of %d", len(raw), size)
	var all [][]byte
	for len(raw) > 0 {
		all, raw = append(all, raw[:size]), raw[size:]
	}
	return all
}

func requireEqualPictures(t testing.TB, want [][]byte, have []got) {
	t.Helper()
	require.Len(t, have, len(want))
	for i := range want {
		if !bytes.Equal(want[i], have[i].pixels) {
			for at := range want[i] {
				if want[i][at] != have[i].pixels[at] {
					t.Fatalf("picture %d (%s) differs from byte %d on: %d, want %d", i, have[i].Layout, at, have[i].pixels[at], want[i][at])
				}
			}
		}
		if i > 0 && have[i].pts <= have[i-1].pts {
			t.Fatalf("picture %d at %d ns follows one at %d", i, have[i].pts, have[i-1].pts)
		}
	}
}
