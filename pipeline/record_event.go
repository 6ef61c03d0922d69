package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/packetring"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// EventOptions make a recorder wait for triggers (package trigger) and record what lies around them: from the keyframe at or before the
// first trigger less RecordOptions.Pre until Post after the last. While it waits it reads nothing and is no reader of the ring: the
// ring is what remembers the time before the trigger, as far back as it reaches.
type EventOptions struct {
	Post    time.Duration
	Longest time.Duration // of an event, Pre and Post included; 0 = not bounded. See trigger.PlanOptions
	Group   string        // whose members may trigger; "" = the owner alone
	Ready   func()        // triggers are taken from now on; may be nil
}

// Check says what is wrong with an event's lengths.
func (o EventOptions) Check(pre time.Duration) error {
	switch {
	case pre < 0 || o.Post < 0 || o.Longest < 0:
		return errors.New("a duration is negative")
	case o.Longest > 0 && o.Longest < pre+o.Post+time.Second:
		return fmt.Errorf("the longest event of %v has no room for %v before the trigger and %v after it", o.Longest, pre, o.Post)
	}
	return nil
}

const (
	// reachPace is how often a recorder that waits looks whether the ring reaches back far enough.
	reachPace = 30 * time.Second
	// firstReachPace is the same until the ring has shown it.
	firstReachPace = 2 * time.Second
	// silencePace is how often it is looked whether an event is over though no packet comes any more.
	silencePace = 500 * time.Millisecond
	// eventRetry is the pause after a camera could not be read.
	eventRetry = time.Second
	// longestGOP is how far behind what is written an event that is read again may begin; what lies further behind is of a clock that was set.
	longestGOP = time.Minute
)

// eventRecorder is what a recorder on events has besides.
type eventRecorder struct {
	plan    *trigger.Plan
	now     trigger.Event // the one that is recorded
	files   int           // of it
	written int64         // DTS of its newest picture that was written; 0 = none was
	waiting atomic.Int64  // since when the next packet is waited for, after monotonicStart; 0 = one is being written
	path    string        // of its newest file
	from    time.Time     // where its newest file begins or, of one that an earlier recorder has begun, goes on; zero = at its start
	reach   bool          // it was told how far the ring reaches back
	short   bool          // and that it is too small

	note           *eventNote // of the event that is recorded: it is this recorder's; nil = there is none, or it cannot be kept
	noteless       bool       // it was told that none can be kept
	standby        bool       // another recorder holds it
	remembered     uint64     // change of the plan that was written down; see remember
	rememberedPath string
	strays         map[string]bool // notes of recorders with another pattern that nobody held when they were looked at last

	next func(context.Context, *interleaver) (item, error) // tests: reading that fails; nil = interleaver.next
}

// events waits for triggers and records until Duration is over (nil) or ctx is done (ctx's error).
func (r *recorder) events(ctx context.Context) error {
	o := r.o.OnEvent
	if err := o.Check(r.o.Pre); err != nil {
		return fmt.Errorf("record %s: %w", r.o.Key, err)
	}
	gid, err := framering.GroupID(o.Group)
	if err != nil {
		return fmt.Errorf("record %s: %w", r.o.Key, err)
	}
	if err := r.pattern.CheckFolder(); err != nil { // not found out by the first event
		return fmt.Errorf("record %s: %w", r.o.Key, err)
	}
	life := ctx
	if r.o.Duration > 0 {
		var cancel context.CancelFunc
		life, cancel = context.WithTimeout(ctx, r.o.Duration)
		defer cancel()
		r.o.Duration = 0 // not of an event
	}
	r.on.plan = trigger.NewPlan(trigger.PlanOptions{Pre: r.o.Pre, Post: o.Post, Longest: o.Longest})
	server, err := trigger.Listen(trigger.ListenOptions{RuntimeDir: r.o.RuntimeDir, Key: r.o.Key, GID: gid, Handle: r.handle, Logger: r.log})
	if err != nil {
		return err
	}
	defer server.Close()
	defer r.release()
	r.takeOver()             // when triggers come here too: what is asked of the recorder before is in its note, or was asked of both
	if r.o.WaitForKey >= 0 { // else it may come when it likes
		sub, err := Subscribe(life, SubscribeOptions{
			RuntimeDir: r.o.RuntimeDir, Key: r.o.Key, Name: recorderName, WaitForKey: r.o.WaitForKey, Logger: r.o.Logger,
		})
		if err != nil {
			return err
		}
		sub.Close()
	}
	if o.Ready != nil {
		o.Ready()
	}
	r.log.Info("waiting for events", "pre", r.o.Pre, "post", o.Post, "longest", o.Longest)
	r.lookBack()
	r.takeStrays(life)
	strays := time.NewTimer(strayGrace)
	defer strays.Stop()
	look := time.NewTimer(r.lookPace())
	defer look.Stop()
	for {
		select {
		case <-r.on.plan.Started():
			for r.on.plan.Event() != nil && life.Err() == nil {
				if r.on.standby && !r.claim(life) {
					continue
				}
				again, err := r.event(life)
				if err != nil {
					return err
				}
				if life.Err() == nil {
					r.remember()
				}
				if again {
					pause(life, eventRetry)
				}
			}
		case <-strays.C:
			if r.takeStrays(life); len(r.on.strays) > 0 {
				strays.Reset(strayGrace)
			}
		case <-look.C:
			r.lookBack()
			r.takeOver()
			look.Reset(r.lookPace())
		case <-life.Done():
		}
		if life.Err() != nil {
			server.Close() // from here on no trigger is taken; what one was taken for has its file
			for r.on.plan.Event() != nil {
				if r.on.standby && !r.claim(life) {
					continue
				}
				if _, err := r.event(life); err != nil {
					return err
				}
			}
			return ctx.Err()
		}
	}
}

