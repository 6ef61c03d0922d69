package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

const (
	// maxLeft bounds the file that says what event is under way: two reasons of 500 bytes, each of which JSON may write as six, and a path.
	maxLeft = 16 << 10
	// notePace is how often a note is forced to the disk of an event that goes on in the same file: triggers may come many times a second.
	notePace = 5 * time.Second
)

var (
	errNoteHeld = errors.New("another recorder has the event")
	errNotOurs  = errors.New("others than this user may write it")
)

// leftEvent is what a recorder on events says of the one under way, for the recorder that is started after it was killed, stopped or replaced.
type leftEvent struct {
	trigger.Saved
	Path string    `json:"path"`          // of the event's newest file, below the folder; "" = this recorder has none yet
	From time.Time `json:"from,omitzero"` // where that one begins, or will: what lies before is in others
}

// eventNote is the file in the recordings' folder that has it, which is gone when the event is over. Who records the event holds its lock,
// which ends with the process.
type eventNote struct {
	root   *os.Root
	name   string
	f      *os.File
	link   string // in the runtime folder: it leads here, whatever pattern the next recorder has
	size   int    // of what it holds
	synced time.Time
	dirty  bool // not all of it is on the disk
}

// openNote opens a note, and makes it where there is none and make is set. One that somebody else may have written is errNotOurs.
func openNote(dir, name string, make bool) (*eventNote, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	flags := os.O_RDWR | syscall.O_NOFOLLOW | syscall.O_NONBLOCK
	if make {
		flags |= os.O_CREATE
	}
	f, err := root.OpenFile(name, flags, 0o600)
	n := &eventNote{root: root, name: name, f: f}
	var info os.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	if err == nil {
		n.size = int(min(info.Size(), maxLeft+1))
		if sys, ok := info.Sys().(*syscall.Stat_t); !ok || !info.Mode().IsRegular() || sys.Uid != uint32(os.Geteuid()) || info.Mode().Perm()&0o022 != 0 {
			err = errNotOurs
		}
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// hold takes the lock of a note, without waiting: errNoteHeld, or fs.ErrNotExist for one that was removed meanwhile. On a file system without locks
// anybody holds it.
func (n *eventNote) hold() error {
	if err := shm.LockFile(n.f); errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		return errNoteHeld
	}
	info, err := n.f.Stat()
	if err != nil {
		return err
	}
	if named, err := n.root.Lstat(n.name); err != nil || !os.SameFile(info, named) {
		return fs.ErrNotExist
	}
	return nil
}

// holdNote opens a note and holds it.
func holdNote(dir, name string, make bool) (*eventNote, error) {
	for {
		n, err := openNote(dir, name, make)
		if err != nil {
			return nil, err
		}
		if err = n.hold(); err == nil {
			return n, nil
		}
		n.close()
		if !make || !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
}

// readNote reads a note that another recorder may hold.
func readNote(dir, name string) (left leftEvent, err error) {
	n, err := openNote(dir, name, false)
	if err != nil {
		return left, err
	}
	defer n.close()
	return n.read()
}

// read returns what the note says. An empty one is io.EOF.
func (n *eventNote) read() (left leftEvent, err error) {
	b, err := io.ReadAll(io.NewSectionReader(n.f, 0, maxLeft+1))
	switch {
	case err != nil:
	case len(b) > maxLeft:
		err = fmt.Errorf("it has more than %d bytes", maxLeft)
	case len(b) == 0:
		err = io.EOF
	default:
		err = json.Unmarshal(b, &left)
	}
	return left, err
}

// write replaces what the note says, in one write: what was longer is filled up with spaces. It is on the disk when fresh is set, else in a while.
func (n *eventNote) write(left leftEvent, fresh bool) error {
	b, err := json.Marshal(left)
	if err != nil {
		return err
	}
	for len(b) < n.size {
		b = append(b, ' ')
	}
	if _, err := n.f.WriteAt(b, 0); err != nil {
		return err
	}
	first := n.synced.IsZero()
	n.size, n.dirty = len(b), true
	if !fresh {
		return n.sync()
	}
	n.synced = time.Time{}
	err = n.sync()
	if err == nil && first {
		if dir, derr := n.root.Open("."); derr == nil {
			err = dir.Sync()
			dir.Close()
		}
	}
	return err
}

// clear makes the note say nothing.
func (n *eventNote) clear() {
	if n.f.Truncate(0) == nil {
		n.size = 0
	}
}

// sync forces what was written to the disk, at its pace.
func (n *eventNote) sync() error {
	if n == nil || !n.dirty || time.Since(n.synced) < notePace {
		return nil
	}
	n.dirty, n.synced = false, time.Now()
	return n.f.Sync()
}

// lead makes a link in the runtime folder lead to the note. It is a help alone: without it a recorder in another folder does not find the note.
func (n *eventNote) lead(link string) {
	path, err := filepath.Abs(filepath.Join(n.root.Name(), n.name))
	if err != nil {
		return
	}
	if to, err := os.Readlink(link); err != nil || to != path {
		_ = os.Remove(link)
		_ = os.Symlink(path, link)
	}
	n.link = link
}

// remove removes the note, and gives it up.
func (n *eventNote) remove() error {
	err := n.root.Remove(n.name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if n.link != "" {
		_ = os.Remove(n.link)
	}
	n.close()
	return err
}

// close gives the note up, and with it the event: another recorder may take it. nil does nothing.
func (n *eventNote) close() {
	if n == nil {
		return
	}
	if n.f != nil {
		n.f.Close()
	}
	n.root.Close()
}

// notesIn returns the names of a key's notes in a folder.
func notesIn(dir, key string) (names []string) {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	for {
		entries, err := d.ReadDir(256)
		for _, e := range entries {
			if isNote(e.Name(), key) {
				names = append(names, e.Name())
			}
		}
		if err != nil {
			slices.Sort(names)
			return names
		}
	}
}

// isNote says whether a name is that of a note of a key; see leftName.
func isNote(name, key string) bool {
	ok, err := filepath.Match("."+key+".????????.event", name)
	return ok && err == nil
}
