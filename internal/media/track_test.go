package media

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAudioText(t *testing.T) {
	require.Equal(t, "rate=8000;channels=1", string(AudioText(8000, 1, 0)))
	require.Equal(t, "rate=8000;channels=1;bits=2", string(AudioText(8000, 1, 2)))
	for _, c := range []struct {
		text                 string
		rate, channels, bits int
	}{
		{"rate=8000;channels=1", 8000, 1, 4},
		{"rate=44100;channels=2;later=x", 44100, 2, 4},
		{"rate=8000;channels=1;bits=5", 8000, 1, 5},
		{"", 8000, 1, 4},
	} {
		rate, channels, bits, err := ParseAudioText([]byte(c.text))
		require.NoError(t, err, c.text)
		require.Equal(t, []int{c.rate, c.channels, c.bits}, []int{rate, channels, bits}, c.text)
	}
	for _, bad := range []string{"rate=0", "rate=-1", "rate=999999", "channels=0", "channels=256", "rate=", "bits=9", "rate=8000x"} {
		_, _, _, err := ParseAudioText([]byte(bad))
		require.Error(t, err, bad)
	}
}

func TestKindOf(t *testing.T) {
	for _, id := range []uint32{MJPEG, H264, HEVC, AV1} {
		require.Equal(t, Video, KindOf(id))
	}
	for _, id := range []uint32{PCMS16BE, PCMMulaw, PCMAlaw, G726, AAC, Opus} {
		require.Equal(t, Audio, KindOf(id))
	}
}
