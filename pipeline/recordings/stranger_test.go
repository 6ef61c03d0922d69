package recordings

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/mux"
)

// A file from elsewhere whose title is no key is of the key that its folder names.
func TestTitleThatIsNoKey(t *testing.T) {
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "door"), 0o700))
	n := 0
	g := mux.NewSegmenter(mux.SegmenterOptions{
		Format: mux.FMP4, Title: "../<b>a title</b>", Length: time.Minute,
		Create: func(time.Time) (mux.File, error) {
			n++
			return os.Create(filepath.Join(dir, "door", "x.mp4"))
		},
	}, s.Video, s.Audio)
	for _, p := range s.Packets {
		require.NoError(t, g.Write(p.Track, p.Packet))
	}
	require.NoError(t, g.Close())
	require.Equal(t, 1, n)
	folder, err := Folder(dir)
	require.NoError(t, err)
	list, err := Scan(t.Context(), []Place{folder}, Query{}, nil)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "door", list[0].Key)
}
