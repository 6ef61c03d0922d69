package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestTakers(t *testing.T) {
	for codec, want := range map[uint32]string{
		media.H264:     "relay, record (fmp4 mkv ts), decode",
		media.VP8:      "decode",
		media.MPEG4:    "record (ts), decode",
		media.PCMS16LE: "record (fmp4 mkv)",
		4711:           "readers of the packet ring alone",
	} {
		require.Equal(t, want, takers(media.Track{Kind: media.KindOf(codec), CodecID: codec}), media.CodecName(codec))
	}
}

// A codec that few can take is told when it is published, and the relay says that it does not serve it instead of offering its URL.
func TestUnusualCodec(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key := place(t)
	given := make(chan struct{})
	src := &script{conns: []func(context.Context, media.Sink) error{func(ctx context.Context, sink media.Sink) error {
		_ = sink.Tracks([]media.Track{{Kind: media.Video, CodecID: media.VP8, ClockRate: 90000}, alawTrack})
		_ = give(sink, 0, 0, 2)
		_ = give(sink, 1, 0, 1)
		close(given)
		return hold(ctx)
	}}}
	var log, relayLog testenv.Log
	startIngest(t, IngestOptions{RuntimeDir: dir, Key: key, Source: src, Live: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	<-given
	require.Regexp(t, `level=WARN .*key=`+key+` codec=vp8 taken_by=decode\n`, log.String())
	require.NotContains(t, log.String(), "taken_by=relay")

	offered := make(chan string, 4)
	addr := startRelay(t, RelayOptions{
		RuntimeDir: dir, Logger: slog.New(slog.NewTextHandler(&relayLog, nil)), OnStream: func(key string) { offered <- key },
	})
	c := testenv.DialRTSP(t, addr, key)
	status, _, _ := c.Do("DESCRIBE", "rtsp://"+addr+"/"+key)
	require.Equal(t, 415, status)
	require.Regexp(t, `a reader was refused.*path=`+key+`.*status=415 error="vp8: `, relayLog.String())
	testenv.Eventually(t, 10*time.Second, func() error {
		for _, line := range []string{`a stream cannot be served" key=` + key + ` error="vp8: `, `relay: stream" key=` + key + AudioSuffix} {
			if !strings.Contains(relayLog.String(), line) {
				return fmt.Errorf("not told: %s", line)
			}
		}
		return nil
	})
	require.Empty(t, offered)
}
