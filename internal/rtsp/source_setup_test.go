package rtsp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Channels and ports that a server names stay within what a byte and a port hold, the second of a pair too.
func TestPair(t *testing.T) {
	for s, want := range map[string][2]int{
		"0-1": {0, 1}, " 4 - 5": {4, 5}, "6": {6, 7}, "9-8": {9, 8}, "254-255": {254, 255}, "3-x": {3, 4},
	} {
		a, b, ok := pair(s, 255)
		require.True(t, ok, s)
		require.Equal(t, want, [2]int{a, b}, s)
	}
	for _, s := range []string{"", "x", "-1", "256", "255", "255-256", "3-99999999999", "1e3"} {
		a, b, ok := pair(s, 255)
		require.False(t, ok && (a > 255 || b > 255), "%s: %d-%d", s, a, b)
	}
}

func TestPortsOfDescriptions(t *testing.T) {
	for s, want := range map[string]int{"5004": 5004, "5004/2": 5004, "65534": 65534, "65535": 0, "-2": 0, "70000": 0, "x": 0} {
		_, list, err := parseSDP([]byte("v=0\r\nm=video " + s + " RTP/AVP 96\r\n"))
		require.NoError(t, err)
		require.Equal(t, want, list[0].port, s)
	}
}
