package recordings

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// plainFile refuses what is no plain file: a pipe would be waited for, and a folder renamed.
func plainFile(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: not a plain file", ErrForeign)
	}
	return err
}

// headSize is that of the head of a database.
const headSize = 100

// foreign says whether a file that SQLite cannot read is somebody else's, by its head: nil = it was an index, or nothing. Where this process has it open
// nobody else's is: it was looked at then, and closing a file gives up the locks that SQLite holds on it.
func foreign(path string) error {
	opened.mu.Lock() // nobody opens it meanwhile
	defer opened.mu.Unlock()
	if opened.n[path] > 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	var head [headSize]byte
	n, err := io.ReadFull(f, head[:])
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	const magic, id = "SQLite format 3\x00", 68
	named := filepath.Ext(path) == filepath.Ext(IndexName)
	switch {
	case n == len(head) && string(head[:len(magic)]) == magic && binary.BigEndian.Uint32(head[id:]) == application:
		return nil
	case named && n < len(head) && strings.HasPrefix(magic, string(head[:min(n, len(magic))])): // cut off
		return nil
	case named && head == [headSize]byte{}: // the power failed before it was written
		return nil
	}
	return ErrForeign
}

// opened are the indexes that this process has open, by path.
var opened = openIndexes{n: map[string]int{}, doubts: map[string]bool{}}

type openIndexes struct {
	mu     sync.Mutex
	n      map[string]int
	doubts map[string]bool // a reader has found it damaged
}

func (o *openIndexes) add(path string) (free func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.n[path]++
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.n[path]--; o.n[path] == 0 {
			delete(o.n, path)
			delete(o.doubts, path)
		}
	}
}

// doubt lets the writer of an index, where this process is one, look at what a reader has found.
func (o *openIndexes) doubt(path string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n[path] > 0 {
		o.doubts[path] = true
	}
}

// doubted says whether there is a doubt, which is gone then.
func (o *openIndexes) doubted(path string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer delete(o.doubts, path)
	return o.doubts[path]
}

// sound says whether who opens an index now can read it. What its writer remembers of it may be right when its files are no longer.
func sound(ctx context.Context, path string) error {
	x, err := openToRead(path, false)
	if err != nil {
		return err
	}
	defer x.Close()
	if _, err = x.check(ctx); err == nil {
		err = x.quickCheck(ctx)
	}
	return x.failed("check", err)
}

// moveAside renames a damaged database and what belongs to it, with a word to log. One of somebody else stays.
func moveAside(path string, because error, log *slog.Logger) error {
	err := plainFile(path)
	if err == nil {
		err = foreign(path)
	}
	if err != nil {
		return fmt.Errorf("index %s: %w", path, err)
	}
	const stamp = "20060102-150405.000"
	aside := path + asideMark + time.Now().UTC().Format(stamp)
	err = os.Rename(path, aside)
	for _, suffix := range []string{"-wal", "-shm"} {
		if e := os.Rename(path+suffix, aside+suffix); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = cmp.Or(err, e)
		}
	}
	if err != nil {
		return fmt.Errorf("index %s: %w; it cannot be moved aside: %w", path, because, err)
	}
	log.Warn("the index of recordings is damaged or old: it was moved aside, and is made anew from the files", "index", path, "moved_to", aside, "error", because)
	leaveNewest(path, len(stamp))
	return nil
}

// asideMark stands between the name of an index and the time at which it was moved aside.
const asideMark = ".damaged-"

// mostAside is how many damaged indexes stay: a disk that damages them again and again is not filled with them.
const mostAside = 5

// leaveNewest removes the oldest of the indexes that were moved aside; stamp is the length of their times.
func leaveNewest(path string, stamp int) {
	dir, prefix := filepath.Dir(path), filepath.Base(path)+asideMark
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		return
	}
	aside := slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		return len(e.Name()) != len(prefix)+stamp || !strings.HasPrefix(e.Name(), prefix)
	})
	for _, e := range aside[:max(len(aside)-mostAside, 0)] {
		for _, suffix := range []string{"", "-wal", "-shm"} {
			_ = os.Remove(filepath.Join(dir, e.Name()+suffix))
		}
	}
}
