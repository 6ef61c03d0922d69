package pipeline

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// pair is a video and an audio publication.
type pair struct {
	t            *testing.T
	dir, key     string
	video, audio *Publication
	base         int64
}

func newPair(t *testing.T, audio bool) *pair {
	t.Helper()
	p := &pair{t: t, base: time.Now().UnixNano()}
	p.dir, p.key = place(t)
	p.video = p.publish(p.key, media.H264)
	if audio {
		p.audio = p.publish(p.key+AudioSuffix, media.AAC)
	}
	return p
}

func (p *pair) publish(key string, codec uint32) *Publication {
	p.t.Helper()
	pub, err := Publish(PublishOptions{RuntimeDir: p.dir, Key: key, Packets: packetring.Config{CodecID: codec, Slots: 512, DataSize: 1 << 20}})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = pub.Close(framering.ReasonNormal) })
	return pub
}

func (p *pair) send(pub *Publication, at time.Duration, key bool) {
	p.t.Helper()
	flags := packetring.FlagLastInAU
	if key {
		flags |= packetring.FlagKey
	}
	_, err := pub.Packet(packetring.Packet{PTS: p.base + int64(at), DTS: p.base + int64(at), Flags: flags, Data: []byte("data")})
	require.NoError(p.t, err)
}

// endless is the grace of an interleaver whose packets are to come out in order however slow the machine is.
const endless = time.Hour

func (p *pair) open() *interleaver {
	p.t.Helper()
	in, err := newInterleaver(p.t.Context(), interleaverOptions{SubscribeOptions: SubscribeOptions{RuntimeDir: p.dir, Key: p.key, Start: StartOldest}})
	require.NoError(p.t, err)
	return in
}

func (p *pair) read(in *interleaver, n int) (items []item) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	for range n {
		it, err := in.next(ctx)
		require.NoError(p.t, err)
		items = append(items, it)
	}
	return items
}

// Two rings that were filled one after the other come out in the order of time.
func TestInterleaveOrder(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	p := newPair(t, true)
	for i := range 100 {
		p.send(p.video, time.Duration(i)*40*time.Millisecond, i%25 == 0)
	}
	for i := range 200 {
		p.send(p.audio, time.Duration(i)*20*time.Millisecond, true)
	}
	in := p.open()
	defer in.Close()
	in.grace = endless
	items := p.read(in, 298)
	for i := 1; i < len(items); i++ {
		require.GreaterOrEqual(t, items[i].PTS, items[i-1].PTS, "packet %d", i)
	}
	require.NotNil(t, items[0].Info)
	require.Nil(t, items[5].Info)
}

// Audio that has stopped holds the video up once, not at every packet; and it is taken in again when it comes back.
func TestInterleaveSilence(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	p := newPair(t, true)
	p.send(p.audio, 0, true)
	for i := range 200 {
		p.send(p.video, time.Duration(i)*40*time.Millisecond, i%25 == 0)
	}
	in := p.open()
	defer in.Close()
	start := time.Now()
	p.read(in, 201)
	require.Less(t, time.Since(start), 6*time.Second) // the last one would be held until 8.5 s, were each
	p.send(p.audio, 8*time.Second, true)
	require.Equal(t, audioTrack, p.read(in, 1)[0].Track)
	p.send(p.video, 8*time.Second+40*time.Millisecond, false)
	require.Equal(t, videoTrack, p.read(in, 1)[0].Track)
}

// Audio that is always late by more than the wait does not slow the video down.
func TestInterleaveLateAudio(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	p := newPair(t, true)
	late := holdFor + 300*time.Millisecond
	start := time.Now()
	go func() {
		for i := range 150 {
			at := time.Duration(i) * 20 * time.Millisecond
			time.Sleep(time.Until(start.Add(at)))
			if i%2 == 0 {
				_, _ = p.video.Packet(packetring.Packet{PTS: p.base + int64(at), DTS: p.base + int64(at),
					Flags: packetring.FlagKey | packetring.FlagLastInAU, Data: []byte("v")})
			}
			if at >= late {
				_, _ = p.audio.Packet(packetring.Packet{PTS: p.base + int64(at-late), DTS: p.base + int64(at-late),
					Flags: packetring.FlagKey | packetring.FlagLastInAU, Data: []byte("a")})
			}
		}
	}()
	in := p.open()
	defer in.Close()
	video := 0
	for video < 70 {
		if p.read(in, 1)[0].Track == videoTrack {
			video++
		}
	}
	require.Less(t, time.Since(start), 15*time.Second) // 35 s, were each held
}

