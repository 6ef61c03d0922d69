package site

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// Recordings of cameras that the file does not record are told of with their size; those of its own, and what a recorder did not make, are not.
func TestStrays(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, size int) {
		t.Helper()
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, make([]byte, size), 0o600))
	}
	text := `
defaults: {record: {out: 'rec/%{key}/%F/%H.mp4'}}
cameras:
  a: {source: 'rtsp://h/a', events: {out: 'ev/%{key}-%H.mp4'}, sub: {source: 'rtsp://h/s', record: {out: 'rec/%{key}/%F/%H.mp4'}}}
  off: {source: 'rtsp://h/b', record: off}
`
	file := filepath.Join(dir, "site.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	c, err := Load(file)
	require.NoError(t, err)
	for _, name := range []string{"rec/a/2026-01-01/10.mp4", "rec/a/2026-01-01/10-2.mp4", "rec/a-sub/2026-01-01/10.mp4", "ev/a-10.mp4", "ev/a-10-2.mp4",
		"rec/old/notes.txt", "rec/old/2026-01-01/export.mp4", "rec/lost+found/2026-01-01/10.mp4", "rec/recordings.db", "ev/10.mp4"} {
		put(name, 10)
	}
	require.NoError(t, os.Symlink(filepath.Join(dir, "rec/a"), filepath.Join(dir, "rec/link")))
	require.Empty(t, c.Strays(t.Context()))

	put("rec/old/2026-01-01/10.mp4", 2e6)
	put("rec/old/2026-01-01/10-3.mp4", 1e6)
	put("rec/off/2026-01-01/10.mp4", 10)
	put("ev/b-11.mp4", 10)
	list := c.Strays(t.Context())
	require.Len(t, list, 2)
	require.Contains(t, list[0], dir+"/ev holds recordings that no camera of this file makes: b (1 files, 0 MB);")
	require.Contains(t, list[1], dir+"/rec holds recordings that no camera of this file makes: off (1 files, 0 MB), old (2 files, 3 MB);")
	for i := range maxStrays {
		put(fmt.Sprintf("rec/x%d/2026-01-01/10.mp4", i), 10)
	}
	require.Contains(t, c.Strays(t.Context())[1], "x7 (1 files, 0 MB), 2 more;")
}

// A camera that is taken out of the file of a site at work.
func TestStraysOfReload(t *testing.T) {
	t.Parallel()
	h := newHost(t, 1)
	text := `
defaults: {source: CAM0, record: {out: 'rec/%{key}/%s-%f.mp4', segment: 1s}}
cameras:
  KEYa: {}
  KEYb: {}
`
	h.start(text)
	testenv.Eventually(t, 30*time.Second, func() error {
		if len(h.of("b")) == 0 {
			return errors.New("nothing is recorded")
		}
		return nil
	})
	require.NotContains(t, h.log.String(), "no camera of this file")
	h.file(strings.Replace(text, "KEYb", "KEYc", 1))
	h.reload <- struct{}{}
	testenv.Eventually(t, 10*time.Second, func() error {
		if !strings.Contains(h.log.String(), filepath.Join(h.dir, "rec")+" holds recordings that no camera of this file makes: "+h.key("b")+" (") {
			return errors.New("it is not told")
		}
		return nil
	})
	require.NoError(t, h.stop())
}
