package pipeline

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// A reader that takes nothing for a while loses what the ring has overwritten, and nothing but that: it goes on at a keyframe,
// in the same session, and the pictures in between are whole.
func TestRelaySlowReader(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir, key := t.TempDir(), relayKey(t)
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{Slots: 64, DataSize: 8 << 20, CodecID: media.H264}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { // 160 Mbit/s, a keyframe every 10 pictures; each picture holds its number
		defer close(done)
		for n := uint32(0); ; n++ {
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				return
			}
			typ, flags := byte(1), packetring.FlagLastInAU
			if n%10 == 0 {
				typ, flags = 5, flags|packetring.FlagKey
			}
			data := append([]byte{0, 0, 0, 1, 0x60 | typ}, make([]byte, 200_000)...)
			for i := 5; i+4 <= len(data); i += 4 {
				copy(data[i:], []byte{0x80, byte(n>>14) | 0x80, byte(n>>7) | 0x80, byte(n) | 0x80}) // no start codes
			}
			now := time.Now().UnixNano()
			if _, err := pub.Packet(packetring.Packet{PTS: now, DTS: now, Flags: flags, Data: data}); err != nil {
				panic(err)
			}
		}
	}()
	defer func() {
		cancel()
		<-done
		_ = pub.Close(framering.ReasonNormal)
	}()
	c := testenv.DialRTSP(t, startRelay(t, RelayOptions{RuntimeDir: dir}), key)
	require.NoError(t, c.Conn.(*net.TCPConn).SetReadBuffer(64<<10))
	c.Play(1)
	seq, size, begins, last, gaps := -1, 0, false, uint32(0), 0
	for pictures := 0; pictures < 150; {
		ch, packet := c.Frame()
		if ch != 4 {
			continue
		}
		if s := int(binary.BigEndian.Uint16(packet[2:])); seq >= 0 {
			require.Equal(t, (seq+1)&0xFFFF, s)
		}
		seq = int(binary.BigEndian.Uint16(packet[2:]))
		payload := packet[12:]
		require.Equal(t, byte(28), payload[0]&0x1F) // FU-A
		if payload[1]&0x80 != 0 {
			size, begins = 1, true // the NAL unit's header is spread over the fragment's
			number := uint32(payload[3]&0x7F)<<14 | uint32(payload[4]&0x7F)<<7 | uint32(payload[5]&0x7F)
			if number != last+1 && pictures > 0 {
				gaps++
				require.Equal(t, byte(5), payload[1]&0x1F, "after the gap comes no keyframe")
			}
			last = number
		}
		require.True(t, begins)
		size += len(payload) - 2
		if packet[1]&0x80 != 0 {
			require.Equal(t, 200_001, size, "a picture was cut")
			if pictures++; pictures == 50 {
				time.Sleep(2 * time.Second) // the reader sleeps; what is tested is what it finds afterwards
			}
		}
	}
	require.Positive(t, gaps, "the ring was not overrun: the test shows nothing")
}
