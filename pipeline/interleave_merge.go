package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/cfpipe/cfpipe/packetring"
)

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
		if f != nil && (other == nil || other.quiet() && !other.stale()) {
			return in.take(f), nil
		}
		if in.video.err != nil && !in.video.full {
			if err := in.drainAudio(ctx); err != nil {
				return item{}, err
			}
			continue
		}
		var timeout <-chan time.Time
		switch {
		case f != nil:
			d := time.Until(f.due)
			switch {
			case other.stale(), d <= -holdFor && other.sub.attached() != nil:
				other.drain() // this reader was held up: what it has to wait for may be in the ring
			case d <= 0:
				other.idle = time.Now()
				continue
			default:
				in.timer.Reset(d)
				timeout = in.timer.C
			}
		case in.holds():
			d := time.Until(in.held)
			if d <= 0 {
				in.held = time.Time{}
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
	if in.ended.IsZero() {
		in.ended = time.Now()
		for _, f := range in.feeds() {
			f.idle = time.Time{}
		}
	}
	for {
		left := in.limit - time.Since(in.ended)
		f, other := in.first()
		settled := true // all that the rings held is here, or was handed out
		for _, f := range in.feeds() {
			if !f.quiet() {
				f.drain()
				settled = false
			}
		}
		switch {
		case left <= 0:
			return item{}, ctx.Err()
		case f != nil && (other == nil || other.quiet()):
			if f.head.PTS > in.ended.UnixNano() {
				return item{}, ctx.Err()
			}
			return in.take(f), nil
		case settled:
			return item{}, ctx.Err()
		}
		in.timer.Reset(left)
		in.wait(context.Background(), in.timer.C)
	}
}

// resume goes on with another context when the one before has ended.
func (in *interleaver) resume() {
	in.ended = time.Time{}
	for _, f := range in.feeds() {
		f.idle = time.Time{}
	}
}

// drainAudio waits for what the audio still has when the video has ended; it returns why the video ended when there is no more.
func (in *interleaver) drainAudio(ctx context.Context) error {
	if in.audio == nil || in.audio.err != nil || !errors.Is(in.video.err, ErrEnded) {
		return in.video.err
	}
	in.timer.Reset(in.grace)
	if !in.wait(ctx, in.timer.C) && ctx.Err() == nil {
		return in.video.err
	}
	return nil
}

// first returns the track whose packet comes first, and the other one where there is one.
func (in *interleaver) first() (f, other *trackFeed) {
	v, a := in.video, in.audio
	if in.holds() {
		if v.full {
			return v, nil
		}
		return nil, nil
	}
	switch {
	case a == nil || a.err != nil && !a.full:
		if v.full {
			return v, nil
		}
	case v.full && a.full && a.head.Flags&packetring.FlagDiscontinuity == 0 && a.key <= v.before+int64(holdFor):
		return a, v // the sound of the pictures in front of the gap
	case v.full && (!a.full || v.key <= a.key):
		return v, a
	case a.full:
		return a, v
	}
	return nil, nil
}

// hold lets the audio's packet that has just come wait where it is the first one behind a gap and the video is not so far.
func (in *interleaver) hold() {
	v, a := in.video, in.audio
	behind := v.full && v.head.Flags&packetring.FlagDiscontinuity != 0 || a.resumes() > v.key
	if v.started && behind && a.head.Flags&packetring.FlagDiscontinuity != 0 {
		in.held = time.Now().Add(gapLimit)
	}
}

// resumes is the time of the other track from which on a packet behind a gap is not waited for any more. Where time goes back at the gap, the other
// track's goes back as well, but after that.
func (f *trackFeed) resumes() int64 {
	if f.before != 0 {
		return f.before + int64(holdFor)
	}
	return f.key
}

// holds says whether the audio's packet waits behind a gap: what comes after one belongs to the pictures after it, which begin
// with a keyframe and so later than the sound. It waits until the video has its gap too, and then comes behind that keyframe,
// or until the video goes on without one, and not longer than gapLimit. Its ring is the queue meanwhile.
func (in *interleaver) holds() bool {
	v, a := in.video, in.audio
	if in.held.IsZero() {
		return false
	}
	if a == nil || !a.full || v.err != nil && !v.full || v.full && v.head.Flags&packetring.FlagDiscontinuity == 0 && v.key > a.resumes() {
		in.held = time.Time{}
	}
	return !in.held.IsZero()
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
		in.accept(in.video, it)
	case it := <-audioReady:
		in.accept(in.audio, it)
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

func (in *interleaver) accept(f *trackFeed, it item) {
	if !it.drained.IsZero() {
		f.asked = false
		if !it.drained.Before(in.ended) {
			f.idle = it.drained
		}
		return
	}
	last, started := f.key, f.started
	if f == in.audio {
		in.hole.tell(&it)
	}
	f.accept(in.unix(it), in.grace)
	if f == in.video && it.Flags&packetring.FlagDiscontinuity != 0 {
		in.hole.from, in.hole.to = 0, 0
		if it.Lost > 0 && started {
			in.hole.from, in.hole.to = last+int64(holdFor), f.key
		}
	}
	if in.audio == nil || !in.audio.full {
		return
	}
	if in.hole.has(in.audio.key) {
		in.hole.leaveOut(in.audio.head)
		in.audio.full = false
		in.audio.taken <- struct{}{}
	} else if f == in.audio {
		in.hold()
	}
}

// hole is a time whose pictures were lost to this reader, because their ring had moved on: the ring of the audio holds more seconds. The sound of it
// is left out, and counts as lost too: it belongs neither to the pictures in front of the hole nor to those behind it.
type hole struct {
	from, to int64            // from holdFor behind the last picture to the next one
	lost     uint64           // packets left out, and not told of yet
	info     *packetring.Info // that came with them
}

func (h *hole) has(t int64) bool { return h.from <= t && t < h.to }

func (h *hole) leaveOut(it item) {
	h.lost += it.Lost + 1
	if it.Info != nil {
		h.info = it.Info
	}
}

// tell lets the next packet of the audio say what was left out in front of it.
func (h *hole) tell(it *item) {
	if h.lost == 0 {
		return
	}
	it.Lost += h.lost
	it.Flags |= packetring.FlagDiscontinuity
	if it.Info == nil {
		it.Info = h.info
	}
	h.lost, h.info = 0, nil
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

func (in *interleaver) take(f *trackFeed) item {
	if f == in.video && f.head.Flags&packetring.FlagDiscontinuity != 0 {
		in.held = time.Time{}
	}
	in.used = f
	return f.head
}