// Audio that is published later is found; a key without audio is read without waiting.
func TestInterleaveAudioAppears(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	testenv.CheckLeaks(t)
	p := newPair(t, false)
	p.send(p.video, 0, true)
	in := p.open()
	defer in.Close()
	p.read(in, 1)
	p.audio = p.publish(p.key+AudioSuffix, media.AAC)
	p.send(p.audio, 10*time.Millisecond, true)
	it := p.read(in, 1)[0]
	require.Equal(t, audioTrack, it.Track)
	require.Equal(t, media.AAC, it.Info.CodecID)
	require.NoError(t, p.audio.Close(framering.ReasonNormal))
	require.NoError(t, p.video.Close(framering.ReasonNormal))
}

// A publisher that sends a NAL unit at a time, and one whose clock is not Unix time.
func TestInterleaveForeign(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	p := newPair(t, false)
	p.base = 5e9 // since that machine was started
	for i := range 4 {
		for n, part := range []string{"sps", "pps", "slice"} {
			var flags packetring.Flags
			if n == 0 && i == 0 {
				flags |= packetring.FlagKey
			}
			if n == 2 {
				flags |= packetring.FlagLastInAU
			}
			_, err := p.video.Packet(packetring.Packet{PTS: p.base + int64(i)*4e7, DTS: p.base + int64(i)*4e7, Flags: flags, Data: []byte(part)})
			require.NoError(t, err)
		}
	}
	in := p.open()
	defer in.Close()
	before := time.Now()
	items := p.read(in, 4)
	for i, it := range items {
		require.Equal(t, "spsppsslice", string(it.Data))
		require.Equal(t, i == 0, it.Flags&packetring.FlagKey != 0)
		require.WithinRange(t, time.Unix(0, it.PTS), before.Add(-time.Second), time.Now().Add(time.Second))
	}
	require.EqualValues(t, 12e7, items[3].PTS-items[0].PTS)
}

// A publisher that never says which packet is a unit's last: the next presentation time ends it, its end the last one. One that
// has said so once and does not any more is found out.
func TestInterleaveUnitsWithoutEnd(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	testenv.CheckLeaks(t)
	for name, c := range map[string]struct {
		parts []string
		flags int // units at the beginning that are ended
	}{
		"NAL units": {[]string{"sps", "pps", "slice"}, 0}, "whole units": {[]string{"all"}, 0}, "ended once": {[]string{"pps", "slice"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, false)
			send := func(i int) {
				for n, part := range c.parts {
					var flags packetring.Flags
					if n == 0 && i%25 == 0 {
						flags |= packetring.FlagKey
					}
					if i < c.flags && n == len(c.parts)-1 {
						flags |= packetring.FlagLastInAU
					}
					_, err := p.video.Packet(packetring.Packet{PTS: p.base + int64(i)*4e7, DTS: p.base + int64(i)*4e7, Flags: flags, Data: []byte(part)})
					require.NoError(t, err)
				}
			}
			for i := range 50 {
				send(i)
			}
			in, err := newInterleaver(t.Context(), interleaverOptions{NoAudio: true, SubscribeOptions: SubscribeOptions{
				RuntimeDir: p.dir, Key: p.key, Start: StartOldest, NoFollow: true,
			}})
			require.NoError(t, err)
			defer in.Close()
			unit, total := strings.Join(c.parts, ""), 50
			if c.flags > 0 {
				total -= maxTimes + 1 // in one
			}
			items := p.read(in, total-2)
			require.NoError(t, p.video.Close(framering.ReasonNormal))
			items = append(items, p.read(in, 2)...)
			for i, it := range items {
				if i != c.flags || c.flags == 0 {
					require.Equal(t, unit, string(it.Data), i)
				}
				require.NotZero(t, it.Flags&packetring.FlagLastInAU)
				at := (it.PTS - p.base) / 4e7
				require.Equal(t, at == 0 || at == 25, it.Flags&packetring.FlagKey != 0, at)
			}
			require.Equal(t, p.base, items[0].PTS)
			require.Equal(t, p.base+49*4e7, items[total-1].PTS)
			_, err = in.next(t.Context())
			require.ErrorIs(t, err, ErrEnded)
		})
	}
}

