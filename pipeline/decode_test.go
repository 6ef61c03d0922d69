package pipeline

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/packetring"
)

// videoClip encodes moving pictures and returns the file, its packets with times from start on, and its parameter sets.
func videoClip(t testing.TB, size string, frames int, start int64) (path string, packets []packetring.Packet, extradata []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "clip.ts")
	testenv.FFmpeg(t, "-f", "lavfi", "-i", "testsrc2=s="+size+":r=25", "-frames:v", itoa(frames), "-c:v", "libx264", "-preset", "ultrafast",
		"-g", "10", "-bf", "2", path)
	c := clips.Read(t, path)
	for _, p := range c.Packets {
		packets = append(packets, packetring.Packet{Data: p.Data, PTS: start + p.PTS, DTS: start + p.DTS, Flags: packetring.Flags(p.Flags)})
	}
	return path, packets, c.Extradata
}

func itoa(n int) string { return string(rune('0'+n/10%10)) + string(rune('0'+n%10)) }

// background runs a stage until the test ends and returns its counts.
func background(t testing.TB, o DecodeOptions) *DecodeCounter {
	t.Helper()
	c := &DecodeCounter{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Decode(ctx, o, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the decode stage: %v", err)
		}
	})
	return c
}

// readFrame copies the next frame.
func readFrame(t testing.TB, s *FrameSubscription, c *frameCopier) (framering.Frame, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		f, err := s.Next(ctx)
		require.NoError(t, err)
		require.NoError(t, c.use(s.Meta()))
		b := make([]byte, c.size)
		err = errors.Join(c.copy(b, f), f.Release())
		if errors.Is(err, framering.ErrFrameOverrun) { // only where nobody waits for readers
			continue
		}
		require.NoError(t, err)
		return f, b
	}
}

// Packet ring → decoder → frame ring → reader: the pictures of ffmpeg, through a change of size, with a STRICT_WAIT reader that loses
// none.
func TestDecodeStage(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	start := time.Now().UnixNano()
	first, packets, extradata := videoClip(t, "320x240", 30, start)
	second, more, _ := videoClip(t, "642x362", 24, start+2e9)
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: 27, Slots: 128, Extradata: extradata}})
	require.NoError(t, err)
	defer pub.Close(framering.ReasonNormal)
	counter := background(t, DecodeOptions{
		RuntimeDir: dir, Key: key, NewKey: key + "-frames", Mode: decode.CPU, Policy: framering.StrictWait, AckTimeout: 10 * time.Second,
	})

	// The first keyframe alone makes the ring; the subscriber is there before the rest.
	for _, p := range packets[:4] {
		_, err := pub.Packet(p)
		require.NoError(t, err)
	}
	s, err := SubscribeFrames(t.Context(), FrameSubscribeOptions{
		RuntimeDir: dir, Key: key + "-frames", Mode: framering.StrictOrder, Newest: true, WaitForKey: 10 * time.Second,
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	go func() {
		for _, p := range append(packets[4:], more...) {
			_, err := pub.Packet(p)
			if err != nil {
				t.Error(err)
			}
		}
	}()

	cut := func(path string, size int) (all [][]byte) {
		raw := testenv.FFmpeg(t, "-i", path, "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", "nv12", "-")
		for ; len(raw) > 0; raw = raw[size:] {
			all = append(all, raw[:size])
		}
		return all
	}
	want := append(cut(first, 320*240*3/2), cut(second, 642*362*3/2)...)
	c := &frameCopier{device: s.Device}
	defer c.close()
	var last framering.Frame
	for i := uint64(0); i < 52; { // two remain in the decoder: no later packet pushes them out
		f, b := readFrame(t, s, c)
		if i == 0 {
			i = f.Seq - 1 // the newest one at the time of joining
		}
		require.Equal(t, i+1, f.Seq)
		require.True(t, bytes.Equal(want[i], b), "picture %d", i)
		require.Greater(t, f.PTS, last.PTS)
		last, i = f, f.Seq
	}
	require.EqualValues(t, 1, s.Generation())
	require.EqualValues(t, 642, s.Meta().Width)
	got := counter.Stats()
	require.Equal(t, 2, got.Generations)
	require.Zero(t, got.Errors)
	require.Zero(t, got.Dropped)
}

// The frames go to the key of the packets; readers of packets notice nothing of it.
func TestDecodeIntoTheSameKey(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	_, packets, extradata := videoClip(t, "320x240", 20, time.Now().UnixNano())
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: 27, Slots: 128, Extradata: extradata}})
	require.NoError(t, err)
	defer pub.Close(framering.ReasonNormal)
	reader := mustSubscribe(t, SubscribeOptions{RuntimeDir: dir, Key: key, Start: StartOldest})
	_, err = SubscribeFrames(t.Context(), FrameSubscribeOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, ErrNoFrames)
	_, err = SubscribeFrames(t.Context(), FrameSubscribeOptions{RuntimeDir: dir, Key: key + "x"})
	require.ErrorIs(t, err, os.ErrNotExist)
	background(t, DecodeOptions{RuntimeDir: dir, Key: key, Publisher: pub.Control(), Mode: decode.Auto, Slots: 16})
	for _, p := range packets {
		_, err := pub.Packet(p)
		require.NoError(t, err)
	}
	s, err := SubscribeFrames(t.Context(), FrameSubscribeOptions{RuntimeDir: dir, Key: key, WaitForKey: 10 * time.Second, Newest: true})
	require.NoError(t, err)
	defer s.Close()
	c := &frameCopier{device: s.Device}
	defer c.close()
	readFrame(t, s, c)
	for range packets {
		_, err := reader.Next(t.Context())
		require.NoError(t, err)
	}
	require.Zero(t, reader.Generation())
	require.Zero(t, reader.Stats().Restarts)
	require.NoError(t, reader.Close())
}

