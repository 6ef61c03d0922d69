package decode

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
)

// clip makes a file of moving pictures with noise; the file's name chooses the container.
func clip(t testing.TB, name, size string, frames int, arg ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	a := []string{"-f", "lavfi", "-i", fmt.Sprintf("testsrc2=s=%s:r=25,noise=alls=12:allf=t", size), "-frames:v", fmt.Sprint(frames)}
	testenv.FFmpeg(t, append(append(a, arg...), path)...)
	return path
}

// accessUnits reads the packets of a file, whose video is in Annex B form.
func accessUnits(t testing.TB, path string) (codecID uint32, extradata []byte, all []Packet) {
	t.Helper()
	c := clips.Read(t, path)
	for _, p := range c.Packets {
		all = append(all, Packet{Data: p.Data, PTS: p.PTS, DTS: p.DTS, Key: p.Flags&media.FlagKey != 0})
	}
	return c.CodecID, c.Extradata, all
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

// decoded are the pictures of packets, those that come late included.
func decoded(t testing.TB, o Options, packets []Packet) ([]got, Stats) {
	t.Helper()
	d, err := Open(o)
	require.NoError(t, err)
	defer d.Close()
	out := collector{t: t}
	for _, p := range packets {
		require.NoError(t, d.Decode(p, out.emit))
	}
	require.NoError(t, d.Drain(out.emit))
	stats := d.Stats()
	require.NoError(t, d.Close())
	return out.all, stats
}

// reference is what ffmpeg decodes, cut into pictures.
func reference(t testing.TB, path, pixelFormat string, w, h int, arg ...string) [][]byte {
	t.Helper()
	a := append([]string{"-i", path}, arg...)
	raw := testenv.FFmpeg(t, append(a, "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", pixelFormat, "-")...)
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
