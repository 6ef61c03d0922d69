package site

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline"
)

// State is what a stage does now.
type State string

// The states.
const (
	StateWaiting State = "waiting" // for its turn to start
	StateRunning State = "running"
	StateBackoff State = "backoff" // it has failed and is started again after a pause
	StateEnded   State = "ended"   // its source is over
	StateStopped State = "stopped"
)

const (
	// A stage that fails is started again after minBackoff, then twice that and so on; one that has run for steadyFor begins
	// with the short pause again.
	minBackoff, maxBackoff = time.Second, time.Minute
	steadyFor              = time.Minute
	// eventStart is how long the ingests wait for recorders on events that stop: the ring of an event that begins now is mapped by then.
	eventStart = 5 * time.Second
	// resumeMost is how far back a recorder that is started again looks for what its predecessor did not write, and inFlight
	// what a predecessor that was killed may have lost of what it had counted.
	resumeMost, inFlight = 5 * time.Minute, 10 * time.Second
)

// report is what a stage says while it runs; in another process it is a line of JSON.
type report struct {
	Ingest  *pipeline.IngestStats `json:",omitempty"`
	Decode  *pipeline.DecodeStats `json:",omitempty"`
	Record  *pipeline.RecordStats `json:",omitempty"`
	Infer   *InferStats           `json:",omitempty"`
	Push    *pipeline.PushStats   `json:",omitempty"`
	Started *Started              `json:",omitempty"`
	File    *finishedFile         `json:",omitempty"`
	Error   string                `json:",omitempty"` // why it has ended
	Ended   bool                  `json:",omitempty"` // by itself: there is no more to do
	Clean   bool                  `json:",omitempty"` // what was counted is written
}

// finishedFile is a finished file as JSON, which holds no error.
type finishedFile struct {
	pipeline.Recorded
	Err string `json:",omitempty"` // in place of that of the file
}

func reported(f pipeline.Recorded) *finishedFile {
	x := &finishedFile{Recorded: f}
	if f.Err != nil {
		x.Err = f.Err.Error()
	}
	return x
}

func (x *finishedFile) recorded() pipeline.Recorded {
	f := x.Recorded
	if x.Err != "" {
		f.Err = errors.New(x.Err)
	}
	return f
}

// Started is a file that was opened.
type Started struct {
	Key, Path, Cause string
	Start            time.Time
}

// stage is one stage under supervision: a loop that runs it again whenever it fails. Each has a loop of its own, so one that fails
// often holds up no other.
type stage struct {
	spec
	print   string
	private *private
	log     *slog.Logger
	delay   time.Duration
	backoff time.Duration
	exe     []string // command line of a stage in a process of its own
	done    func(pipeline.Recorded)
	opened  func(Started)

	cancel context.CancelFunc
	ended  chan struct{}

	mu       sync.Mutex
	state    State
	since    time.Time
	restarts int
	lastErr  string
	pid      int
	probe    func() report // of the running stage; nil = it does not run here
	past     pipeline.RecordStats
	last     report // newest report of a process
	resume   time.Time
}

func (st *stage) start() {
	ctx, cancel := context.WithCancel(context.Background())
	st.cancel, st.ended = cancel, make(chan struct{})
	st.set(StateWaiting, "")
	go func() {
		defer close(st.ended)
		st.loop(ctx)
	}()
}

// stop ends the stage. It returns false when the stage has not ended in time.
func (st *stage) stop() bool {
	st.cancel()
	t := time.NewTimer(pipeline.StopTimeout)
	defer t.Stop()
	select {
	case <-st.ended:
		return true
	case <-t.C:
		st.log.Error("the stage does not stop and is left behind", "stage", st.id())
		return false
	}
}

// stopTurn is when a stage stops, of those that stop together. What waits for events goes before the ingests: it is no reader of a ring
// until an event begins, and one that begins now needs what the ring holds. The readers go behind them, to read to the end.
type stopTurn int

const (
	stopEvents stopTurn = iota
	stopIngests
	stopReaders
)

func (st *stage) stopTurn() stopTurn {
	switch st.Kind {
	case kindEvents:
		return stopEvents
	case kindIngest:
		return stopIngests
	}
	return stopReaders
}

func (st *stage) set(s State, lastErr string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.state != s {
		st.state, st.since = s, time.Now()
	}
	if lastErr != "" {
		st.lastErr = lastErr
	}
}

