package decode

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
)

func TestCapsOfDepths(t *testing.T) {
	// An H200 as far as H.264 goes: 8 bit only.
	c, err := askCaps(4, media.H264, "Model GPU", func(q *decodeCaps) error {
		require.Equal(t, uint32(4), q.codec)
		require.Equal(t, uint32(chroma420), q.chroma)
		if q.depthMinus8 == 0 {
			q.supported, q.engines, q.maxWidth, q.maxHeight, q.minWidth, q.minHeight = 1, 7, 4096, 4096, 48, 16
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, &caps{depths: 1 << 8, maxWidth: 4096, maxHeight: 4096, minWidth: 48, minHeight: 16, engines: 7}, c)

	_, err = askCaps(11, media.AV1, "Model GPU", func(*decodeCaps) error { return nil })
	require.ErrorIs(t, err, ErrUnsupported)
	require.EqualError(t, err, "not supported: the NVDEC of Model GPU has no av1")

	broken := errors.New("broken")
	_, err = askCaps(11, media.AV1, "Model GPU", func(*decodeCaps) error { return broken })
	require.ErrorIs(t, err, broken)
}
