package recordings

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/mux"
)

// A file that was begun and cannot be read yet is listed while its recorder lives; what one leaves that was killed in its first second is not.
func TestBegunAndKilled(t *testing.T) {
	dir := t.TempDir()
	index := filepath.Join(dir, "index.db")
	place, err := Folder(dir)
	require.NoError(t, err)
	path := filepath.Join(dir, "door", "1.mp4")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte("\x00\x00\x00\x1cftypiso5\x00\x00\x02\x00iso5iso6mp41"), 0o600))
	recorder, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer recorder.Close()
	require.NoError(t, shm.LockFile(recorder))

	x, err := openWriter(t.Context(), index, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, x.apply(t.Context(), []change{{File: File{Key: "door", Path: path, Start: at(0), End: at(0), Packets: Unknown, Keyframes: Unknown, Cause: mux.CauseContinuous, Modified: at(0)}}}))
	require.NoError(t, x.Close())
	st, err := Rebuild(t.Context(), index, []Place{place}, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	require.Equal(t, Reconciled{}, st)
	living := list(t, index, Query{})
	require.Len(t, living, 1)
	require.Equal(t, "recording", living[0].State())

	require.NoError(t, recorder.Close())
	require.Empty(t, list(t, index, Query{}))
	st, err = Rebuild(t.Context(), index, []Place{place}, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	require.Equal(t, Reconciled{Gone: 1, Other: 1}, st)
	require.FileExists(t, path)
}
