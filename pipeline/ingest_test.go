package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// script is a source whose connections are functions.
type script struct {
	mu    sync.Mutex
	conns []func(ctx context.Context, sink media.Sink) error
	begun []time.Time
}

func (s *script) Run(ctx context.Context, sink media.Sink) error {
	s.mu.Lock()
	n := len(s.begun)
	s.begun = append(s.begun, time.Now())
	s.mu.Unlock()
	if n >= len(s.conns) {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.conns[n](ctx, sink)
}

func (s *script) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.begun...)
}

var (
	// 640x360 and 32x16, and the first with another VUI
	ingestSPS = []byte{0x67, 0x42, 0xC0, 0x1E, 0xDA, 0x02, 0x80, 0xBF, 0xE5, 0xC0, 0x44, 0x00, 0x00, 0x03, 0x00, 0x04, 0x00, 0x00, 0x03, 0x00,
		0xF0, 0x3C, 0x58, 0xBA, 0x80}
	ingestSmall = []byte{0x67, 0x42, 0xC0, 0x0A, 0xD9, 0x0B, 0x13, 0x20}
	ingestPPS   = []byte{0x68, 0xCE, 0x3C, 0x80}
)

func otherVUI() []byte {
	b := bytes.Clone(ingestSPS)
	b[len(b)-2] ^= 0x10
	return b
}

func sets(nals ...[]byte) (b []byte) {
	for _, n := range nals {
		b = bitstream.AppendNAL(b, n)
	}
	return b
}

func h264Track(extradata []byte) media.Track {
	return media.Track{Kind: media.Video, CodecID: media.H264, Extradata: extradata, ClockRate: 90000, Name: "video"}
}

var alawTrack = media.Track{Kind: media.Audio, CodecID: media.PCMAlaw, Extradata: media.AudioText(8000, 1, 0), ClockRate: 8000, Channels: 1}

// give hands n packets to the sink; the first is a keyframe. Data carries the number.
func give(sink media.Sink, track, from, n int) error {
	for i := range n {
		f := media.FlagLastInAU
		if i == 0 || track == 1 {
			f |= media.FlagKey
		}
		t := int64(1e18) + int64(from+i)*40e6
		if err := sink.Packet(track, media.Packet{PTS: t, DTS: t, Flags: f, Data: fmt.Appendf(nil, "%d/%d", track, from+i)}); err != nil {
			return err
		}
	}
	return nil
}

type ingesting struct {
	*Ingest
	cancel context.CancelFunc
	done   chan error
}

