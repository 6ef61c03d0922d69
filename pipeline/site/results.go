package site

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

const (
	// resultsRetry is the pause after the disk did not take the results.
	resultsRetry = 5 * time.Second
	// triggerPace is the shortest time between two triggers of one inference; each is asked for once at a time.
	triggerPace = 500 * time.Millisecond
	// oldResult is how long a result may wait for a trigger: what was seen before is no reason to record now.
	oldResult = time.Second
	tellPace  = time.Minute
)

// InferStats are those of an inference in a site.
type InferStats struct {
	pipeline.InferStats
	Unwritten uint64 `json:"unwritten"` // results that the disk did not take
	Triggers  uint64 `json:"triggers"`  // that recorders took
}

// results writes lines into files. The disk never ends or holds an inference for longer than a write takes: what it refuses is counted.
type results struct {
	pattern *mux.Pattern
	limit   int64
	log     *slog.Logger

	f         *os.File
	name      string // by the pattern
	size      int64
	retry     time.Time
	told      time.Time
	unwritten atomic.Uint64
}

// Write takes a line. It never fails.
func (r *results) Write(line []byte) (int, error) {
	now := time.Now()
	name := r.pattern.Name(now)
	if r.f != nil && (name != r.name || r.size+int64(len(line)) > r.limit) {
		r.close()
	}
	if err := r.write(name, line, now); err != nil {
		r.unwritten.Add(1)
		r.retry = now.Add(resultsRetry)
		if now.Sub(r.told) > tellPace {
			r.told = now
			r.log.Error("results cannot be written; the inference goes on", "error", err)
		}
	}
	return len(line), nil
}

func (r *results) write(name string, line []byte, now time.Time) error {
	if r.f == nil {
		if now.Before(r.retry) {
			r.unwritten.Add(1)
			return nil
		}
		f, err := r.pattern.Create(now)
		if err != nil {
			return err
		}
		r.f, r.name, r.size = f, name, 0
	}
	n, err := r.f.Write(line)
	if err != nil {
		if n > 0 {
			_ = r.f.Truncate(r.size) // whole lines alone
		}
		r.close()
		return err
	}
	r.size += int64(n)
	return nil
}

func (r *results) close() {
	if r.f == nil {
		return
	}
	if err := r.f.Close(); err != nil {
		r.log.Error("results cannot be written", "path", r.f.Name(), "error", err)
	}
	if r.size == 0 {
		_ = os.Remove(r.f.Name())
	}
	r.f = nil
}

// ruler triggers the recorders of a key when results say so.
type ruler struct {
	spec  spec
	log   *slog.Logger
	seen  chan sighting // the newest, where it waits
	count atomic.Uint64
}

// sighting is a result that the rule is about.
type sighting struct {
	value float64
	at    time.Time
}

// saw passes a result on, in place of one that waits.
func (r *ruler) saw(v float64) {
	select {
	case <-r.seen:
	default:
	}
	select {
	case r.seen <- sighting{v, time.Now()}:
	default:
	}
}

// run asks the recorders until ctx ends.
func (r *ruler) run(ctx context.Context) {
	rule := r.spec.Infer.Trigger
	var told time.Time
	for {
		var s sighting
		select {
		case s = <-r.seen:
		case <-ctx.Done():
			return
		}
		if time.Since(s.at) > oldResult { // a recorder that hung has held up the rule
			continue
		}
		asking, cancel := context.WithTimeout(ctx, triggerWait)
		took, err := trigger.Send(asking, r.spec.RuntimeDir, r.spec.Key, trigger.Request{
			Action: trigger.Momentary, For: time.Duration(rule.For), Reason: fmt.Sprintf("%.100s %.4g", rule.Output, s.value),
		})
		cancel()
		r.count.Add(uint64(len(took)))
		if err != nil && ctx.Err() == nil && time.Since(told) > tellPace {
			told = time.Now()
			r.log.Warn("a result's trigger was not taken", "key", r.spec.Key, "error", err)
		}
		if sleep(ctx, triggerPace) != nil {
			return
		}
	}
}

// runInfer is the stage.
func runInfer(ctx context.Context, s spec, log *slog.Logger, probe func(func() report)) error {
	o := s.inferOptions(log)
	if err := o.SetFormat(s.Infer.Size, s.Infer.DType, s.Infer.Layout); err != nil {
		return err
	}
	out := &results{limit: int64(s.Infer.ResultsSize), log: log.With("key", s.Key)}
	if s.Infer.Results != "" {
		var err error
		if out.pattern, err = mux.ParsePattern(s.Infer.Results, s.Key); err != nil {
			return err
		}
		o.Out = out
		defer out.close()
	}
	rule := &ruler{spec: s, log: log, seen: make(chan sighting, 1)}
	if r := s.Infer.Trigger; r != nil {
		o.Watch = &pipeline.InferWatch{Output: r.Output, Above: r.Above, Seen: rule.saw}
		life, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			rule.run(life)
		}()
		defer func() { stop(); <-ended }()
	}
	var stats atomic.Pointer[func() pipeline.InferStats]
	o.Observe = func(f func() pipeline.InferStats) { stats.Store(&f) }
	probe(func() report {
		i := &InferStats{Unwritten: out.unwritten.Load(), Triggers: rule.count.Load()}
		if f := stats.Load(); f != nil {
			i.InferStats = (*f)()
		}
		return report{Infer: i}
	})
	_, err := pipeline.Infer(ctx, o)
	return err
}