// event records the plan's event, or as much of it as can be read without another attempt: again says that it takes one, after a pause. The next
// attempt goes on behind what is written, or where another recorder has left the event. An error ends the recorder.
func (r *recorder) event(ctx context.Context) (again bool, fatal error) {
	ev := r.on.plan.Event()
	log := r.log.With("event", ev.ID)
	if ev.ID != r.on.now.ID {
		r.o.Counter.events.Add(1)
		log.Info("event", "reason", ev.Reason, "trigger", ev.Trigger.Format(time.RFC3339Nano))
		r.on.files, r.on.written, r.on.path, r.on.from = 0, 0, "", time.Time{}
	}
	r.on.now = *ev
	r.o.Counter.event.Store(true)
	defer r.o.Counter.event.Store(false)

	reading, stop := r.untilSilent(ctx)
	defer func() { stop() }()
	view := viewRing(r.o.Key)
	if view.reach == 0 { // nothing is there to be read; else the disk has to wait, since the ring does not
		if !r.own(ctx) {
			return false, nil
		}
		r.remember()
	}
	start, written := ev.Start, r.on.written
	if !r.on.from.IsZero() {
		start = r.on.from
	}
	if written != 0 {
		start = time.Unix(0, written)
	}
	joining, joined := outlast(reading, restLimit) // an event that has just begun is recorded though the recorder is to stop
	defer joined()
	in, err := newInterleaver(joining, interleaverOptions{
		SubscribeOptions: SubscribeOptions{
			RuntimeDir: r.o.RuntimeDir, Key: r.o.Key, Name: eventRecorderName(ev.ID), Start: StartAt(start.Add(-view.shift)),
			WaitForKey: -1, Logger: r.o.Logger,
		},
		NoAudio: r.o.NoAudio, Rest: recordRest,
	})
	if err != nil {
		if ctx.Err() != nil {
			r.on.plan.Abandon(time.Now())
		}
		switch {
		case ctx.Err() != nil, r.ended(ctx, log):
			if r.on.files == 0 {
				log.Warn("the event has no pictures", "error", err)
			}
			return false, nil
		case reading.Err() != nil:
			return false, nil
		}
		log.Warn("the camera cannot be read for this event", "error", err, "again_in", eventRetry)
		return true, nil
	}
	defer in.Close()
	if !r.own(ctx) {
		return false, nil
	}
	r.remember()
	in.shift = int64(view.shift)
	r.begins(in)
	defer func() {
		if ctx.Err() != nil {
			at := time.Now()
			if !in.ended.IsZero() {
				at = in.ended // what came until then was read
			}
			if end, known := r.on.plan.End(); known && !end.After(at) {
				r.forget()
			}
			if done := r.on.plan.Abandon(at); done != nil {
				r.on.now = *done
			}
		}
		if err := r.finish(); err != nil {
			log.Error("the event's file cannot be finished", "error", err)
		}
		if r.on.now.End != nil && r.on.files == 0 {
			log.Error("event ended, and nothing of it is in a file")
		} else if r.on.now.End != nil {
			log.Info("event ended", "files", r.on.files, "length", r.on.now.End.Sub(r.on.now.Start).Round(time.Millisecond))
		}
	}()
	for first := written == 0; ; {
		r.on.waiting.Store(int64(time.Since(monotonicStart)))
		it, err := r.nextOf(reading, in)
		r.on.waiting.Store(0)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return false, nil
		case reading.Err() != nil: // over, and silent
			if r.ended(ctx, log) {
				return false, nil
			}
			stop() // a trigger has prolonged it meanwhile
			reading, stop = r.untilSilent(ctx)
			in.resume()
			continue
		default:
			log.Error("reading for the event has ended", "error", err, "again_in", eventRetry)
			return true, nil
		}
		r.notice(it)
		r.remember()
		if first && it.Track == videoTrack {
			first = false
			if late := time.Unix(0, it.PTS).Sub(start); late > 0 && it.Generation == 0 {
				text := view.late("the event", r.o.Pre)
				if !r.on.from.IsZero() {
					text = "the ring does not reach back to where this event was left: there is a gap"
				}
				log.Warn(text, "pre", r.o.Pre, "late", late.Round(time.Millisecond))
			}
		}
		// A packet behind the end ends it. What is to be presented until the end is decoded before.
		if end, known := r.on.plan.End(); known {
			now := time.Now()
			at, behind := behindEnd(it.DTS, now, end, now.Sub(end))
			if behind && it.Track != videoTrack {
				continue
			}
			if behind && r.finished(at, log) {
				return false, nil
			}
		}
		if written != 0 {
			if it.Track != videoTrack || !resumes(it, written) {
				continue
			}
			written = 0
		}
		if err := r.write(it); err != nil {
			return false, err
		}
		if it.Track == videoTrack && r.segmenter.Open() {
			r.on.written = it.DTS
		}
	}
}

