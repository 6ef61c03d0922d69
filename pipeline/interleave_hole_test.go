package pipeline

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// heldUp makes an interleaver find that everything in the rings is long due, as after a stop of its process.
func heldUp(in *interleaver) {
	for _, f := range in.feeds() {
		long := -int64(time.Minute)
		f.lag = lagWindow{started: true, since: time.Now(), current: long, previous: long}
	}
}

// A reader that was held up, with nothing lost: what is long due still comes out in the order of time.
func TestInterleaveHeldUp(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	testenv.CheckLeaks(t)
	p := newPair(t, true)
	p.send(p.video, 0, true)
	p.send(p.audio, 0, true)
	in := p.open()
	defer in.Close()
	p.read(in, 2)
	in.video.idle = time.Now().Add(-2 * holdFor) // it had nothing to give before the stop
	heldUp(in)
	for i := range 400 {
		p.send(p.audio, time.Duration(i+1)*20*time.Millisecond, true)
	}
	for i := range 200 {
		p.send(p.video, 10*time.Millisecond+time.Duration(i+1)*40*time.Millisecond, false)
	}
	items := p.read(in, 600)
	for i := 1; i < len(items); i++ {
		require.GreaterOrEqual(t, items[i].PTS, items[i-1].PTS, "packet %d", i)
	}
	require.NoError(t, p.video.Close(framering.ReasonNormal))
	require.NoError(t, p.audio.Close(framering.ReasonNormal))
}

// A reader that was held up for longer than the ring of the video holds, and not that of the audio: the sound of the lost pictures is left out
// and counted.
func TestInterleaveHole(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	testenv.CheckLeaks(t)
	p := newPair(t, true)
	for i := range 10 {
		p.send(p.video, time.Duration(i)*40*time.Millisecond, i == 0)
	}
	for i := range 5 {
		p.send(p.audio, 10*time.Millisecond+time.Duration(i)*80*time.Millisecond, true)
	}
	in := p.open()
	defer in.Close()
	var last, resumed, newest int64 // video in front of the hole and behind it, and whatever came last
	for _, it := range p.read(in, 13) {
		if it.Track == videoTrack {
			last = it.PTS - p.base
		}
	}
	heldUp(in)
	for i := 10; i < 1000; i++ {
		p.send(p.video, time.Duration(i)*40*time.Millisecond, i%100 == 0)
	}
	for i := 5; i < 500; i++ { // the ring's 512 packets hold all the seconds
		p.send(p.audio, 10*time.Millisecond+time.Duration(i)*80*time.Millisecond, true)
	}
	var left, lost uint64
	for lost == 0 || resumed == 0 || newest < int64(39*time.Second) {
		it := p.read(in, 1)[0]
		at := it.PTS - p.base
		gap := it.Flags&packetring.FlagDiscontinuity != 0
		require.Equal(t, it.Lost > 0, gap)
		require.GreaterOrEqual(t, at, newest)
		newest = at
		switch {
		case it.Track == videoTrack && gap:
			require.Zero(t, resumed)
			require.NotZero(t, it.Flags&packetring.FlagKey)
			resumed = at
			require.EqualValues(t, (resumed-last)/4e7-1, it.Lost)
		case it.Track == videoTrack:
			if resumed == 0 {
				last = at
			}
		case resumed == 0:
			require.Less(t, at, last+int64(holdFor))
			left = uint64((at - 1e7) / 8e7)
		case gap:
			require.Zero(t, lost)
			lost = it.Lost
			require.Less(t, at, resumed+8e7, "the sound begins with the picture")
			require.EqualValues(t, uint64((at-1e7)/8e7)-left-1, lost)
		}
	}
	require.Greater(t, lost, uint64(100))
	require.NoError(t, p.video.Close(framering.ReasonNormal))
	require.NoError(t, p.audio.Close(framering.ReasonNormal))
}

// A recording that was held up: each file has the sound of its own pictures.
func TestRecordHeldUp(t *testing.T) {
	testenv.Watchdog(t, 60*time.Second)
	testenv.CheckLeaks(t)
	clip := embedded(t)
	dir, key := place(t)
	base := time.Now().Add(-time.Minute).UnixNano()
	var pubs [2]*Publication
	var published [2]int
	for i, slots := range []int{128, 1024} {
		track := clip.Tracks()[i]
		pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key + []string{"", AudioSuffix}[i], Packets: packetring.Config{
			Slots: slots, DataSize: 4 << 20, CodecID: track.CodecID, Extradata: track.Extradata}})
		require.NoError(t, err)
		defer pub.Close(framering.ReasonNormal)
		pubs[i] = pub
	}
	until := func(end time.Duration) {
		for i, pub := range pubs {
			packets := clip.Packets(i)
			for {
				p := packets[published[i]%len(packets)]
				at := base + int64(published[i]/len(packets))*int64(clip.Duration())
				if at+p.DTS >= base+int64(end) {
					break
				}
				_, err := pub.Packet(packetring.Packet{PTS: at + p.PTS, DTS: at + p.DTS, Flags: packetring.Flags(p.Flags), Data: p.Data})
				require.NoError(t, err)
				published[i]++
			}
		}
	}
	until(time.Second)
	var k kept
	err := Record(t.Context(), RecordOptions{RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "%s.mkv"), Duration: 19 * time.Second,
		Done: k.done, Started: func(path string, start time.Time) {
			if k.started(path, start); len(k.opened) == 1 {
				until(20 * time.Second)
			}
		}})
	require.NoError(t, err)
	require.Len(t, k.segments, 2)
	each := clip.Duration().Seconds() / float64(len(clip.Packets(audioTrack)))
	before, behind := k.segments[0], k.segments[1]
	require.NotZero(t, before.Lost)
	require.True(t, behind.Discontinuous)
	require.Less(t, float64(before.AudioPackets)*each, (before.Duration()+holdFor).Seconds()+2*each)
	require.InDelta(t, behind.Duration().Seconds(), float64(behind.AudioPackets)*each, 3*each)
}
