package shm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Appear reports on C whenever a file appears under a path, made or renamed there. Reports coalesce.
type Appear struct {
	C    <-chan struct{}
	c    chan struct{}
	dir  string
	name string
	once sync.Once
}

// watches is one inotify instance for the whole process: a user has few of them (128 by default), a site has many readers.
var watches inotify

type inotify struct {
	sync.Mutex
	f    *os.File // nil while nobody watches
	dirs map[string]*watchedDir
	byWD map[int32]*watchedDir
}

type watchedDir struct {
	wd    int32
	names map[string]map[*Appear]struct{}
}

// WatchFor begins to watch for a file. Its folder must exist. It fails where inotify is exhausted: poll then, more slowly.
func WatchFor(path string) (*Appear, error) {
	dir, name := filepath.Split(filepath.Clean(path))
	a := &Appear{c: make(chan struct{}, 1), dir: filepath.Clean(dir), name: name}
	a.C = a.c
	w := &watches
	w.Lock()
	defer w.Unlock()
	if w.f == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return nil, fmt.Errorf("watch %s: inotify: %w", path, err)
		}
		w.f = os.NewFile(uintptr(fd), "inotify")
		w.dirs, w.byWD = map[string]*watchedDir{}, map[int32]*watchedDir{}
		go readWatches(w.f)
	}
	d := w.dirs[a.dir]
	if d == nil {
		wd, err := addWatch(w.f, a.dir)
		if err != nil {
			w.closeIfIdle()
			return nil, fmt.Errorf("watch %s: %w", path, err)
		}
		// Two spellings of one folder share a descriptor.
		if d = w.byWD[wd]; d == nil {
			d = &watchedDir{wd: wd, names: map[string]map[*Appear]struct{}{}}
			w.byWD[wd] = d
		}
		w.dirs[a.dir] = d
	}
	if d.names[name] == nil {
		d.names[name] = map[*Appear]struct{}{}
	}
	d.names[name][a] = struct{}{}
	return a, nil
}

func addWatch(f *os.File, dir string) (wd int32, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var werr error
	if err := raw.Control(func(fd uintptr) {
		n, werr = unix.InotifyAddWatch(int(fd), dir, unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_ONLYDIR)
	}); err != nil {
		return 0, err
	}
	return int32(n), werr
}

// Close ends the watch. It is idempotent.
func (a *Appear) Close() {
	a.once.Do(func() {
		w := &watches
		w.Lock()
		defer w.Unlock()
		d := w.dirs[a.dir]
		if d == nil {
			return // the folder went away, or the instance
		}
		delete(d.names[a.name], a)
		if len(d.names[a.name]) == 0 {
			delete(d.names, a.name)
		}
		if len(d.names) == 0 {
			w.forget(d)
			w.closeIfIdle()
		}
	})
}

func (w *inotify) forget(d *watchedDir) {
	raw, err := w.f.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(d.wd)) })
	}
	w.drop(d)
}

func (w *inotify) drop(d *watchedDir) {
	delete(w.byWD, d.wd)
	for dir, other := range w.dirs {
		if other == d {
			delete(w.dirs, dir)
		}
	}
}

// closeIfIdle closes the instance, which ends its reader.
func (w *inotify) closeIfIdle() {
	if len(w.dirs) == 0 && w.f != nil {
		w.f.Close()
		w.f = nil
	}
}

func readWatches(f *os.File) {
	buf := make([]byte, 16<<10) // an event has 16 bytes and a name of at most 256
	for {
		n, err := f.Read(buf)
		if err != nil {
			return // closed
		}
		watches.Lock()
		if watches.f == f {
			watches.dispatch(buf[:n])
		}
		watches.Unlock()
	}
}

// dispatch reads struct inotify_event: wd i32, mask u32, cookie u32, len u32, name.
func (w *inotify) dispatch(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		wd, mask, n := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		name, _, _ := bytes.Cut(b[:min(n, len(b))], []byte{0})
		b = b[min(n, len(b)):]
		d := w.byWD[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0: // anything may have appeared
			for _, d := range w.byWD {
				for _, as := range d.names {
					notifyAll(as)
				}
			}
		case d == nil:
		case mask&unix.IN_IGNORED != 0: // the folder is gone: its watchers must poll
			w.drop(d)
		default:
			notifyAll(d.names[string(name)])
		}
	}
}

func notifyAll(as map[*Appear]struct{}) {
	for a := range as {
		select {
		case a.c <- struct{}{}:
		default:
		}
	}
}
