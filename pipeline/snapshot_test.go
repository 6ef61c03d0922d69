package pipeline

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/packetring"
)

// gops are streams in which not all pictures are references, with their pictures by time.
func gops(t *testing.T) map[string]gop {
	all := map[string]gop{}
	for name, encode := range map[string][]string{
		"h264 P alone":       {"-c:v", "libx264", "-preset", "ultrafast", "-bf", "0"},
		"h264 B-frames":      {"-c:v", "libx264", "-preset", "ultrafast", "-bf", "2", "-b_strategy", "0"},
		"h264 B as pyramid":  {"-c:v", "libx264", "-preset", "ultrafast", "-bf", "3", "-b_strategy", "0", "-x264-params", "b-pyramid=normal"},
		"h265 B as pyramid":  {"-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none:bframes=3:b-adapt=0"},
		"h264 B in slices":   {"-c:v", "libx264", "-preset", "ultrafast", "-bf", "2", "-slices", "3"},
		"h264 10 bit B too":  {"-c:v", "libx264", "-preset", "ultrafast", "-bf", "2", "-pix_fmt", "yuv420p10le"},
		"mjpeg, all of keys": {"-c:v", "mjpeg", "-pix_fmt", "yuvj420p"},
	} {
		path := t.TempDir() + "/clip.ts"
		arg := append([]string{"-f", "lavfi", "-i", "testsrc2=s=320x240:r=25,noise=alls=12:allf=t", "-frames:v", "24", "-g", "100"}, encode...)
		if encode[1] == "mjpeg" {
			path = t.TempDir() + "/clip.mkv"
		}
		testenv.FFmpeg(t, append(arg, path)...)
		c := clips.Read(t, path)
		g := gop{codec: c.CodecID, extradata: c.Extradata, pictures: map[int64][]byte{}}
		for i, p := range c.Packets {
			g.packets = append(g.packets, packetring.Packet{Seq: uint64(i + 1), Data: p.Data, PTS: p.PTS, DTS: p.DTS, Flags: packetring.Flags(p.Flags)})
		}
		d := g.decoder(t, 0)
		keep := func(p *decode.Picture) error {
			var k keptPicture
			err := k.keep(p)
			g.pictures[p.PTS] = k.pixels
			return err
		}
		for _, p := range g.packets {
			require.NoError(t, d.Decode(decodePacket(p), keep))
		}
		require.NoError(t, d.Drain(keep))
		require.Len(t, g.pictures, 24)
		all[name] = g
	}
	return all
}

type gop struct {
	codec     uint32
	extradata []byte
	packets   []packetring.Packet
	pictures  map[int64][]byte
}

func (g gop) decoder(t *testing.T, threads int) *decode.Decoder {
	d, err := decode.Open(decode.Options{CodecID: g.codec, Extradata: g.extradata, Mode: decode.CPU, Threads: threads})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// Wherever the ring ends, the newest picture is found, and is what decoding all of them gives.
func TestNewestPicture(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	for name, g := range gops(t) {
		t.Run(name, func(t *testing.T) {
			skipped := 0
			for n := 1; n <= len(g.packets); n++ {
				newest := slices.MaxFunc(g.packets[:n], func(a, b packetring.Packet) int { return int(a.PTS - b.PTS) })
				var k keptPicture
				d := g.decoder(t, 3)
				seq, err := k.newest(t.Context(), d, g.packets[:n])
				require.NoError(t, err)
				require.Equal(t, newest.Seq, seq)
				require.Equal(t, newest.PTS, k.pts)
				require.True(t, bytes.Equal(g.pictures[newest.PTS], k.pixels), "of %d packets", n)
				skipped += int(newest.Seq) - int(d.Stats().Pictures)
			}
			if strings.Contains(name, "B") {
				require.Positive(t, skipped, "pictures that nothing refers to were decoded")
			} else {
				require.Zero(t, skipped)
			}
		})
	}
}

// Where the newest picture is damaged, the last one before it is taken; where all are, none.
func TestNewestPictureDamaged(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	g := gops(t)["h264 P alone"]
	damaged := slices.Clone(g.packets)
	damaged[23].Flags |= packetring.FlagCorrupt
	var k keptPicture
	_, err := k.newest(t.Context(), g.decoder(t, 3), damaged)
	require.NoError(t, err)
	require.Equal(t, damaged[22].PTS, k.pts)
	require.True(t, bytes.Equal(g.pictures[damaged[22].PTS], k.pixels))

	k = keptPicture{}
	_, err = k.newest(t.Context(), g.decoder(t, 3), damaged[1:]) // no keyframe
	require.NoError(t, err)
	require.Nil(t, k.pixels)
	_, err = k.newest(t.Context(), g.decoder(t, 3), nil)
	require.NoError(t, err)
	require.Nil(t, k.pixels)
}

// A snapshot shows the newest of several GOPs, and the first picture that comes where there is none yet.
func TestSnapshotOfPackets(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir, key := place(t)
	_, packets, extradata := videoClip(t, "320x240", 27, time.Now().UnixNano())
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: media.H264, Slots: 64, Extradata: extradata}})
	require.NoError(t, err)
	defer pub.Close(framering.ReasonNormal)
	first := make(chan SnapshotInfo, 1)
	go func() {
		_, info, err := Snapshot(t.Context(), SnapshotOptions{RuntimeDir: dir, Key: key, Format: av.JPEG})
		if err != nil {
			t.Error(err)
		}
		first <- info
	}()
	testenv.Eventually(t, 10*time.Second, func() error {
		if n := len(pub.Control().Subscribers()); n == 0 {
			return errors.New("nobody has subscribed")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err = Snapshot(ctx, SnapshotOptions{RuntimeDir: dir, Key: key, Format: av.JPEG})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "of 0 packets none gave a picture")
	_, err = pub.Packet(packets[0])
	require.NoError(t, err)
	require.Equal(t, packets[0].PTS, (<-first).PTS)
	for _, p := range packets[1:] {
		_, err := pub.Packet(p)
		require.NoError(t, err)
	}
	b, info, err := Snapshot(t.Context(), SnapshotOptions{RuntimeDir: dir, Key: key, Format: av.JPEG})
	require.NoError(t, err)
	require.NotEmpty(t, b)
	newest := slices.MaxFunc(packets, func(a, b packetring.Packet) int { return int(a.PTS - b.PTS) })
	require.Equal(t, newest.PTS, info.PTS)
	require.Equal(t, SnapshotInfo{From: "packets", Seq: info.Seq, PTS: newest.PTS, Width: 320, Height: 240}, info)
}
