package pipeline

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// untouched is a source that must not be asked.
type untouched struct{ t *testing.T }

func (u untouched) Run(context.Context, media.Sink) error {
	u.t.Error("the source was connected to")
	return os.ErrInvalid
}

// What cannot be published is said before the source is asked for anything, and nothing that lay there is touched.
func TestIngestChecksItsPlaceFirst(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := t.TempDir(), ingestKey(t)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.WriteFile(framering.SocketPath(dir, key), []byte("mine"), 0o600))
	for says, runtime := range map[string]string{"choose another with --runtime-dir": filepath.Join(file, "below"), "is no socket": dir} {
		i := startIngest(t, IngestOptions{Key: key, RuntimeDir: runtime, Source: untouched{t}})
		err := <-i.done
		i.done <- err
		require.ErrorContains(t, err, says)
	}
	mine, err := os.ReadFile(framering.SocketPath(dir, key))
	require.NoError(t, err)
	require.Equal(t, "mine", string(mine))
}
