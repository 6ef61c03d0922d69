package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// CreateOptions choose who may use a new segment. The zero value is for the owner alone.
type CreateOptions struct {
	Mode os.FileMode // 0 = 0600, or 0660 with a GID
	GID  int         // group of the file; 0 leaves the process's own

	// Foreign is asked about an unlocked file that this package did not make: old is a copy of its first bytes (up to 8 KiB). It
	// tells whether its publisher, which holds no lock, is alive. nil counts it as dead.
	Foreign func(old []byte) (alive bool)
}

const (
	// lockedMark marks a file whose owner holds the lock for its life, so that an unlocked one is known to be orphaned without a
	// look at process ids, which lie across PID namespaces and are reused. The sticky bit has no other meaning on a Linux file.
	lockedMark = unix.S_ISVTX

	// An exclusive lock may be the momentary one of another creator: try this often, this long apart, before the owner counts as alive.
	lockTries, lockPause = 5, 2 * time.Millisecond

	// A shared lock is the momentary one of Locked, whose thread may have lost its processor meanwhile: the owner is dead.
	sharedPatience = 2 * time.Second

	// createTries bounds the races one creator may lose to others that then go away.
	createTries = 64

	foreignBytes = 8 << 10
)

// CreateLocked makes the segment name, maps it zeroed, and holds an exclusive flock on it until Close or the end of the process.
// It returns ErrExists when a living process holds that name. An orphan is replaced by a new inode in one step: of any number of
// racing creators exactly one succeeds, and readers that still map the orphan keep it whole. All blocks are reserved before the
// mapping, *SpaceError says that there are too few. It blocks for 2 s at most, where others look whether an orphan's owner lives.
func CreateLocked(name string, size int, o CreateOptions) (*Segment, error) {
	name, err := BaseName(name)
	if err != nil {
		return nil, err
	}
	if size <= 0 || int64(size) > maxSize {
		return nil, fmt.Errorf("create %s: size %d is out of range", name, size)
	}
	sweep(name)
	for range createTries {
		s, err := createOnce(name, o)
		if errors.Is(err, errLostRace) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("create %s: %w", name, err)
		}
		if err := s.reserve(size); err != nil {
			s.Close()
			return nil, err
		}
		return s, nil
	}
	return nil, fmt.Errorf("create %s: %w", name, ErrExists)
}

// errLostRace: another creator moved between two steps; look again.
var errLostRace = errors.New("lost a race")

// createOnce puts an empty, locked file under the name.
func createOnce(name string, o CreateOptions) (_ *Segment, err error) {
	target := Dir + "/" + name
	temp := target + "." + rand.Text()[:10] + tempSuffix
	fd, err := unix.Open(temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), target)
	defer func() {
		if err != nil {
			_ = unix.Unlink(temp)
			f.Close()
		}
	}()
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errLostRace // swept away between the two calls
	}
	if err := setAccess(fd, o); err != nil {
		return nil, err
	}

	// The name is free: take it without replacing anybody who was faster.
	switch err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, target, unix.RENAME_NOREPLACE); {
	case err == nil:
		return &Segment{name: name, f: f, owner: true}, nil
	case errors.Is(err, unix.ENOENT):
		return nil, errLostRace
	case !errors.Is(err, unix.EEXIST):
		return nil, err
	}

	// Somebody has it. Whoever replaces the file must hold the lock of the inode that the name points to.
	old, err := takeOver(target, o.Foreign)
	if err != nil {
		return nil, err
	}
	defer old.Close()
	if err := unix.Rename(temp, target); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil, errLostRace
		}
		return nil, err
	}
	return &Segment{name: name, f: f, owner: true}, nil
}

// takeOver opens the file at target and locks it when its owner is dead; ErrExists when it lives.
func takeOver(target string, foreign func(head []byte) bool) (_ *os.File, err error) {
	old, st, err := openPlain(target, unix.O_RDWR)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errLostRace
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			old.Close()
		}
	}()
	if err := lock(old); err != nil {
		return nil, err
	}
	if same, err := names(old, target); err != nil {
		return nil, err
	} else if !same {
		return nil, errLostRace
	}
	if st.Mode&lockedMark == 0 && foreign != nil {
		head := make([]byte, foreignBytes)
		n, err := old.ReadAt(head, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if foreign(head[:n]) {
			return nil, ErrExists
		}
	}
	return old, nil
}

