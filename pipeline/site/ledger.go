package site

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/mux"
)

const (
	// A ledger remembers this many of the oldest files: a month of minutes is 43 200 files a camera, and their total is a number.
	ledgerFiles = 2000
	// A file that was written to so lately may be open still: it is asked.
	maybeOpen = 10 * time.Minute
	// A folder out of which files were removed is removed itself when it has been empty for so long.
	emptyFor = time.Hour
)

func older(a, b keptFile) int { return a.at.Compare(b.at) }

// keptFile is a finished file. at is when it was last written.
type keptFile struct {
	path string
	size int64
	at   time.Time
}

// ledger is what is known about one camera's files. The keeper's mutex guards what changes.
type ledger struct {
	kind, key, out string
	files          mux.Files
	others         atomic.Pointer[[]mux.Files] // of longer keys, and of the events of this one: a file that matches one of them is theirs
	keep           Retention

	disk          *disk       // nil = not known yet
	free          int64       // on it; -1 = unknown
	looking, busy atomic.Bool // what was asked of the disk for this ledger has not been answered yet

	scanned  time.Time
	failedAt time.Time // when a scan failed; zero = the last one did not
	total    int64     // bytes of all finished files
	count    int
	oldest   []keptFile // in order of time
	complete bool       // oldest and aside hold all files
	scanning bool
	late     []keptFile      // finished while scanning
	emptied  map[string]bool // of the goroutine that works on the disk

	aside    map[string]keptFile // by path: those that could not be removed
	tryAgain time.Time           // when aside is the oldest again
}

// base is a folder that exists: that of the files, or one above it.
func (l *ledger) base() string {
	dir := l.files.Dir
	for {
		if i, err := os.Stat(dir); err == nil && i.IsDir() {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return dir
		}
		dir = up
	}
}

func (l *ledger) mine(path string) bool {
	others := l.others.Load()
	return l.files.Match(path) && (others == nil || !slices.ContainsFunc(*others, func(f mux.Files) bool { return f.Match(path) }))
}

// add counts a file that was finished just now.
func (l *ledger) add(e keptFile) {
	if l.scanning {
		l.late = append(l.late, e)
		return
	}
	if l.scanned.IsZero() {
		return // the first scan finds it
	}
	l.total += e.size
	l.count++
	switch {
	case !l.complete:
	case len(l.oldest) < ledgerFiles:
		l.oldest = append(l.oldest, e)
	default:
		l.complete = false
	}
}

// scan reads the folders of a ledger anew.
func (k *keeper) scan(ctx context.Context, l *ledger) {
	k.mu.Lock()
	l.scanning, l.late = true, nil
	aside := maps.Clone(l.aside)
	k.mu.Unlock()
	found, recent, count, total, complete, err := l.walk(ctx, aside)
	k.mu.Lock()
	defer k.mu.Unlock()
	l.scanning = false
	if ctx.Err() != nil {
		return
	}
	now := time.Now()
	if err != nil { // what was known stays, and what was finished meanwhile is added to it
		for _, e := range l.late {
			l.add(e)
		}
		l.late = nil
		if l.failedAt = now; now.Sub(k.unreadTold) >= tellPace || now.Before(k.unreadTold) {
			k.unreadTold = now
			k.log.Warn("recordings cannot be counted, and none of them is removed that is not known already; it is tried again", "folder", l.files.Dir, "error", err)
		}
		return
	}
	l.failedAt = time.Time{}
	l.scanned, l.total, l.count = now, total, count
	l.complete = complete
	l.oldest = found
	for _, e := range l.late {
		if !recent[e.path] {
			l.add(e)
		}
	}
	l.late = nil
}

// walk finds the oldest finished files but those that are set aside, and counts all. recent are the names of those that were finished
// lately; complete says that found is all there is. With an error nothing is known.
func (l *ledger) walk(ctx context.Context, aside map[string]keptFile) (
	found []keptFile, recent map[string]bool, count int, total int64, complete bool, err error,
) {
	recent = map[string]bool{}
	root, err := os.OpenRoot(l.files.Dir) // never leaves the folder, whatever links stand in it
	if errors.Is(err, fs.ErrNotExist) {
		return nil, recent, 0, 0, true, nil // nothing was recorded yet
	}
	if err != nil {
		return nil, nil, 0, 0, false, err
	}
	defer root.Close()
	now, skipped := time.Now(), 0
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		path := filepath.Join(l.files.Dir, name)
		if err != nil {
			return unlessForeign(name, err)
		}
		if d.IsDir() {
			l.tidy(root, name, d, now)
			return nil
		}
		if !d.Type().IsRegular() || !l.mine(path) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return unlessForeign(name, err)
		}
		e := keptFile{path: path, size: info.Size(), at: info.ModTime()}
		if now.Sub(e.at) < maybeOpen {
			if open, err := isOpen(root, name); err != nil || open {
				return unlessForeign(name, err)
			}
			recent[path] = true
		}
		count++
		total += e.size
		if _, ok := aside[path]; ok {
			skipped++
			return nil
		}
		found = append(found, e)
		if len(found) >= 2*ledgerFiles {
			slices.SortFunc(found, older)
			found = found[:ledgerFiles]
		}
		return nil
	})
	if err != nil {
		return nil, nil, 0, 0, false, err
	}
	slices.SortFunc(found, older)
	return found[:min(len(found), ledgerFiles)], recent, count, total, count-skipped <= ledgerFiles, nil
}

// unlessForeign passes over what went away meanwhile, and what lies below the folder and is not ours to read, such as lost+found. Any other error, of
// the disk or for want of descriptors, hides files that are ours.
func unlessForeign(name string, err error) error {
	foreign := errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO)
	if errors.Is(err, fs.ErrNotExist) || foreign && name != "." {
		return nil
	}
	return err
}

// tidy removes a folder that has been empty for long and was not made by others.
func (l *ledger) tidy(root *os.Root, name string, d fs.DirEntry, now time.Time) {
	if name == "." || !l.emptied[name] {
		return
	}
	if i, err := d.Info(); err == nil && now.Sub(i.ModTime()) > emptyFor {
		if root.Remove(name) == nil { // fails when something is in it
			delete(l.emptied, name)
		}
	}
}

// isOpen says whether somebody holds the lock that recorders hold while they write.
func isOpen(root *os.Root, name string) (bool, error) {
	f, err := mux.OpenIn(root, name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	return mux.InUse(f), nil
}

// remove removes a file unless it is open, is another one by now, or is none of the recorder's.
func (l *ledger) remove(e keptFile, unlink func(root *os.Root, name string) error) (gone bool, err error) {
	if !l.mine(e.path) {
		return false, nil
	}
	root, err := os.OpenRoot(l.files.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer root.Close()
	name, err := filepath.Rel(l.files.Dir, e.path)
	if err != nil || strings.HasPrefix(name, "..") {
		return false, err
	}
	f, err := mux.OpenIn(root, name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return true, nil // somebody else was faster
	case err != nil:
		return false, err
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil || !i.Mode().IsRegular() || mux.InUse(f) {
		return false, err
	}
	if err := unlink(root, name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if dir := filepath.Dir(name); dir != "." && len(l.emptied) < ledgerFiles {
		if l.emptied == nil {
			l.emptied = map[string]bool{}
		}
		l.emptied[dir] = true
	}
	return true, nil
}