// The publisher of the packets restarts: the stage follows, and so do the readers of its frames, whose numbers go on.
func TestDecodeFollowsRestarts(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	background(t, DecodeOptions{RuntimeDir: dir, Key: key, NewKey: key + "-f", Mode: decode.CPU, WaitForKey: -1})
	var s *FrameSubscription
	c := &frameCopier{}
	last := uint64(0)
	for round := range 3 {
		_, packets, extradata := videoClip(t, []string{"320x240", "320x240", "160x120"}[round], 27, time.Now().UnixNano())
		pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: 27, Slots: 64, Extradata: extradata}})
		require.NoError(t, err)
		for _, p := range packets {
			_, err := pub.Packet(p)
			require.NoError(t, err)
		}
		if s == nil {
			s, err = SubscribeFrames(t.Context(), FrameSubscribeOptions{RuntimeDir: dir, Key: key + "-f", WaitForKey: 10 * time.Second, Newest: true})
			require.NoError(t, err)
			defer s.Close()
		}
		for width := 0; width != []int{320, 320, 160}[round]; width = int(s.Meta().Width) {
			f, _ := readFrame(t, s, c)
			require.Greater(t, f.Seq, last)
			last = f.Seq
		}
		require.NoError(t, pub.Close(framering.ReasonNormal))
	}
}

// An ingest whose camera changes its size publishes anew, packets and frames: readers follow, and the frames' numbers begin again.
func TestIngestDecodesAnew(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	start := time.Now().UnixNano()
	change := start + int64(time.Hour)
	_, before, extradata := videoClip(t, "320x240", 10, start)
	_, after, other := videoClip(t, "160x120", 10, change)
	changed := make(chan bool)
	src := &script{conns: []func(context.Context, media.Sink) error{func(ctx context.Context, sink media.Sink) error {
		packets, shift, tick := before, int64(0), time.Tick(5*time.Millisecond)
		_ = sink.Tracks([]media.Track{h264Track(extradata)})
		for { // the clip again and again
			for _, p := range packets {
				if err := sink.Packet(0, media.Packet{Data: p.Data, PTS: p.PTS + shift, DTS: p.DTS + shift, Flags: media.Flags(p.Flags)}); err != nil {
					return err
				}
				<-tick
			}
			shift += 400e6
			select {
			case <-changed:
				packets, shift = after, 0
				_ = sink.Tracks([]media.Track{h264Track(other)})
			case <-ctx.Done():
				return ctx.Err()
			default:
			}
		}
	}}}
	startIngest(t, IngestOptions{RuntimeDir: dir, Key: key, Source: src, Live: true, Decode: &DecodeOptions{Mode: decode.CPU}})
	s, err := SubscribeFrames(t.Context(), FrameSubscribeOptions{RuntimeDir: dir, Key: key, WaitForKey: 10 * time.Second, Newest: true})
	require.NoError(t, err)
	defer s.Close()
	c := &frameCopier{}
	f, _ := readFrame(t, s, c)
	for f.Seq < 40 {
		f, _ = readFrame(t, s, c)
	}
	changed <- true
	for s.Meta().Width != 160 {
		f, _ = readFrame(t, s, c)
	}
	require.NotZero(t, s.Generation())
	require.LessOrEqual(t, int64(f.Seq), (f.PTS-change)/40e6+3, "the first picture after the change is number 1")
}