// RemoveDead unlinks the segment name when its owner is dead and returns its size; ErrExists when it lives. foreign has the
// meaning of CreateOptions.Foreign; held is called before, while the segment's lock is held: nobody else is its owner then. Readers that
// still map it keep their mapping. It blocks as CreateLocked does.
func RemoveDead(name string, foreign func(head []byte) bool, held func()) (size int64, err error) {
	if name, err = BaseName(name); err != nil {
		return 0, err
	}
	path := Dir + "/" + name
	f, err := takeOver(path, foreign)
	if errors.Is(err, errLostRace) {
		return 0, nil // somebody else has removed or replaced it
	}
	if err != nil {
		return 0, fmt.Errorf("remove %s: %w", name, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("remove %s: %w", name, err)
	}
	held()
	if err := unix.Unlink(path); err != nil {
		return 0, fmt.Errorf("remove %s: %w", name, err)
	}
	return st.Size(), nil
}

// lock takes the exclusive lock of an orphan, or returns ErrExists.
func lock(f *os.File) error {
	take := func(how int) error {
		return retry(func() error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) })
	}
	patience := time.Now().Add(sharedPatience)
	for exclusive := 0; ; time.Sleep(lockPause) {
		err := take(unix.LOCK_EX)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if take(unix.LOCK_SH) == nil { // nobody owns it
			_ = take(unix.LOCK_UN)
		} else if exclusive++; exclusive == lockTries {
			return ErrExists
		}
		if time.Now().After(patience) {
			return ErrExists
		}
	}
}

func setAccess(fd int, o CreateOptions) error {
	mode := uint32(o.Mode.Perm())
	if mode == 0 {
		mode = 0o600
		if o.GID != 0 {
			mode = 0o660
		}
	}
	if o.GID != 0 {
		if err := unix.Fchown(fd, -1, o.GID); err != nil {
			return fmt.Errorf("give it to group %d: %w", o.GID, err)
		}
	}
	if err := unix.Fchmod(fd, mode|lockedMark); err != nil { // not the mode of open: the umask would cut it
		return fmt.Errorf("set mode %04o: %w", mode, err)
	}
	return nil
}

// reserve gives the file its blocks and maps it. The old file of the name is gone by now, so its space counts as free.
func (s *Segment) reserve(size int) error {
	fd := int(s.f.Fd())
	err := retry(func() error { return unix.Fallocate(fd, 0, 0, int64(size)) })
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) {
		e := &SpaceError{Path: s.path(), Asked: int64(size)}
		var st unix.Statfs_t
		if unix.Fstatfs(fd, &st) == nil {
			e.Free, e.Total = int64(st.Bavail)*st.Bsize, int64(st.Blocks)*st.Bsize
		}
		return e
	}
	if err != nil {
		return fmt.Errorf("create %s: reserve %d bytes: %w", s.name, size, err)
	}
	// Populated: the blocks are there already, and no packet should pay for a page fault.
	s.b, err = mmap(s.f, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("create %s: %w", s.name, err)
	}
	return nil
}

// Free returns how many bytes of the shared memory's file system are free, and how many it has.
func Free() (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(Dir, &st); err != nil {
		return 0, 0, fmt.Errorf("statfs %s: %w", Dir, err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// tempSuffix ends the name of a file that has not taken its place yet. '.' is in no key, so it collides with no segment.
const tempSuffix = ".new"

// sweep removes the temporaries of creators that were killed between two steps. A living one holds the lock of its file; one that
// loses its file before it has locked it starts again.
func sweep(name string) {
	left, _ := filepath.Glob(Dir + "/" + name + ".*" + tempSuffix)
	for _, path := range left {
		f, _, err := openPlain(path, unix.O_RDWR)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = unix.Unlink(path)
		}
		f.Close()
	}
}