func (st *stage) loop(ctx context.Context) {
	defer st.set(StateStopped, "")
	if sleep(ctx, st.delay) != nil {
		return
	}
	for wait := st.backoff; ; wait = min(2*wait, maxBackoff) {
		begun := time.Now()
		st.set(StateRunning, "")
		err := st.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			st.set(StateEnded, "")
			st.log.Info("the stage has ended", "stage", st.id())
			<-ctx.Done()
			return
		}
		if time.Since(begun) >= steadyFor {
			wait = st.backoff
		}
		pause := wait/2 + rand.N(wait)
		st.mu.Lock()
		st.restarts++
		st.mu.Unlock()
		st.set(StateBackoff, err.Error())
		st.log.Error("the stage has failed and is started again", "stage", st.id(), "error", err, "in", pause.Round(time.Millisecond))
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

// once runs the stage until it ends.
func (st *stage) once(ctx context.Context) error {
	defer st.settle()
	if st.Isolated {
		return st.runProcess(ctx)
	}
	return runStage(ctx, st.spec, st.begin(), st.log, func(probe func() report) {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.probe = probe
	}, files{st.started, st.finished})
}

// begin is where a recorder begins that takes over from another one; zero = where its options say.
func (st *stage) begin() time.Time {
	st.mu.Lock()
	defer st.mu.Unlock()
	if time.Since(st.resume) > resumeMost {
		return time.Time{}
	}
	return st.resume
}

// settle keeps what the run that has ended has counted.
func (st *stage) settle() {
	st.mu.Lock()
	defer st.mu.Unlock()
	r := st.last
	if st.probe != nil {
		r = st.probe()
	}
	if r.Record != nil {
		if !r.Record.Newest.IsZero() {
			st.resume = r.Record.Newest
			if st.Isolated && !r.Clean {
				st.resume = st.resume.Add(-inFlight)
			}
		}
		st.past = plus(st.past, *r.Record)
	}
	st.probe, st.last, st.pid = nil, report{}, 0
}

// plus adds the counts of a run to those of the runs before it.
func plus(a, b pipeline.RecordStats) pipeline.RecordStats {
	b.Files += a.Files
	b.Packets += a.Packets
	b.Lost += a.Lost
	b.Overruns += a.Overruns
	b.Dropped += a.Dropped
	b.Failures += a.Failures
	b.FileBytes += a.FileBytes
	b.Writes += a.Writes
	b.WriteTime += a.WriteTime
	b.Syncs += a.Syncs
	b.SyncTime += a.SyncTime
	b.Slowest = max(a.Slowest, b.Slowest)
	b.Events += a.Events
	if b.Newest.IsZero() {
		b.Newest = a.Newest
	}
	return b
}

func (st *stage) started(s Started) {
	if st.opened != nil {
		st.opened(s)
	}
}

func (st *stage) finished(f pipeline.Recorded) {
	if st.done != nil {
		st.done(f)
	}
}

// causes are why the files of recorders are written, as far as it is known when one begins.
var causes = map[string]string{kindRecord: mux.CauseContinuous, kindEvents: mux.CauseEvent}

// files is told of the files of a recorder.
type files struct {
	started  func(Started)
	finished func(pipeline.Recorded)
}

// runStage runs a stage in this process. probe is called once with what tells its counts; to with each file.
func runStage(ctx context.Context, s spec, from time.Time, log *slog.Logger, probe func(func() report), to files) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("panic in a stage", "stage", s.id(), "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	switch s.Kind {
	case kindIngest:
		o, err := s.ingestOptions(log)
		if err != nil {
			return err
		}
		in, err := pipeline.NewIngest(o)
		if err != nil {
			return err
		}
		probe(func() report {
			st := in.Stats()
			r := report{Ingest: &st}
			if o.Decoded != nil {
				d := o.Decoded.Stats()
				r.Decode = &d
			}
			return r
		})
		return in.Run(ctx)
	case kindRecord, kindEvents:
		o := s.recordOptions(log)
		o.Counter = &pipeline.RecordCounter{}
		if o.OnEvent == nil && !from.IsZero() {
			o.Pre = max(time.Since(from), time.Nanosecond)
		}
		o.Started = func(path string, start time.Time) {
			to.started(Started{Key: s.Key, Path: path, Start: start, Cause: causes[s.Kind]})
		}
		o.Done = to.finished
		probe(func() report {
			st := o.Counter.Stats()
			return report{Record: &st}
		})
		return pipeline.Record(ctx, o)
	case kindInfer:
		return runInfer(ctx, s, log, probe)
	case kindPush:
		o := s.pushOptions(log)
		o.Counter = &pipeline.PushCounter{}
		probe(func() report {
			st := o.Counter.Stats()
			return report{Push: &st}
		})
		return pipeline.Push(ctx, o)
	case kindRelay:
		probe(func() report { return report{} })
		return pipeline.Relay(ctx, s.relayOptions(log))
	}
	return fmt.Errorf("stage of kind %.40q", s.Kind)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