func (r *recorder) nextOf(ctx context.Context, in *interleaver) (item, error) {
	if r.on.next != nil {
		return r.on.next(ctx, in)
	}
	return in.next(ctx)
}

// resumes says whether an event that is written up to a DTS goes on with this access unit.
func resumes(it item, written int64) bool {
	return it.Flags&packetring.FlagKey != 0 && (it.DTS > written || it.DTS < written-int64(longestGOP))
}

// behindEnd says whether a packet lies behind an event's end, which lies past before now, and when that is so. What has just come is as
// late as the monotonic clock says: the system's may have been set since the trigger, and the packets' times with it.
func behindEnd(dts int64, now, end time.Time, past time.Duration) (at time.Time, behind bool) {
	at = time.Unix(0, dts)
	if lag := now.Sub(at); lag > wallSlack || lag < -wallSlack { // read from the ring, or of a clock of its own
		return at, at.After(end)
	}
	if at.After(end) {
		return now, past >= 0
	}
	return now, past > wallSlack
}

// finished ends the event unless a trigger has prolonged it beyond at.
func (r *recorder) finished(at time.Time, log *slog.Logger) bool {
	done, unstopped := r.on.plan.Finish(at)
	if done == nil {
		return false
	}
	r.on.now = *done
	if unstopped {
		log.Warn("nobody has stopped the event: it ends at the longest length")
	}
	return true
}

// ended is finished where no packet tells the time.
func (r *recorder) ended(ctx context.Context, log *slog.Logger) bool {
	return ctx.Err() == nil && r.finished(time.Now(), log)
}

// untilSilent returns a context that ends when the event is over by the clock on the wall and no packet has come for a while.
func (r *recorder) untilSilent(ctx context.Context) (context.Context, context.CancelFunc) {
	r.on.waiting.Store(int64(time.Since(monotonicStart)))
	inner, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		t := time.NewTicker(silencePace)
		defer t.Stop()
		for {
			select {
			case <-inner.Done():
				return
			case <-t.C:
			}
			since := time.Duration(r.on.waiting.Load())
			end, known := r.on.plan.End()
			if known && since != 0 && time.Since(monotonicStart)-since > wallSlack && time.Since(end) > wallSlack {
				cancel()
			}
		}
	})
	return inner, func() { cancel(); wg.Wait() }
}

// outlast returns a context that ends d after ctx has.
func outlast(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		pause(inner, d)
		cancel()
	})
	return inner, func() { stop(); cancel() }
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
