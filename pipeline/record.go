package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/packetring"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// RecordOptions describe a recording. Key and Out must be set.
type RecordOptions struct {
	RuntimeDir string
	Key        string
	Out        string        // file name with strftime conversions and %{key}
	Format     mux.Format    // "" = fmp4
	Segment    time.Duration // length of a file; 0 = one file
	Pre        time.Duration // begin so far in the past, as far as the ring still holds it; 0 = at the newest keyframe
	Duration   time.Duration // stop after so much; 0 = until the context is done
	WaitForKey time.Duration // see SubscribeOptions
	Fsync      mux.Fsync     // "" = never
	NoAudio    bool
	Started    func(path string, start time.Time) // a file was opened
	Done       func(Recorded)                     // a file is finished; may be nil
	OnEvent    *EventOptions                      // record around events alone, see there; nil = all the time
	Progress   func(RecordProgress)               // about once a second while packets come
	Counter    *RecordCounter                     // gets the counts, for others to read; may be nil
	Logger     *slog.Logger
}

// Recorded is a finished file of a recording.
type Recorded struct {
	Key string
	mux.Segment
	Event *trigger.Event // that made it, whose End is nil in all but its last file; nil = it is recorded all the time
}

// RecordProgress is where a recording stands.
type RecordProgress struct {
	Packets, Bytes, Lost uint64
	Time                 time.Time // of the newest packet
	Recorded             time.Duration
}

// recorderName is what a recorder is called in a publisher's table.
const recorderName = "record"

// eventRecorderName is what it is called while it records an event: 30 of the table's 31 characters.
func eventRecorderName(id string) string { return recorderName + " " + id }

// wallSlack is how much longer than Duration a recording may take by the clock on the wall when the camera falls silent.
const wallSlack = 3 * time.Second

// recordRest is how long a recorder that is asked to stop may take to write what the ring holds already: an event that has just
// begun has all of its pre-roll there.
const recordRest = 10 * time.Second

// StopTimeout is how long who stops a recorder, or another stage, waits for its end: a disk that hangs may hold it up for ever.
const StopTimeout = 20 * time.Second

// Record writes a key's packets, and its audio, into files until Duration is over (nil) or ctx is done (ctx's error); the open
// file is finished in both cases. It stays when publishers come and go, and when the disk cannot take the files: it goes on
// reading, and records again as soon as a file can be opened.
//
// The disk is written in the goroutine that reads: the ring is the queue. A disk that is slow for longer than the ring holds
// costs packets, which the ring counts, and never memory.
func Record(ctx context.Context, o RecordOptions) error {
	r := &recorder{o: o, log: o.Logger}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	r.log = r.log.With("key", o.Key)
	if r.o.Counter == nil {
		r.o.Counter = &RecordCounter{}
	}
	if r.o.Format == "" {
		r.o.Format = mux.FMP4
	}
	pattern, err := mux.ParsePattern(o.Out, o.Key)
	if err != nil {
		return err
	}
	r.pattern = pattern
	if o.OnEvent != nil {
		return r.events(ctx)
	}
	start, asked := StartLive, time.Now().Add(-o.Pre)
	if o.Pre > 0 {
		start = StartAt(asked)
	}
	in, err := newInterleaver(ctx, interleaverOptions{
		SubscribeOptions: SubscribeOptions{
			RuntimeDir: o.RuntimeDir, Key: o.Key, Name: recorderName, Start: start, WaitForKey: o.WaitForKey, Logger: o.Logger,
		},
		NoAudio: o.NoAudio, Rest: recordRest,
	})
	if err != nil {
		return err
	}
	defer in.Close()
	r.begins(in)
	err = r.run(ctx, in, asked)
	if cerr := r.finish(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("record %s: %w", o.Key, cerr))
	}
	return err
}

// begins makes the segmenter of what in reads.
func (r *recorder) begins(in *interleaver) {
	r.segmenter = mux.NewSegmenter(mux.SegmenterOptions{
		Format: r.o.Format, Title: r.o.Key, Cause: r.cause(), Length: r.o.Segment, Fsync: r.o.Fsync, Done: r.done, Started: r.started,
		Create: func(t time.Time) (mux.File, error) {
			f, err := r.pattern.Create(t)
			if err != nil {
				return nil, err
			}
			return &timedFile{File: f, c: r.o.Counter}, nil
		},
	}, media.Track{}, nil)
	r.audio, r.described, r.begin, r.counted = nil, false, 0, mux.Totals{}
	if info, ok := in.audioInfo(); ok { // known before the first file is opened
		r.describe(audioTrack, info)
	}
}

// cause is why the files are written, which they say of themselves.
func (r *recorder) cause() string {
	if r.o.OnEvent == nil {
		return mux.CauseContinuous
	}
	what := mux.CauseEvent + ": "
	if r.on.now.Continued {
		what = mux.CauseEvent + " (continued): "
	}
	return strings.TrimSuffix(what+r.on.now.Reason, ": ")
}

type recorder struct {
	o         RecordOptions
	pattern   *mux.Pattern
	log       *slog.Logger
	segmenter *mux.Segmenter
	video     media.Track
	audio     *media.Track
	described bool // the video is known

	counted    mux.Totals
	failing    bool // the disk does not take the files
	told       time.Time
	unreadable time.Time // when a keyframe without a size was last told of
	files      int
	path       string // of the file opened last
	begin      int64  // DTS of the first packet
	lead       int64  // its PTS less its DTS
	progress   RecordProgress
	progressed time.Time

	on eventRecorder // of OnEvent
}

