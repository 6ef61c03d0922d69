package pipeline

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// Camera, ingest, relay and reader as processes of their own: what the reader receives is what the camera sent, and a keyframe
// comes at once from the ring though the camera's next one is far away.
func TestRelayChain(t *testing.T) {
	t.Parallel()                       // runs when the tests that look for leaks are done
	testenv.Watchdog(t, 5*time.Minute) // its parts wait for their turn
	bin := testenv.Binary(t)
	clip := encodeClip(t, "chain.mp4", "-c:v", "libx264", "-preset", "veryfast", "-g", "50", "-bf", "2", "-c:a", "aac")
	camera, err := testcam.Start(testcam.Options{Clip: clip})
	require.NoError(t, err)
	t.Cleanup(camera.Close)
	dir, key := t.TempDir(), relayKey(t)
	testenv.Start(t, bin, "--runtime-dir", dir, "ingest", camera.URL(0), "--key", key)
	addr := startRelay(t, RelayOptions{RuntimeDir: dir, Multicast: "239.255.43.0/24", Listen: "0.0.0.0:0"})
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	url := "rtsp://127.0.0.1:" + port + "/" + key
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, k := range []string{key, key + AudioSuffix} {
		sub, err := Subscribe(ctx, SubscribeOptions{RuntimeDir: dir, Key: k, WaitForKey: -1})
		require.NoError(t, err)
		_, err = sub.Next(ctx)
		require.NoError(t, err)
		sub.Close()
	}
	for _, transport := range []string{"tcp", "udp", "udp_multicast"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			got := received(t, url, 3, "-rtsp_transport", transport)
			require.Greater(t, len(got["0"]), 40)
			requireGapless(t, clip, 0, got["0"])
			requireGapless(t, clip, 1, got["1"])
		})
	}
	t.Run("gstreamer", func(t *testing.T) {
		t.Parallel()
		got := received264(t, url, "protocols=tcp")
		require.Greater(t, len(got), 60)
		requireRepeats(t, slicesOf(clip), got)
	})
}
