package mux

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
)

// counted counts what is read.
type counted struct {
	io.ReaderAt
	n int64
}

func (c *counted) ReadAt(b []byte, at int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(b, at)
	c.n += int64(n)
	return n, err
}

// unfinishedMKV is what a recorder leaves that is killed: units of the size given, a cluster a second.
func unfinishedMKV(t *testing.T, seconds, size int, args ...string) []byte {
	t.Helper()
	s := clip(t, "320x180", 3, args)
	path := filepath.Join(t.TempDir(), "x.mkv")
	out, err := os.Create(path)
	require.NoError(t, err)
	defer out.Close()
	w, err := NewWriter(WriterOptions{Format: MKV, Video: s.Video, Audio: s.Audio, Key: s.Packets[0].Data, Out: out,
		Seek: true, Start: s.Packets[0].DTS})
	require.NoError(t, err)
	filler := slices.Concat([]byte{0, 0, 0, 1, 12}, bytes.Repeat([]byte{0xFF}, size), []byte{0x80})
	for _, p := range repeat(s, seconds/3, 3*time.Second) {
		if p.Track == VideoTrack {
			p.Data = slices.Concat(p.Data, filler)
		}
		require.NoError(t, w.Write(p.Track, p.Packet))
	}
	require.NoError(t, w.Flush())
	w.Close()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// Of a Matroska file that is being written the head and the end are read, and tell the same as all of it, wherever it ends.
func TestMkvTail(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	testenv.CheckLeaks(t)
	for name, args := range map[string][]string{"h264": clips.X264, "h264 with sound": slices.Concat(clips.X264B, clips.AAC), "h265": clips.X265} {
		t.Run(name, func(t *testing.T) {
			b := unfinishedMKV(t, 30, 20_000, args...)
			for cut := 0; cut < 1_500_000; cut += 97_217 {
				b := b[:len(b)-cut]
				in, err := av.OpenFile(t.Context(), bytes.NewReader(b), nil)
				require.NoError(t, err)
				want, ok, err := lastPicture(in)
				in.Close()
				require.True(t, ok && err == nil)
				r := &counted{ReaderAt: bytes.NewReader(b)}
				got, ok := mkvTail(t.Context(), r, int64(len(b)))
				require.True(t, ok, "cut off %d", cut)
				require.Equal(t, want, got, "cut off %d", cut)
				require.Less(t, r.n, int64(4<<20))
			}
		})
	}
}

// What only looks like clusters is left to a reader of the whole file, and is gone through once.
func TestMkvTailHostile(t *testing.T) {
	testenv.Watchdog(t, 10*time.Second)
	good := unfinishedMKV(t, 9, 20_000, clips.X264...)
	head := firstCluster(bytes.NewReader(good), int64(len(good)))
	require.Greater(t, head, int64(100))
	empty := []byte{0x1F, 0x43, 0xB6, 0x75, 0x83, 0xE7, 0x81, 0x00} // a cluster that has its time and nothing else
	for name, end := range map[string][]byte{
		"zeros":                   make([]byte, 20<<20),
		"empty clusters":          bytes.Repeat(empty, mostTail/len(empty)),
		"empty clusters, a stain": append(bytes.Repeat(empty, mostTail/len(empty)), 0),
		"names of clusters":       bytes.Repeat(empty[:4], mostTail/4),
	} {
		b := slices.Concat(good, end)
		_, ok := mkvTail(t.Context(), bytes.NewReader(b), int64(len(b)))
		require.False(t, ok, name)
	}
	for n := range 200 { // no head, or a part of it
		_, ok := mkvTail(t.Context(), bytes.NewReader(good[:n]), int64(n))
		require.False(t, ok, n)
	}
	_, ok := mkvTail(t.Context(), bytes.NewReader(good[head:]), int64(len(good))-head)
	require.False(t, ok)
}