func startIngest(t *testing.T, o IngestOptions) *ingesting {
	t.Helper()
	if o.RuntimeDir == "" {
		o.RuntimeDir = t.TempDir()
	}
	if o.Backoff == 0 {
		o.Backoff = time.Millisecond
	}
	in, err := NewIngest(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	i := &ingesting{Ingest: in, cancel: cancel, done: make(chan error, 1)}
	go func() { i.done <- in.Run(ctx) }()
	t.Cleanup(func() { _ = i.stop(t) })
	return i
}

func (i *ingesting) stop(t *testing.T) error {
	t.Helper()
	i.cancel()
	select {
	case err := <-i.done:
		i.done <- err
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("ingest does not end")
		return nil
	}
}

func ingestKey(t *testing.T) string {
	return fmt.Sprintf("ing-%d-%x", time.Now().UnixNano()%1e9, len(t.Name()))
}

func reader(t *testing.T, i *ingesting, key string) *Subscription {
	t.Helper()
	s, err := Subscribe(t.Context(), SubscribeOptions{RuntimeDir: i.o.RuntimeDir, Key: key, Start: StartOldest, WaitForKey: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func next(t *testing.T, s *Subscription) packetring.Packet {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	p, err := s.Next(ctx)
	require.NoError(t, err)
	p.Data = bytes.Clone(p.Data)
	return p
}

func hold(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// A connection that is lost keeps the rings; what comes next is marked, once.
func TestIngestReconnects(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	again := make(chan bool)
	src := &script{conns: []func(context.Context, media.Sink) error{
		func(_ context.Context, sink media.Sink) error {
			if err := sink.Tracks([]media.Track{h264Track(sets(ingestSPS, ingestPPS)), alawTrack}); err != nil {
				return err
			}
			_ = give(sink, 0, 0, 3)
			_ = give(sink, 1, 0, 2)
			return io.ErrUnexpectedEOF
		},
		func(context.Context, media.Sink) error { <-again; return errors.New("refused") },
		func(ctx context.Context, sink media.Sink) error { // the description has come with another VUI: the same stream
			_ = sink.Tracks([]media.Track{h264Track(sets(otherVUI(), ingestPPS)), alawTrack})
			_ = give(sink, 0, 10, 3)
			_ = give(sink, 1, 10, 2)
			return hold(ctx)
		},
	}}
	key := ingestKey(t)
	i := startIngest(t, IngestOptions{Key: key, Source: src, Live: true})
	video, audio := reader(t, i, key), reader(t, i, key+AudioSuffix)
	for n := range 3 {
		p := next(t, video)
		require.Equal(t, fmt.Sprintf("0/%d", n), string(p.Data))
		require.Equal(t, n == 0, p.Flags&packetring.FlagKey != 0)
		require.Zero(t, p.Flags&packetring.FlagDiscontinuity)
	}
	require.Equal(t, "1/0", string(next(t, audio).Data))
	require.Equal(t, "1/1", string(next(t, audio).Data))
	require.Equal(t, "rate=8000;channels=1", string(audio.Info().Extradata))
	again <- true
	for n := range 3 {
		p := next(t, video)
		require.Equal(t, fmt.Sprintf("0/%d", 10+n), string(p.Data))
		require.Equal(t, n == 0, p.Flags&packetring.FlagDiscontinuity != 0)
		require.EqualValues(t, 4+n, p.Seq)
	}
	require.NotZero(t, next(t, audio).Flags&packetring.FlagDiscontinuity)
	require.Zero(t, next(t, audio).Flags&packetring.FlagDiscontinuity)
	require.Zero(t, video.Generation())
	require.Equal(t, sets(ingestSPS, ingestPPS), video.Info().Extradata)

	testenv.Eventually(t, 5*time.Second, func() error { // counted behind publishing
		if n := i.Stats().Audio.Packets; n != 4 {
			return fmt.Errorf("%d packets of audio", n)
		}
		return nil
	})
	s := i.Stats()
	require.Equal(t, [3]uint64{6, 2, 1}, [3]uint64{s.Video.Packets, s.Video.Keyframes, s.Video.Gaps})
	require.Equal(t, [3]uint64{3, 1, 4}, [3]uint64{s.Connects, s.Reconnects, s.Audio.Packets})
	require.True(t, s.Connected)
	require.Equal(t, "refused", s.LastError)
	require.Less(t, s.Video.Age(), 10*time.Second)
	require.ErrorIs(t, i.stop(t), context.Canceled)
	list, err := framering.List(i.o.RuntimeDir)
	require.NoError(t, err)
	require.Empty(t, list)
}

// Another codec, or pictures of another size (case b10), in the middle of a connection or after one: a new publication, which
// readers follow; the other track is not touched.
func TestIngestStreamChanges(t *testing.T) {
	for name, c := range map[string]struct {
		to      media.Track
		changes bool
		told    string
	}{
		"codec":      {media.Track{Kind: media.Video, CodecID: media.MJPEG, ClockRate: 90000}, true, `from="h264 640x360" to=mjpeg changed=codec`},
		"size":       {h264Track(sets(ingestSmall, ingestPPS)), true, `from="h264 640x360" to="h264 32x16" changed=size`},
		"VUI alone":  {h264Track(sets(otherVUI(), ingestPPS)), false, ""},
		"PPS alone":  {h264Track(sets(ingestSPS, []byte{0x68, 0xCE, 0x38, 0x80})), false, ""},
		"unreadable": {h264Track(sets([]byte{0x67, 0xFF}, ingestPPS)), true, `from="h264 640x360" to=h264 changed=extradata`},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.CheckLeaks(t)
			testenv.Watchdog(t, 30*time.Second)
			again := make(chan bool)
			src := &script{conns: []func(context.Context, media.Sink) error{
				func(ctx context.Context, sink media.Sink) error {
					_ = sink.Tracks([]media.Track{h264Track(sets(ingestSPS, ingestPPS)), alawTrack})
					_ = give(sink, 0, 0, 2)
					_ = give(sink, 1, 0, 1)
					<-again
					_ = sink.Tracks([]media.Track{c.to, alawTrack})
					_ = give(sink, 0, 2, 2)
					_ = give(sink, 1, 1, 1)
					return hold(ctx)
				},
			}}
			key := ingestKey(t)
			var log testenv.Log
			i := startIngest(t, IngestOptions{Key: key, Source: src, Live: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			video, audio := reader(t, i, key), reader(t, i, key+AudioSuffix)
			next(t, video)
			next(t, video)
			next(t, audio)
			again <- true
			p := next(t, video)
			require.Equal(t, "0/2", string(p.Data))
			require.Equal(t, c.changes, p.Flags&packetring.FlagDiscontinuity != 0)
			require.Equal(t, c.changes, video.Generation() == 1)
			require.Equal(t, c.to.CodecID, video.Info().CodecID)
			require.Equal(t, c.changes, strings.Contains(log.String(), "the stream has changed"))
			require.Contains(t, log.String(), c.told)
			if c.changes {
				require.Equal(t, c.to.Extradata, append([]byte(nil), video.Info().Extradata...))
			}
			require.Equal(t, "1/1", string(next(t, audio).Data))
			require.Zero(t, audio.Generation())
		})
	}
}

// A source without video publishes its audio; one without audio, or with --no-audio, no audio key.
func TestIngestOneTrack(t *testing.T) {
	for _, noAudio := range []bool{false, true} {
		testenv.CheckLeaks(t)
		src := &script{conns: []func(context.Context, media.Sink) error{func(ctx context.Context, sink media.Sink) error {
			tracks := []media.Track{alawTrack, alawTrack}
			if noAudio {
				tracks = append(tracks, h264Track(nil))
			}
			_ = sink.Tracks(tracks)
			_ = give(sink, 1, 0, 1) // the second audio
			_ = give(sink, 0, 5, 1)
			if noAudio {
				_ = give(sink, 2, 0, 1)
			}
			return hold(ctx)
		}}}
		key := ingestKey(t)
		i := startIngest(t, IngestOptions{Key: key, Source: src, NoAudio: noAudio})
		if noAudio {
			require.Equal(t, "2/0", string(next(t, reader(t, i, key)).Data))
		} else {
			require.Equal(t, "0/5", string(next(t, reader(t, i, key+AudioSuffix)).Data))
		}
		list, err := framering.List(i.o.RuntimeDir)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.ErrorIs(t, i.stop(t), context.Canceled)
	}
}

// A packet that is too large costs itself, and is counted and marked.
func TestIngestOversized(t *testing.T) {
	testenv.CheckLeaks(t)
	src := &script{conns: []func(context.Context, media.Sink) error{func(ctx context.Context, sink media.Sink) error {
		_ = sink.Tracks([]media.Track{h264Track(nil)})
		_ = give(sink, 0, 0, 1)
		if err := sink.Packet(0, media.Packet{Data: make([]byte, 600<<10)}); err != nil {
			return err
		}
		_ = give(sink, 0, 1, 1)
		return hold(ctx)
	}}}
	key := ingestKey(t)
	i := startIngest(t, IngestOptions{Key: key, Source: src, PacketBytes: 1 << 20})
	s := reader(t, i, key)
	next(t, s)
	require.NotZero(t, next(t, s).Flags&packetring.FlagDiscontinuity)
	require.EqualValues(t, 1, i.Stats().Video.Oversized, "counted in front of the packet that was read")
}

// Case r4: the waits grow while connections do not last, and shrink again after one that did.
func TestIngestBackoff(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	flap := func(_ context.Context, sink media.Sink) error {
		_ = sink.Tracks([]media.Track{h264Track(nil)})
		return errors.Join(give(sink, 0, 0, 2), io.EOF)
	}
	lasting := func(_ context.Context, sink media.Sink) error {
		_ = sink.Tracks([]media.Track{h264Track(nil)})
		_ = give(sink, 0, 0, 1)
		time.Sleep(500 * time.Millisecond) // what is tested is that this counts
		_ = give(sink, 0, 1, 1)
		return io.EOF
	}
	conns := []func(context.Context, media.Sink) error{flap, flap, flap, flap, flap, flap, lasting, flap}
	src := &script{conns: conns}
	o := IngestOptions{Key: ingestKey(t), RuntimeDir: t.TempDir(), Source: src, Live: true, Backoff: 20 * time.Millisecond}
	in, err := NewIngest(o)
	require.NoError(t, err)
	in.good = 400 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- in.Run(ctx) }()
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := len(src.times()); n <= len(conns) {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	at := src.times()
	for n := 1; n <= 6; n++ { // half of 20 ms × 2^(n-1) at least
		require.GreaterOrEqual(t, at[n].Sub(at[n-1]), 10*time.Millisecond<<(n-1), n)
	}
	require.Less(t, at[7].Sub(at[6]), 1100*time.Millisecond, "back to the shortest wait: 500 ms of playing and at most 30 ms, not 600 ms")
}

func TestIngestEnds(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	play := func(_ context.Context, sink media.Sink) error {
		_ = sink.Tracks([]media.Track{h264Track(nil)})
		return give(sink, 0, 0, 2)
	}
	one := func(f func(context.Context, media.Sink) error) *script {
		return &script{conns: []func(context.Context, media.Sink) error{f}}
	}
	dir := t.TempDir()
	run := func(o IngestOptions) error {
		o.Key, o.RuntimeDir = ingestKey(t), dir
		in, err := NewIngest(o)
		require.NoError(t, err)
		return in.Run(t.Context())
	}
	require.NoError(t, run(IngestOptions{Source: one(play)}), "the end of a file")
	require.ErrorIs(t, run(IngestOptions{Source: one(func(context.Context, media.Sink) error { return io.ErrNoProgress })}), io.ErrNoProgress)
	unsupported := one(func(context.Context, media.Sink) error { return media.ErrUnsupported })
	require.ErrorIs(t, run(IngestOptions{Live: true, Source: unsupported}), media.ErrUnsupported)
	require.NoError(t, run(IngestOptions{Live: true, Source: &script{}, Duration: 50 * time.Millisecond}), "--duration")
	starting := func(context.Context, media.Sink) error { return media.ErrUnsupported }
	failing := func(context.Context, media.Sink) error { return framering.ErrIO }
	again := &script{conns: []func(context.Context, media.Sink) error{play, starting, starting, failing}}
	require.NoError(t, run(IngestOptions{Live: true, Source: again, Duration: 300 * time.Millisecond, Backoff: time.Millisecond}))
	require.Len(t, again.times(), 5, "a camera that has worked is not given up for what it says while it starts")

	key := ingestKey(t)
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: media.H264}})
	require.NoError(t, err)
	in, err := NewIngest(IngestOptions{RuntimeDir: dir, Key: key, Source: one(play)})
	require.NoError(t, err)
	require.ErrorIs(t, in.Run(t.Context()), framering.ErrAlreadyExists, "said before the camera is asked")
	require.NoError(t, pub.Close(framering.ReasonNormal))

	for _, o := range []IngestOptions{{Key: ""}, {Key: "a b"}, {Key: string(bytes.Repeat([]byte{'x'}, 58))}, {Key: "x", PacketSlots: 1025},
		{Key: "x", PacketBytes: -1}, {Key: "x", PacketBytes: 4 << 30}} {
		_, err := NewIngest(o)
		require.ErrorIs(t, err, framering.ErrInvalidArg, o.Key)
	}
	_, err = NewIngest(IngestOptions{Key: string(bytes.Repeat([]byte{'x'}, 63)), NoAudio: true})
	require.NoError(t, err)
}

func TestIngestDoesNotAllocate(t *testing.T) {
	testenv.CheckLeaks(t)
	o := IngestOptions{Key: ingestKey(t), RuntimeDir: t.TempDir(), Source: &script{}}
	in, err := NewIngest(o)
	require.NoError(t, err)
	defer in.sink.close()
	require.NoError(t, in.sink.Tracks([]media.Track{h264Track(sets(ingestSPS, ingestPPS))}))
	p := media.Packet{PTS: 1, DTS: 1, Flags: media.FlagLastInAU, Data: make([]byte, 20000)}
	require.NoError(t, in.sink.Packet(0, p))
	n := testing.AllocsPerRun(1000, func() {
		p.DTS++
		if err := in.sink.Packet(0, p); err != nil {
			t.Fatal(err)
		}
	})
	require.Zero(t, n)
}

func TestOpenSource(t *testing.T) {
	s, err := OpenSource(SourceOptions{URL: "rtsp://admin:hunter2@cam/x"})
	require.NoError(t, err)
	require.True(t, s.Live)
	require.Equal(t, "rtsp://cam/x", s.Name)
	_, err = OpenSource(SourceOptions{URL: "rtsp://cam/x", Transport: "carrier pigeon"})
	require.ErrorIs(t, err, media.ErrUnsupported)
	_, err = OpenSource(SourceOptions{URL: "rtsp://cam/x", Loop: true})
	require.Error(t, err)
	_, err = OpenSource(SourceOptions{URL: t.TempDir() + "/missing.mp4"})
	require.ErrorIs(t, err, os.ErrNotExist)
	s, err = OpenSource(SourceOptions{URL: "http://bob:hunter2@host/live.ts"})
	require.NoError(t, err)
	require.True(t, s.Live)
	require.NotContains(t, s.Name, "hunter2")
	s, err = OpenSource(SourceOptions{URL: "-"})
	require.NoError(t, err)
	require.False(t, s.Live)
}

// What another attempt cannot mend ends the ingest, also of a source that would be connected to again.
func TestIngestUnknownProtocol(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	src, err := OpenSource(SourceOptions{URL: "nosuch://camera/1"})
	require.NoError(t, err)
	require.True(t, src.Live)
	in, err := NewIngest(IngestOptions{RuntimeDir: t.TempDir(), Key: "unknown-protocol", Source: src, Name: src.Name, Live: src.Live})
	require.NoError(t, err)
	require.ErrorIs(t, in.Run(t.Context()), media.ErrUnsupported)
}

// Ages go by the monotonic clock: setting the system's makes no silent camera young.
func TestIngestAgeIsMonotonic(t *testing.T) {
	var s trackState
	require.Zero(t, s.snapshot().Age())
	s.packet(0, 1, time.Now())
	got := s.snapshot()
	require.Contains(t, got.LastPacket.String(), " m=")
	require.InDelta(t, 0, got.Age().Seconds(), 10)
}
