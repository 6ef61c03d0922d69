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

// AudioSuffix makes the key of a source's audio: <key>-audio.
const AudioSuffix = "-audio"

const (
	// holdFor is how long a packet waits for the other track to come up to its time. Cameras send audio some 10 to 100 ms apart
	// from the video; what comes later than this is passed on out of order.
	holdFor = 500 * time.Millisecond
	// audioGrace is how long the start waits for the audio key: ingest publishes it right behind the video.
	audioGrace = 300 * time.Millisecond
	// restWait is how long a reader that is asked to stop waits for a ring to hand over what it holds already, restLimit how long
	// all of it may take: a ring of hundreds of packets is read in milliseconds.
	restWait  = 20 * time.Millisecond
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
}

// interleaver reads a key and, where there is one, its audio key, one packet at a time in the order of time. Each ring is the
// queue of its track: besides the one packet of each track that waits for the other nothing is kept, so a consumer that is
// slow loses by the ring's rules, with the loss counted.
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
	ended time.Time // when the context was found to have ended
}

// item is a packet as an interleaver hands it out.
type item struct {
	packetring.Packet
	Track      int
	Lost       uint64           // packets lost in front of it
	Generation int              // of the publisher
	Info       *packetring.Info // set when the stream's description may be new
}

// trackFeed reads one subscription; its packet stands still until it is released.
type trackFeed struct {
	sub   *Subscription
	ready chan item
	fail  chan error
	taken chan struct{}

	head    item
	full    bool
	err     error
	idle    bool // the other track has waited for it in vain
	key     int64
	due     time.Time
	started bool
	lag     lagWindow
	buf     []byte // an access unit that comes in several packets
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
	in := &interleaver{log: log, stop: stop, found: make(chan *Subscription), done: make(chan struct{}), timer: time.NewTimer(time.Hour)}
	in.video = newTrackFeed(life, sub, videoTrack)
	if o.NoAudio || len(o.Key)+len(AudioSuffix) > 63 {
		close(in.done)
		return in, nil
	}
	audio := o.SubscribeOptions
	audio.Key += AudioSuffix
	audio.Start, audio.WaitForKey = StartOldest, 0
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
		case ctx.Err() == nil && !errors.Is(err, ErrNoKey) && !told:
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

func newTrackFeed(ctx context.Context, sub *Subscription, track int) *trackFeed {
	f := &trackFeed{sub: sub, ready: make(chan item), fail: make(chan error, 1), taken: make(chan struct{})}
	go f.run(ctx, track)
	return f
}

// run reads packets and hands each over, to go on once it is released.
func (f *trackFeed) run(ctx context.Context, track int) {
	defer f.sub.Close()
	var lost uint64
	generation := -1
	for {
		p, err := f.next(ctx)
		if err != nil {
			f.fail <- err
			return
		}
		it := item{Packet: p, Track: track, Generation: generation}
		if generation < 0 || p.Flags&packetring.FlagDiscontinuity != 0 {
			s := f.sub.Stats()
			it.Lost, lost = s.Lost-lost, s.Lost
			info := f.sub.Info()
			it.Info = &info
			generation = s.Restarts
			it.Generation = generation
		}
		select {
		case f.ready <- it:
		case <-ctx.Done():
			f.fail <- ctx.Err()
			return
		}
		select {
		case <-f.taken:
		case <-ctx.Done():
			f.fail <- ctx.Err()
			return
		}
	}
}

// next returns a whole access unit: publishers other than this project's may send it NAL unit by NAL unit.
func (f *trackFeed) next(ctx context.Context) (packetring.Packet, error) {
	p, err := f.sub.Next(ctx)
	if err != nil || p.Flags&packetring.FlagLastInAU != 0 {
		return p, err
	}
	whole := p
	f.buf = append(f.buf[:0], p.Data...)
	for whole.Flags&packetring.FlagLastInAU == 0 && len(f.buf) < maxAssembled {
		if p, err = f.sub.Next(ctx); err != nil {
			return p, err
		}
		if p.Flags&packetring.FlagDiscontinuity != 0 { // the rest is lost: begin again
			f.buf, whole = f.buf[:0], p
		}
		f.buf = append(f.buf, p.Data...)
		whole.Flags |= p.Flags
	}
	whole.Data = f.buf
	return whole, nil
}

// next returns the next packet; its Data is valid until the next call.
func (in *interleaver) next(ctx context.Context) (item, error) {
	if in.used != nil {
		in.used.full = false
		in.used.taken <- struct{}{}
		in.used = nil
	}
	for {
		if ctx.Err() != nil {
			return in.rest(ctx)
		}
		f, other := in.first()
		if f != nil && (other == nil || other.full || other.idle || other.err != nil) {
			return in.take(f), nil
		}
		if in.video.err != nil && !in.video.full {
			if err := in.drainAudio(ctx); err != nil {
				return item{}, err
			}
			continue
		}
		var timeout <-chan time.Time
		if f != nil {
			d := time.Until(f.due)
			if d <= 0 {
				other.idle = true
				continue
			}
			in.timer.Reset(d)
			timeout = in.timer.C
		}
		in.wait(ctx, timeout)
	}
}

// rest returns, once the context has ended, what was published until then and not handed out yet; then the context's error.
func (in *interleaver) rest(ctx context.Context) (item, error) {
	now := time.Now()
	if in.ended.IsZero() {
		in.ended = now
	}
	for {
		f, _ := in.first()
		if f != nil && f.head.PTS <= in.ended.UnixNano() && now.Sub(in.ended) < restLimit {
			return in.take(f), nil
		}
		if f != nil || in.video.err != nil {
			return item{}, ctx.Err()
		}
		in.timer.Reset(restWait)
		if !in.wait(context.Background(), in.timer.C) {
			return item{}, ctx.Err()
		}
	}
}

// drainAudio waits for what the audio still has when the video has ended; it returns why the video ended when there is no more.
func (in *interleaver) drainAudio(ctx context.Context) error {
	if in.audio == nil || in.audio.err != nil || !errors.Is(in.video.err, ErrEnded) {
		return in.video.err
	}
	in.timer.Reset(holdFor)
	if !in.wait(ctx, in.timer.C) && ctx.Err() == nil {
		return in.video.err
	}
	return nil
}

// first returns the track whose packet comes first, and the other one where there is one.
func (in *interleaver) first() (f, other *trackFeed) {
	v, a := in.video, in.audio
	switch {
	case a == nil || a.err != nil && !a.full:
		if v.full {
			return v, nil
		}
	case v.full && (!a.full || v.key <= a.key):
		return v, a
	case a.full:
		return a, v
	}
	return nil, nil
}

// wait takes in the next thing that happens on any track that has no packet here; false when that is nothing.
func (in *interleaver) wait(ctx context.Context, timeout <-chan time.Time) bool {
	var videoReady, audioReady <-chan item
	var videoFail, audioFail <-chan error
	if !in.video.full && in.video.err == nil {
		videoReady, videoFail = in.video.ready, in.video.fail
	}
	if in.audio != nil && !in.audio.full && in.audio.err == nil {
		audioReady, audioFail = in.audio.ready, in.audio.fail
	}
	select {
	case it := <-videoReady:
		in.video.accept(in.unix(it))
	case it := <-audioReady:
		in.audio.accept(in.unix(it))
	case in.video.err = <-videoFail:
	case in.audio.err = <-audioFail:
		if !errors.Is(in.audio.err, context.Canceled) && !errors.Is(in.audio.err, ErrEnded) {
			in.log.Warn("audio has ended", "error", in.audio.err)
		}
	case sub := <-in.found:
		life, stop := context.WithCancel(context.Background())
		stopVideo := in.stop
		in.stop = func() { stop(); stopVideo() }
		in.audio = newTrackFeed(life, sub, audioTrack)
	case <-timeout:
		return false
	case <-ctx.Done():
		return false
	}
	return true
}

// notUnix is below every Unix time in ns that a camera of this century has; publishers with another clock are anchored to the
// system's when their first packet is read.
var notUnix = time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()

func (in *interleaver) unix(it item) item {
	if it.PTS < notUnix && in.shift == 0 {
		in.shift = time.Now().UnixNano() - it.PTS
	}
	if it.PTS < notUnix {
		it.PTS += in.shift
		it.DTS += in.shift
	}
	return it
}

// accept makes it the packet of the track that waits.
func (f *trackFeed) accept(it item) {
	key := it.DTS
	if it.Track == audioTrack || it.Flags&packetring.FlagKey != 0 {
		key = it.PTS // so that all audio in front of a keyframe is there when a file is cut at it
	}
	if f.started && it.Flags&packetring.FlagDiscontinuity == 0 && key < f.key && f.key-key < int64(time.Second) {
		key = f.key
	}
	now := time.Now()
	f.head, f.full, f.idle, f.key, f.started = it, true, false, key, true
	f.due = time.Unix(0, key).Add(f.lag.add(now, now.UnixNano()-key) + holdFor)
}

func (in *interleaver) take(f *trackFeed) item {
	in.used = f
	return f.head
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
	for _, f := range []*trackFeed{in.video, in.audio} {
		if f != nil && f.err == nil {
			<-f.fail
		}
	}
	<-in.done
}

// lagWindow is the smallest distance between a packet's time and its arrival, of the last lagSpan or two: what of the distance
// is constant, and not waiting.
type lagWindow struct {
	since             time.Time
	current, previous int64
	started           bool
}

const lagSpan = 5 * time.Second

func (l *lagWindow) add(now time.Time, lag int64) time.Duration {
	switch {
	case !l.started:
		l.started, l.since, l.current, l.previous = true, now, lag, lag
	case now.Sub(l.since) > lagSpan:
		l.since, l.previous, l.current = now, l.current, lag
	}
	l.current = min(l.current, lag)
	return time.Duration(min(l.current, l.previous))
}

// mediaPacket is the ring's packet in the words of sources and outputs; the flags have the same bits.
func mediaPacket(p packetring.Packet) media.Packet {
	return media.Packet{PTS: p.PTS, DTS: p.DTS, Flags: media.Flags(p.Flags), Data: p.Data}
}