func (r *recorder) run(ctx context.Context, in *interleaver, asked time.Time) error {
	wait := ctx
	if r.o.Duration > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, r.o.Duration+wallSlack)
		defer cancel()
	}
	for {
		it, err := in.next(wait)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case wait.Err() != nil:
			if r.progress.Packets == 0 {
				return fmt.Errorf("record %s: no packet came: %w", r.o.Key, os.ErrDeadlineExceeded)
			}
			r.log.Warn("the camera fell silent before the recording was complete")
			return nil
		default:
			return err
		}
		r.notice(it)
		if r.o.Pre > 0 && r.begin == 0 && it.Track == videoTrack {
			r.beginsLate(it, asked)
		}
		if r.over(it) {
			return nil
		}
		if err := r.write(it); err != nil {
			return err
		}
	}
}

// notice takes in what a packet says besides its picture.
func (r *recorder) notice(it item) {
	if it.Info != nil {
		r.describe(it.Track, *it.Info)
	}
	if it.Lost > 0 {
		r.log.Warn("packets were lost: the ring had moved on", "track", media.Kind(it.Track), "lost", it.Lost)
		if it.Track == videoTrack {
			r.segmenter.Lost(it.Lost)
			r.progress.Lost += it.Lost
			r.o.Counter.lost.Add(it.Lost)
			r.o.Counter.overruns.Add(1)
		}
	}
}

// over says whether the recording has lasted its Duration in front of this packet.
func (r *recorder) over(it item) bool {
	if it.Track != videoTrack {
		return false
	}
	if r.begin == 0 || it.DTS < r.begin { // the clock was set back
		r.begin, r.lead = it.DTS, it.PTS-it.DTS
	}
	return r.o.Duration > 0 && it.DTS >= r.begin+int64(r.o.Duration)
}

func (r *recorder) write(it item) error {
	if !r.described || it.Track == audioTrack && r.o.Duration > 0 && it.PTS >= r.begin+r.lead+int64(r.o.Duration) {
		return nil
	}
	err := r.segmenter.Write(it.Track, mediaPacket(it.Packet))
	r.count()
	if err != nil {
		return r.failed(err)
	}
	if it.Track != videoTrack {
		return nil
	}
	if r.failing && r.segmenter.Kept() > 0 { // a file can be opened on a full disk too
		r.failing = false
		r.log.Info("the recording goes on", "path", r.path)
	}
	r.progress.Packets++
	r.progress.Bytes += uint64(len(it.Data))
	if r.o.Progress != nil {
		if now := time.Now(); now.Sub(r.progressed) >= time.Second {
			r.progressed = now
			r.progress.Time = time.Unix(0, it.PTS)
			r.progress.Recorded = time.Duration(it.DTS - r.begin)
			r.o.Progress(r.progress)
		}
	}
	return nil
}

// finish closes the open file.
func (r *recorder) finish() error {
	defer r.count()
	return r.segmenter.Close()
}

// count passes on what the segmenter has counted since the last call.
func (r *recorder) count() {
	t, c := r.segmenter.Totals(), r.o.Counter
	c.packets.Add(t.Kept - r.counted.Kept)
	c.dropped.Add(t.Dropped - r.counted.Dropped)
	if t.Newest > c.newest.Load() {
		c.newest.Store(t.Newest)
	}
	r.counted = t
}

// tellAgain is how often a failure that lasts is logged.
const tellAgain = time.Minute

// failed decides about an error of the segmenter: what the disk does to a recording that runs, or that waits for events, is waited out; what is
// wrong from the start, or will be wrong always, ends it.
func (r *recorder) failed(err error) error {
	if errors.Is(err, mux.ErrNoSize) { // one keyframe of a camera does not end a recording
		if now := time.Now(); now.Sub(r.unreadable) >= tellAgain {
			r.unreadable = now
			r.log.Warn("no file can begin with this keyframe; waiting for one that can be read", "error", err)
		}
		return nil
	}
	var w *mux.WriteError
	if !errors.As(err, &w) || r.files == 0 && !full(err) && r.o.OnEvent == nil {
		return fmt.Errorf("record %s: %w", r.o.Key, err)
	}
	r.o.Counter.failing.Store(true)
	r.o.Counter.failures.Add(1)
	if now := time.Now(); !r.failing || now.Sub(r.told) >= tellAgain {
		r.failing, r.told = true, now
		r.log.Error("the recording cannot be written; it goes on by itself as soon as it can", "error", err, "retry_in", w.Retry)
	}
	return nil
}

func (r *recorder) started(path string, start time.Time) {
	r.o.Counter.opened()
	if r.files++; r.files == 1 {
		codecs := media.CodecTitle(r.video.CodecID)
		if r.audio != nil {
			codecs += ", " + media.CodecTitle(r.audio.CodecID)
		}
		r.log.Info(fmt.Sprintf("recording %s to %s (%s)", r.o.Key, path, codecs))
	}
	r.path, r.on.path = path, path
	r.log.Debug("file opened", "path", path, "start", start)
	if r.o.Started != nil {
		r.o.Started(path, start)
	}
}

func (r *recorder) done(s mux.Segment) {
	f := Recorded{Key: r.o.Key, Segment: s}
	if r.o.OnEvent != nil {
		r.on.files++
		event := r.on.now
		f.Event = &event
	}
	if r.o.Done != nil {
		r.o.Done(f)
	}
}

// describe takes over what a ring says about its stream.
func (r *recorder) describe(track int, info packetring.Info) {
	t := trackOf(info)
	if track == videoTrack {
		r.video, r.described = t, true
	} else if err := mux.HoldsAudio(r.o.Format, t.CodecID); err != nil {
		if r.audio == nil {
			r.log.Warn("recording without audio", "reason", err)
		}
		r.audio = nil
	} else {
		r.audio = &t
	}
	if r.described {
		r.segmenter.SetTracks(r.video, r.audio)
	}
}
