package site

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/redact"
	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/retention"
)

// Options say which site is run and how. File must be set.
type Options struct {
	File       string
	RuntimeDir string          // "" = what the file says, else the default
	Group      string          // "" = what the file says
	Reload     <-chan struct{} // asks for a reload; nil = only a change of the file does
	Command    []string        // command line of a stage in a process of its own, see RunStage
	Logger     *slog.Logger    // nil = silent
	Secrets    *redact.Set     // is told what the file's secrets are, for who shows what the site says otherwise; may be nil

	Finished func(pipeline.Recorded) // a file is finished; called from several goroutines, must not block; may be nil

	Ready   func(c *Config) // the stages of the first configuration are started; may be nil
	Alive   func()          // called about once a second while all is well; may be nil
	Backoff time.Duration   // shortest pause before a failed stage is started again; 0 = 1 s
}

const (
	// watchPace is how often the file is looked at. A change counts when it has stood for one look.
	watchPace = time.Second
)

// Site runs the stages of a site file.
type Site struct {
	o          Options
	log        *slog.Logger
	secrets    *redact.Set // of what the log, Status and the API say
	runtimeDir string
	group      string
	started    time.Time
	handOver   time.Duration
	keeper     *retention.Keeper
	index      *indexer
	api        api
	turned     atomic.Int64              // Unix ns of the loop's last turn; read by /health/live
	watchers   []func(pipeline.Recorded) // told of each finished file; set before Run
	endStrays  context.CancelFunc        // ends the search for recordings of no camera; of Run alone

	mu        sync.Mutex
	config    *Config
	stages    []*stage // ingests first
	loaded    time.Time
	reloads   int
	reloadErr string
}

// New loads the file. The error is that of Load.
func New(o Options) (*Site, error) {
	c, err := Load(o.File)
	if err != nil {
		return nil, err
	}
	s := &Site{o: o, log: o.Logger, secrets: o.Secrets, config: c, started: time.Now(), loaded: time.Now(), handOver: handOver}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.secrets == nil {
		s.secrets = &redact.Set{}
	}
	s.secrets.Use(c.private.values)
	s.log = s.secrets.Logger(s.log)
	if s.o.Backoff <= 0 {
		s.o.Backoff = minBackoff
	}
	s.index, s.api.site = &indexer{log: s.log}, s
	s.keeper = retention.New(retention.Options{Removed: s.index.removed, Logger: s.log})
	s.watchers = append(s.watchers, s.kept, s.index.finished)
	if o.Finished != nil {
		s.watchers = append(s.watchers, o.Finished)
	}
	s.runtimeDir, s.group = o.RuntimeDir, o.Group
	if s.runtimeDir == "" {
		s.runtimeDir = c.RuntimeDir
	}
	s.runtimeDir = framering.RuntimeDir(s.runtimeDir)
	if s.group == "" {
		s.group = c.Group
	}
	return s, nil
}

// Run runs the site until ctx ends: then the recorders on events finish the event that is on, which may have begun this moment and needs
// its ring still, the ingests stop, the readers take what the rings still hold, finish their files and stop. It returns ErrRunning when another
// process runs the same file and does not end within 10 s, and an error when a stage did not stop in time, else nil.
func (s *Site) Run(ctx context.Context) error {
	release, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer release()
	s.apply(s.config)
	helpers, stop := context.WithCancel(context.Background())
	var help sync.WaitGroup
	help.Go(func() { s.keeper.Run(helpers) })
	defer func() {
		stop()
		s.api.stop()
		ended := make(chan struct{})
		go func() {
			help.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(pipeline.StopTimeout): // a file system hangs
		}
		s.endStrays()
		s.index.stop()
	}()
	if s.o.Ready != nil {
		s.o.Ready(s.config)
	}
	ticker := time.NewTicker(watchPace)
	defer ticker.Stop()
	w := newFileWatch(s.o.File)
	var loading chan loadedFile // nil = the file is not being read
	var why string              // it shall be read
	for ctx.Err() == nil {
		s.turned.Store(time.Now().UnixNano())
		if why != "" && loading == nil {
			loading = s.load(why)
			why = ""
		}
		select {
		case <-ctx.Done():
		case f := <-loading:
			loading = nil
			s.takeOver(f)
		case <-s.o.Reload:
			w.accept()
			why = "asked to"
		case <-ticker.C:
			if w.changed() {
				why = "the file has changed"
			}
			if s.o.Alive != nil {
				s.o.Alive()
			}
		}
	}
	s.log.Info("stopping", "stages", len(s.stages))
	for _, st := range s.stopAll(s.stages) {
		err = errors.Join(err, fmt.Errorf("%s does not stop", st.id()))
	}
	return err
}

// loadedFile is the site file as it was read again.
type loadedFile struct {
	c   *Config
	err error
	why string
}

// load reads the file beside the loop, which a disk that hangs must not hold up.
func (s *Site) load(why string) chan loadedFile {
	done := make(chan loadedFile, 1)
	go func() {
		c, err := Load(s.o.File)
		done <- loadedFile{c, err, why}
	}()
	return done
}

