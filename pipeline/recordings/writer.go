package recordings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/mux"
)

const (
	// maxQueue is how many reports wait for the index: 200 cameras that begin and end a file in the same moment, five times over.
	maxQueue = 2048
	// maxBatch is how many changes are written at once.
	maxBatch = 256
	// lookPace is how often it is looked whether the index is still there.
	lookPace = 2 * time.Second
	// reconcilePace is how often the folders are compared with the index: files that others have added or removed are seen then.
	reconcilePace = time.Hour
	// unreadPace is when they are compared again where some could not be read.
	unreadPace = time.Minute
	// The pause after a failure.
	minPause, maxPause = time.Second, time.Minute
)

// errGone says that the index was removed or replaced while it was open.
var errGone = errors.New("it was removed or replaced")

// WriterOptions describe a Writer. Path must be set.
type WriterOptions struct {
	Path   string // of the index
	Places []Place
	Logger *slog.Logger // nil = silent
}

// Writer keeps an index: it takes reports of recorders and compares the index with the files. Reports never wait: when the index is slow or
// broken they are dropped, and made good by reading the folders as soon as it can be written again.
type Writer struct {
	o       WriterOptions
	log     *slog.Logger
	queue   chan change
	missed  atomic.Bool // a report was dropped: the files know
	dropped atomic.Uint64
	rescan  chan struct{}

	mu     sync.Mutex
	places []Place

	open map[string]File // that were begun and not finished; of the goroutine that writes

	ready chan struct{} // closed when the index was compared with the files for the first time
	once  sync.Once
	delay func() // tests: a disk that hangs
}

// NewWriter returns a Writer; Run does the work.
func NewWriter(o WriterOptions) *Writer {
	w := &Writer{o: o, log: o.Logger, queue: make(chan change, maxQueue), rescan: make(chan struct{}, 1), places: o.Places, ready: make(chan struct{})}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	return w
}

// Started reports a file that was opened. It never blocks.
func (w *Writer) Started(key, path string, start time.Time, cause string) {
	if cause == "" {
		cause = mux.CauseContinuous
	}
	w.report(change{File: File{Key: key, Path: path, Start: start, End: start, Packets: Unknown, Keyframes: Unknown, Lost: 0, Cause: cause, Open: true, Modified: time.Now()}})
}

// Finished reports a file that is complete, or has ended early. It never blocks.
func (w *Writer) Finished(f File) { w.report(change{File: f}) }

// Removed reports a file that is gone. It never blocks.
func (w *Writer) Removed(path string) { w.report(change{File: File{Path: path}, gone: true}) }

func (w *Writer) report(c change) {
	if path, err := filepath.Abs(c.Path); err == nil {
		c.Path = path
	}
	select {
	case w.queue <- c:
	default:
		w.dropped.Add(1)
		w.missed.Store(true)
	}
}

// SetPlaces replaces the places; those that are new are read.
func (w *Writer) SetPlaces(places []Place) {
	w.mu.Lock()
	w.places = places
	w.mu.Unlock()
	select {
	case w.rescan <- struct{}{}:
	default:
	}
}

// Ready is closed when the index was compared with the files for the first time.
func (w *Writer) Ready() <-chan struct{} { return w.ready }

// Run keeps the index until ctx ends; what was reported until then is written. It waits out every failure.
func (w *Writer) Run(ctx context.Context) {
	for pause := minPause; ; {
		begun := time.Now()
		err := w.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errGone) && time.Since(begun) > minPause {
			w.log.Warn("the index of recordings is made anew from the files", "index", w.o.Path, "error", err)
			continue
		}
		if time.Since(begun) > maxPause {
			pause = minPause
		}
		w.log.Error("the index of recordings cannot be written; recording goes on, and the index catches up", "index", w.o.Path, "error", err, "again_in", pause)
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		pause = min(2*pause, maxPause)
	}
}

func (w *Writer) serve(ctx context.Context) error {
	if w.delay != nil {
		w.delay()
	}
	x, err := openWriter(ctx, w.o.Path, w.log)
	if err != nil {
		return err
	}
	defer x.Close()
	err = w.keep(ctx, x)
	if errors.Is(err, ErrDamaged) && ctx.Err() == nil {
		x.Close()
		return cmp.Or(moveAside(w.o.Path, err, w.log), errGone)
	}
	return err
}