// Another publisher's sound comes before its first picture: it is handed out behind that picture, not with the pictures of the
// publisher before, and all of it.
func TestInterleaveRestart(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	testenv.CheckLeaks(t)
	p := newPair(t, true)
	for i := range 25 {
		p.send(p.video, time.Duration(i)*40*time.Millisecond, i == 0)
	}
	for i := range 50 {
		p.send(p.audio, time.Duration(i)*20*time.Millisecond, true)
	}
	in := p.open()
	defer in.Close()
	p.read(in, 75)
	require.NoError(t, p.video.Close(framering.ReasonNormal))
	require.NoError(t, p.audio.Close(framering.ReasonNormal))

	p.audio = p.publish(p.key+AudioSuffix, media.AAC)
	for i := range 100 {
		p.send(p.audio, 2*time.Second+time.Duration(i)*20*time.Millisecond, true)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*holdFor) // longer than a packet waits elsewhere
	defer cancel()
	_, err := in.next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	in.resume()
	p.video = p.publish(p.key, media.H264)
	for i := range 25 {
		p.send(p.video, 3*time.Second+time.Duration(i)*40*time.Millisecond, i == 0)
	}
	items := p.read(in, 120)
	require.Equal(t, videoTrack, items[0].Track)
	require.Equal(t, 1, items[0].Generation)
	audio := 0
	for _, it := range items[1:] {
		if it.Track != audioTrack {
			continue
		}
		require.Equal(t, p.base+int64(2*time.Second+time.Duration(audio)*20*time.Millisecond), it.PTS)
		require.Zero(t, it.Lost)
		audio++
	}
	require.Greater(t, audio, 90)
	require.NoError(t, p.video.Close(framering.ReasonNormal))
	require.NoError(t, p.audio.Close(framering.ReasonNormal))
}

// Time goes back where a camera is connected again: the sound in front of the gap comes in front of it, and the sound behind it behind the keyframe.
func TestInterleaveTimeGoesBack(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	p := newPair(t, true)
	gap := func(pub *Publication, at time.Duration) {
		_, err := pub.Packet(packetring.Packet{PTS: p.base + int64(at), DTS: p.base + int64(at), Data: []byte("data"),
			Flags: packetring.FlagLastInAU | packetring.FlagKey | packetring.FlagDiscontinuity})
		require.NoError(t, err)
	}
	for i := range 25 {
		p.send(p.video, time.Duration(i)*40*time.Millisecond, i == 0)
	}
	for i := range 50 {
		p.send(p.audio, 10*time.Millisecond+time.Duration(i)*20*time.Millisecond, true)
	}
	gap(p.audio, 400*time.Millisecond)
	for i := range 20 {
		p.send(p.audio, 420*time.Millisecond+time.Duration(i)*20*time.Millisecond, true)
	}
	gap(p.video, 440*time.Millisecond)
	for i := range 10 {
		p.send(p.video, 480*time.Millisecond+time.Duration(i)*40*time.Millisecond, false)
	}
	in := p.open()
	defer in.Close()
	in.grace = endless
	var newest int64
	gaps := map[int]bool{}
	for i, it := range p.read(in, 75+21+11-2) { // the last ones wait for each other
		if it.Flags&packetring.FlagDiscontinuity != 0 {
			require.Equal(t, len(gaps) == 1, it.Track == audioTrack, "the pictures' gap comes first")
			gaps[it.Track] = true
			continue
		}
		if it.PTS-p.base >= int64(400*time.Millisecond) && len(gaps) < 2 {
			require.GreaterOrEqual(t, it.PTS, newest, "packet %d is of the time in front of the gap", i)
		}
		require.Equal(t, gaps[videoTrack], gaps[audioTrack], "packet %d stands between the gaps", i)
		newest = it.PTS
	}
	require.Len(t, gaps, 2)
}

// Audio alone has a gap: it waits for the next picture and no longer.
func TestInterleaveAudioGap(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	p := newPair(t, true)
	p.send(p.video, 0, true)
	p.send(p.audio, 0, true)
	in := p.open()
	defer in.Close()
	p.read(in, 2)
	in.grace = endless
	require.NoError(t, p.audio.Close(framering.ReasonUpgrade))
	p.audio = p.publish(p.key+AudioSuffix, media.AAC)
	p.send(p.audio, 50*time.Millisecond, true)
	p.send(p.video, 40*time.Millisecond, false)
	p.send(p.video, 80*time.Millisecond, false)
	p.send(p.audio, 90*time.Millisecond, true)
	p.send(p.video, 120*time.Millisecond, false)
	var tracks []int
	for _, it := range p.read(in, 4) {
		tracks = append(tracks, it.Track)
	}
	require.Equal(t, []int{videoTrack, audioTrack, videoTrack, audioTrack}, tracks)
}

func TestInterleaveNoKey(t *testing.T) {
	dir, key := place(t)
	_, err := newInterleaver(t.Context(), interleaverOptions{SubscribeOptions: SubscribeOptions{RuntimeDir: dir, Key: key}})
	require.ErrorIs(t, err, os.ErrNotExist)
}