// takeOver takes a file over that was read again. One with an error changes nothing.
func (s *Site) takeOver(f loadedFile) {
	if f.err != nil {
		s.log.Error("the site file is not taken over; everything runs on as it was", "error", f.err)
		s.mu.Lock()
		s.reloadErr = f.err.Error()
		s.mu.Unlock()
		return
	}
	started, stopped, kept := s.apply(f.c)
	s.mu.Lock()
	s.loaded, s.reloadErr = time.Now(), ""
	s.reloads++
	s.mu.Unlock()
	s.log.Info("site file loaded", "because", f.why, "started", started, "stopped", stopped, "untouched", kept)
}

// apply makes the stages those of c. Stages whose specification is the same are not touched.
func (s *Site) apply(c *Config) (started, stopped, kept int) {
	want := c.specs(s.runtimeDir, s.group)
	var stop, stages []*stage
	resume := map[string]time.Time{}
	for _, st := range s.stages {
		i := slices.IndexFunc(want, func(w spec) bool { return w.id() == st.id() })
		if i < 0 || want[i].fingerprint() != st.print {
			stop = append(stop, st)
		}
	}
	s.stopAll(stop)
	for _, st := range stop {
		resume[st.id()] = st.begin()
	}
	var ingests int
	for _, w := range want {
		if i := slices.IndexFunc(s.stages, func(st *stage) bool { return st.id() == w.id() }); i >= 0 && !slices.Contains(stop, s.stages[i]) {
			stages = append(stages, s.stages[i])
			kept++
			continue
		}
		st := &stage{spec: w, private: &c.private, print: w.fingerprint(), log: s.log, backoff: s.o.Backoff, exe: s.o.Command, resume: resume[w.id()],
			done: s.finished, opened: s.index.started}
		stages = append(stages, st)
		started++
		if w.Kind == kindIngest {
			ingests++
		}
	}
	s.checkSpace(stages)
	s.keeper.Configure(c.retention())
	s.index.configure(c)
	s.lookForStrays(c)
	s.api.configure(c.HTTP)
	over, n := c.staggerOver(ingests), 0
	s.secrets.Use(c.private.values)
	s.mu.Lock()
	s.config, s.stages = c, stages
	s.mu.Unlock()
	for _, st := range stages {
		if st.ended != nil {
			continue
		}
		if st.Kind == kindIngest {
			if ingests > 1 {
				st.delay = over * time.Duration(n) / time.Duration(ingests-1)
			}
			n++
		}
		st.start()
	}
	return started, len(stop), kept
}

// checkSpace says at once when /dev/shm is too small for the rings of all streams that are started: each of them finds out only when
// those before it have taken what there is.
func (s *Site) checkSpace(stages []*stage) {
	var asked int64
	streams := 0
	for _, st := range stages {
		if st.Kind == kindIngest && st.ended == nil {
			asked += st.Stream.shmBytes()
			streams++
		}
	}
	if free, total, err := shm.Free(); err == nil && free < asked {
		s.log.Error(fmt.Sprintf("/dev/shm is too small for the rings of all %d streams; those that find no room are tried again", streams),
			"error", &shm.SpaceError{Path: shm.Dir + "/cuframes-*", Asked: asked, Free: free, Total: total})
	}
}

// stopAll stops stages in the order of stopTurn, and returns those that did not stop.
func (s *Site) stopAll(stages []*stage) (left []*stage) {
	stopped := make([]bool, len(stages))
	stop := func(turn stopTurn) <-chan struct{} {
		var wg sync.WaitGroup
		for i, st := range stages {
			if st.stopTurn() == turn {
				wg.Go(func() { stopped[i] = st.stop() })
			}
		}
		done := make(chan struct{})
		go func() {
			wg.Wait()
			close(done)
		}()
		return done
	}
	events := stop(stopEvents)
	t := time.NewTimer(eventStart)
	defer t.Stop()
	select {
	case <-events:
	case <-t.C: // they have what they need of the rings, and wait for the disk
	}
	<-stop(stopIngests)
	<-stop(stopReaders)
	<-events
	for i, st := range stages {
		if !stopped[i] {
			left = append(left, st)
		}
	}
	return left
}

// finished is told of each finished file.
func (s *Site) finished(f pipeline.Recorded) {
	s.log.Debug("file finished", "key", f.Key, "path", f.Path, "packets", f.Packets, "lost", f.Lost)
	for _, tell := range s.watchers {
		tell(f)
	}
}

// fileWatch notices that a file was written or replaced.
type fileWatch struct {
	path       string
	seen, last fileMark
}

type fileMark struct {
	modified time.Time
	size     int64
	info     os.FileInfo
}

func (m fileMark) equal(o fileMark) bool {
	return m.modified.Equal(o.modified) && m.size == o.size && (m.info == nil) == (o.info == nil) && (m.info == nil || os.SameFile(m.info, o.info))
}

func markOf(path string) fileMark {
	i, err := os.Stat(path)
	if err != nil {
		return fileMark{}
	}
	return fileMark{i.ModTime(), i.Size(), i}
}

func newFileWatch(path string) *fileWatch {
	m := markOf(path)
	return &fileWatch{path: path, seen: m, last: m}
}

// accept takes the file as it is now as seen.
func (w *fileWatch) accept() {
	w.last = markOf(w.path)
	w.seen = w.last
}

// changed says once that the file is another one and has stood still since the call before. A file that is away is waited for.
func (w *fileWatch) changed() bool {
	m := markOf(w.path)
	still := m.equal(w.last)
	w.last = m
	if m.info == nil || !still || m.equal(w.seen) {
		return false
	}
	w.seen = m
	return true
}
