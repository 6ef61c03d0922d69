package rtsp

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/clock"
)

// hostileFeed is a feed of one H.264 track without a connection, with its log.
func hostileFeed(t *testing.T, maxUnit int) (track *feedTrack, log *bytes.Buffer) {
	t.Helper()
	_, list, err := parseSDP([]byte("v=0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"))
	require.NoError(t, err)
	format, err := list[0].format()
	require.NoError(t, err)
	log = &bytes.Buffer{}
	o := &SourceOptions{MaxUnit: maxUnit, Logger: slog.New(slog.NewTextHandler(log, nil))}
	f := newFeed(discard{}, []*rtpFormat{format}, o, false, &counters{})
	return f.tracks[0], log
}

func rtpBytes(kind uint8, seq uint16, time uint32, payload ...byte) []byte {
	b := []byte{0x80, kind}
	b = binary.BigEndian.AppendUint16(b, seq)
	b = binary.BigEndian.AppendUint32(b, time)
	return append(binary.BigEndian.AppendUint32(b, 7), payload...)
}

// Packets of changing payload types are no stream under another number: none is taken, and nothing fills the log.
func TestPayloadTypesAtRandom(t *testing.T) {
	track, log := hostileFeed(t, 1<<20)
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 5000 {
		kind := uint8(r.IntN(128))
		if kind == 96 {
			continue
		}
		require.NoError(t, track.rtp(rtpBytes(kind, uint16(n), uint32(n)*3000, 0x65, 0x88, 1, 2, 3), clock.Now()))
	}
	require.Zero(t, track.feed.stats.rtpPackets.Load())
	require.Empty(t, log.String())

	for n := range 5000 { // one that stays the same is taken, and told of once
		require.NoError(t, track.rtp(rtpBytes(99, uint16(n), uint32(n)*3000, 0x65, 0x88, 1, 2, 3), clock.Now()))
		require.NoError(t, track.rtp(rtpBytes(uint8(r.IntN(90)), uint16(n), uint32(n)*3000, 0x65, 0x88, 1, 2, 3), clock.Now()))
		if n == 30 {
			break
		}
	}
	require.Zero(t, track.feed.stats.rtpPackets.Load(), "not in a row")
	for n := range 5000 {
		require.NoError(t, track.rtp(rtpBytes(99, uint16(n), uint32(n)*3000, 0x65, 0x88, 1, 2, 3), clock.Now()))
	}
	require.EqualValues(t, 5000-19, track.feed.stats.rtpPackets.Load())
	require.Equal(t, 1, strings.Count(log.String(), "payload type"))
}

// Units that are too large are counted, and told of now and then.
func TestOversizedUnitsAreToldOfOnce(t *testing.T) {
	track, log := hostileFeed(t, 64<<10)
	large := append([]byte{0x65}, make([]byte, 64<<10)...)
	for n := range 1000 {
		require.NoError(t, track.rtp(rtpBytes(96, uint16(n), uint32(n)*3000, large...), clock.Now()))
	}
	require.EqualValues(t, 1000, track.feed.stats.oversized.Load())
	require.Equal(t, 1, strings.Count(log.String(), "dropped\""), log.String())
}

// Packets that make up nothing are no sign of life: that of the newest unit stands still while theirs goes on.
func TestPacketsWithoutUnits(t *testing.T) {
	track, _ := hostileFeed(t, 1<<20)
	at := clock.Now()
	for n := range 100 { // fragments whose start never comes
		at.Mono += 1e7
		require.NoError(t, track.rtp(rtpBytes(96, uint16(n), uint32(n)*3000, 0x7C, 0x05, 1, 2, 3), at))
	}
	require.Equal(t, at.Mono, track.feed.lastPacket.Load())
	require.Zero(t, track.feed.lastUnit.Load())
	for n := range 3 {
		at.Mono += 1e7
		require.NoError(t, track.rtp(rtpBytes(96, uint16(100+n), uint32(200+n)*3000, 0x65, 0x88, 1, 2, 3), at))
	}
	require.NotZero(t, track.feed.lastUnit.Load())
}
