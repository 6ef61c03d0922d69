package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/packetring"
)

// SubSuffix makes the key of a source's second resolution: <key>-sub.
const SubSuffix = "-sub"

// AudioSuffix makes the key of a source's audio: <key>-audio.
const AudioSuffix = "-audio"

const (
	// holdFor is how long a packet waits for the other track to come up to its time. Cameras send audio some 10 to 100 ms apart
	// from the video; what comes later than this is passed on out of order.
	holdFor = 500 * time.Millisecond
	// audioGrace is how long the start waits for the audio key: ingest publishes it right behind the video.
	audioGrace = 300 * time.Millisecond
	// gapLimit is how long audio behind a gap waits for the video's next keyframe: cameras that save bits send one in 10 to 60 s.
	// Without pictures the sound is of no use to any output.
	gapLimit = time.Minute
	// restLimit is how long a reader that is asked to stop may take over what the rings hold already: hundreds of packets are read
	// in milliseconds. It bounds whoever is handed them.
	restLimit = 2 * time.Second
	// audioPace is how often a recording without audio looks whether there is some now.
	audioPace = 5 * time.Second
	// maxAssembled bounds an access unit put together from packets of one NAL unit each.
	maxAssembled = 32 << 20
)

// The tracks of an interleaver.
const (
	videoTrack = 0
	audioTrack = 1
)

// interleaverOptions describe an interleaver.
type interleaverOptions struct {
	SubscribeOptions // Name, Start, Wait … of the video
	NoAudio          bool
	Rest             time.Duration // in place of restLimit; 0 = that
}

// interleaver reads a key and, where there is one, its audio key, one packet at a time in the order of time. Each ring is the
// queue of its track: besides the one packet of each track that waits for the other nothing is kept, so a consumer that is
// slow loses by the ring's rules, with the loss counted. It loses the sound of the pictures that it lost too, see hole.
type interleaver struct {
	log   *slog.Logger
	video *trackFeed
	audio *trackFeed // nil until there is one
	found chan *Subscription
	stop  context.CancelFunc
	done  chan struct{} // the search for audio has ended
	used  *trackFeed    // its head was handed out: released by the next call
	shift int64         // added to times that are not Unix times
	timer *time.Timer
	held  time.Time // until when the audio's packet waits behind a gap, see holds; zero = it does not
	ended time.Time // when the context was found to have ended
	hole  hole
	limit time.Duration
	grace time.Duration // holdFor, or a test's
}

// item is a packet as an interleaver hands it out.
type item struct {
	packetring.Packet
	Track      int
	Lost       uint64           // packets lost in front of it
	Generation int              // of the publisher
	Info       *packetring.Info // set when the stream's description may be new

	drained time.Time // not zero: no packet, but the feed's word that its ring held nothing more then
}

// newInterleaver subscribes to the video, waits a moment for the audio, and starts to read. Close it.
func newInterleaver(ctx context.Context, o interleaverOptions) (*interleaver, error) {
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	sub, err := Subscribe(ctx, o.SubscribeOptions)
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.Background())
	in := &interleaver{log: log, stop: stop, found: make(chan *Subscription), done: make(chan struct{}), timer: time.NewTimer(time.Hour),
		limit: restLimit, grace: holdFor}
	if o.Rest > 0 {
		in.limit = o.Rest
	}
	in.video = newTrackFeed(life, sub, videoTrack)
	if o.NoAudio || framering.CheckKey(o.Key+AudioSuffix) != nil {
		close(in.done)
		return in, nil
	}
	audio := o.SubscribeOptions
	audio.Key += AudioSuffix
	audio.Start, audio.WaitForKey, audio.quiet = StartOldest, 0, true
	if sub, err := Subscribe(ctx, audio); err == nil {
		in.audio = newTrackFeed(life, sub, audioTrack)
		close(in.done)
		return in, nil
	}
	go in.findAudio(life, audio)
	select {
	case sub := <-in.found:
		in.audio = newTrackFeed(life, sub, audioTrack)
	case <-time.After(audioGrace):
	case <-ctx.Done():
	}
	return in, nil
}

// findAudio waits for the audio key as long as it takes. Most cameras have none and it waits for ever, so it is told of the
// socket by a watch and looks by itself at a slow pace only, which is for what a watch does not see.
func (in *interleaver) findAudio(ctx context.Context, o SubscribeOptions) {
	defer close(in.done)
	var appeared <-chan struct{}
	if w, err := shm.WatchFor(framering.SocketPath(o.RuntimeDir, o.Key)); err == nil {
		defer w.Close()
		appeared = w.C
	}
	ticker := time.NewTicker(audioPace)
	defer ticker.Stop()
	told := false
	for {
		sub, err := Subscribe(ctx, o)
		switch {
		case err == nil:
			select {
			case in.found <- sub:
			case <-ctx.Done():
				sub.Close()
			}
			return
		case ctx.Err() == nil && !errors.Is(err, ErrNoKey) && !errors.Is(err, framering.ErrDisconnected) && !told: // it may be ending
			told = true
			in.log.Warn("audio cannot be read yet", "key", o.Key, "error", err)
		}
		select {
		case <-appeared:
			o.WaitForKey = audioGrace // its publisher may be about to listen
		case <-ticker.C:
			o.WaitForKey = 0
		case <-ctx.Done():
			return
		}
	}
}

// audioInfo describes the audio that was there from the start.
func (in *interleaver) audioInfo() (packetring.Info, bool) {
	if in.audio == nil {
		return packetring.Info{}, false
	}
	info := in.audio.sub.Info()
	return info, info.CodecID != 0
}

// Close ends reading. It waits for the feeds.
func (in *interleaver) Close() {
	in.stop()
	in.timer.Stop()
	for _, f := range in.feeds() {
		if f.err == nil {
			<-f.fail
		}
	}
	<-in.done
}

func (in *interleaver) feeds() []*trackFeed {
	if in.audio == nil {
		return []*trackFeed{in.video}
	}
	return []*trackFeed{in.video, in.audio}
}

// mediaPacket is the ring's packet in the words of sources and outputs; the flags have the same bits.
func mediaPacket(p packetring.Packet) media.Packet {
	return media.Packet{PTS: p.PTS, DTS: p.DTS, Flags: media.Flags(p.Flags), Data: p.Data}
}
