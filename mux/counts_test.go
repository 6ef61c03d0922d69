package mux

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
)

// What no recorder would write is not believed, and reads nothing beyond its bounds.
func TestCountsHostile(t *testing.T) {
	for _, text := range []string{
		"", "packets=1", "packets=-1 keyframes=-1 lost=0", "packets=1 keyframes=2 lost=0", "packets=2 keyframes=1 lost=-5",
		"packets=1001 keyframes=1 lost=0",
		"packets=99999999999999999999 keyframes=1 lost=0", "packets=1 keyframes=1 lost=99999999999999999999",
	} {
		require.Equal(t, unknownCounts, readCounts(text, 1000), text)
	}
	require.Equal(t, Counts{1000, 0, 1<<63 - 1}, readCounts("packets=1000 keyframes=0 lost=9223372036854775807", 1000))
}

// A Matroska file that is cut anywhere, or has any byte of its head or its end changed, gives the counts or none, and no others.
func TestCountsDamaged(t *testing.T) {
	s := clip(t, "320x180", 3, slices.Concat(clips.X264B, clips.AAC))
	r := record(t, s, MKV, time.Hour)
	r.write(t, s.Packets)
	require.NoError(t, r.Close())
	b, err := os.ReadFile(r.segments[0].Path)
	require.NoError(t, err)
	want := Counts{r.segments[0].Packets, r.segments[0].Keyframes, 0}
	require.Equal(t, want, mkvCountsOf(bytes.NewReader(b), int64(len(b))))
	for n := range len(b) {
		if n%97 == 0 || n < 1000 || n > len(b)-2000 {
			if c := mkvCountsOf(bytes.NewReader(b[:n]), int64(n)); c != unknownCounts {
				require.Equal(t, want, c, n)
			}
		}
	}
	digits := bytes.LastIndex(b, []byte("packets="))
	for n := range len(b) {
		if n >= 1000 && n < len(b)-2000 || n >= digits && n < digits+40 {
			continue
		}
		for _, v := range []byte{0, 0xFF, b[n] ^ 0x80, b[n] + 1} {
			x := slices.Clone(b)
			x[n] = v
			if c := mkvCountsOf(bytes.NewReader(x), int64(len(x))); c != unknownCounts {
				require.Equal(t, want, c, n)
			}
		}
	}
}

// A reader of the file goes over the counts: it gets every picture and every sound.
func TestCountsAreLeftOut(t *testing.T) {
	s := clip(t, "320x180", 3, slices.Concat(clips.X264B, clips.AAC))
	for _, f := range []Format{FMP4, MP4, MKV, TS} {
		r := record(t, s, f, time.Hour)
		r.write(t, s.Packets)
		require.NoError(t, r.Close())
		file, err := os.Open(r.segments[0].Path)
		require.NoError(t, err)
		defer file.Close()
		in, err := av.OpenFile(t.Context(), file, nil)
		require.NoError(t, err)
		defer in.Close()
		n := map[int]int{}
		for {
			track, _, err := in.Next()
			if err != nil {
				break
			}
			n[track]++
		}
		require.Equal(t, r.segments[0].Packets, n[0], f)
		require.GreaterOrEqual(t, n[1], r.segments[0].AudioPackets, f) // a transport stream's are cut anew
	}
}