// keep compares an index that is open with the files, and writes what is reported.
func (w *Writer) keep(ctx context.Context, x *Index) error {
	pause, err := w.reconcile(ctx, x)
	if err != nil {
		return err
	}
	w.once.Do(func() { close(w.ready) })
	var seen marks
	look, again := time.NewTicker(lookPace), time.NewTimer(pause)
	defer look.Stop()
	defer again.Stop()
	compare := func() error {
		pause, err := w.reconcile(ctx, x)
		again.Reset(pause)
		return err
	}
	for {
		if err := seen.look(w.o.Path); err != nil { // how far it has grown
			return err
		}
		select {
		case <-ctx.Done():
			for len(w.queue) > 0 {
				if err := w.write(x, <-w.queue); err != nil {
					w.log.Error("the index of recordings misses the newest files until the next start", "index", w.o.Path, "error", err)
					break
				}
			}
			return ctx.Err()
		case c := <-w.queue:
			if err := seen.look(w.o.Path); err != nil { // a log that was cut off grows again with what is written now
				return err
			}
			if err := w.write(x, c); err != nil {
				return err
			}
		case <-look.C:
			if err := seen.look(w.o.Path); err != nil {
				return err
			}
			if opened.doubted(w.o.Path) {
				if err := sound(ctx, w.o.Path); err != nil {
					return err
				}
			}
			if w.missed.Load() {
				if err := compare(); err != nil {
					return err
				}
			}
		case <-w.rescan:
			if err := compare(); err != nil {
				return err
			}
		case <-again.C:
			if err := sound(ctx, w.o.Path); err != nil {
				return err
			}
			if err := compare(); err != nil {
				return err
			}
		}
	}
}

// marks are the files of an index as they were last seen: the database, its log, and the memory that its readers share.
type marks [3]os.FileInfo

// look returns errGone when the database was removed or replaced, ErrDamaged when one of them was cut off, or what belongs to the database is another.
// SQLite does none of that while the index is open, and whoever else has it open then holds the old ones.
func (m *marks) look(path string) error {
	for i, suffix := range []string{"", "-wal", "-shm"} {
		now, err := os.Stat(path + suffix)
		switch {
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return err
		case i == 0 && (err != nil || m[i] != nil && !os.SameFile(m[i], now)):
			return errGone
		case m[i] != nil && (err != nil || !os.SameFile(m[i], now) || now.Size() < m[i].Size()):
			return fmt.Errorf("%w: %s was removed, replaced or cut off", ErrDamaged, path+suffix)
		case err == nil:
			m[i] = now
		}
	}
	return nil
}

// write writes a report and those that wait behind it. It takes no longer than another process may hold the index, and is not given up half-way:
// what it took from the queue is nowhere else.
func (w *Writer) write(x *Index, first change) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*busyTimeout)
	defer cancel()
	if w.delay != nil {
		w.delay()
	}
	batch := []change{stamped(first)}
	for len(batch) < maxBatch && len(w.queue) > 0 {
		batch = append(batch, stamped(<-w.queue))
	}
	err := x.apply(ctx, append(batch, w.cut(ctx, batch)...))
	if err != nil {
		w.missed.Store(true)
	}
	return err
}

// cut takes note of the files that are open, and reads those that nobody writes any more: a recorder that begins a file is followed by the last one's
// word, or the last one was killed.
func (w *Writer) cut(ctx context.Context, batch []change) (found []change) {
	if w.open == nil {
		w.open = map[string]File{}
	}
	begun := map[string]bool{}
	for _, c := range batch {
		if delete(w.open, c.Path); c.Open && !c.gone {
			w.open[c.Path], begun[c.Key] = c.File, true
		}
	}
	for path, f := range w.open {
		if !begun[f.Key] {
			continue
		}
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			delete(w.open, path)
			continue
		}
		f.Open = false
		if f.update(ctx); f.Open {
			continue
		}
		delete(w.open, path)
		found = append(found, change{File: f})
	}
	return found
}

// stamped adds what the file system says, by which a later comparison sees that nothing has changed.
func stamped(c change) change {
	if c.gone {
		return c
	}
	if info, err := os.Lstat(c.Path); err == nil {
		c.Modified, c.Bytes = info.ModTime(), info.Size()
	} else if errors.Is(err, fs.ErrNotExist) {
		c.gone = true
	}
	return c
}
