package site

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
)

const (
	// handOver is how long a run waits for the one before it to end, where a new one is started first.
	handOver = 10 * time.Second
	lockPace = 100 * time.Millisecond
)

// ErrRunning says that another process runs the same site file. A second run would record everything again, into the same folders.
var ErrRunning = errors.New("this site file is run already")

// lock keeps other runs of the same file out until release. It waits for one that is about to end. Where there can be no lock it says so, and
// the site runs all the same.
func (s *Site) lock(ctx context.Context) (release func(), err error) {
	path, err := s.lockPath()
	if err == nil {
		err = framering.CheckRuntimeDir(s.runtimeDir)
	}
	told := false
	for deadline := time.Now().Add(s.handOver); err == nil; {
		var f *os.File
		var holder int
		if f, holder, err = tryLock(path); f != nil {
			return func() {
				_ = os.Remove(path) // before the lock ends: nobody else's
				_ = f.Close()
			}, nil
		}
		if err != nil {
			break
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%w, by the process %d: stop that one first, or have it read the file again with SIGHUP", ErrRunning, holder)
		}
		if !told {
			told = true
			s.log.Warn("the site file is run already: waiting for that process to end", "pid", holder, "for", s.handOver)
		}
		select {
		case <-ctx.Done():
			return func() {}, nil
		case <-time.After(lockPace):
		}
	}
	s.log.Warn("whether another process runs this site file cannot be told", "error", err)
	return func() {}, nil
}

// lockPath names the lock after the file, however it was reached. No key begins with a dot.
func (s *Site) lockPath() (string, error) {
	file, err := filepath.Abs(s.o.File)
	if err == nil {
		file, err = filepath.EvalSymlinks(file)
	}
	sum := sha256.Sum256([]byte(file))
	return filepath.Join(s.runtimeDir, fmt.Sprintf(".site-%x.lock", sum[:8])), err
}

// tryLock returns the locked file, with this process's id in it; or nil and the id of who holds it, 0 when that is not said.
func tryLock(path string) (*os.File, int, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, 0, err
	}
	switch err = shm.LockFile(f); {
	case err == nil:
		err = f.Truncate(0)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EACCES):
		var b [20]byte
		n, _ := f.ReadAt(b[:], 0)
		pid, _ := strconv.Atoi(string(b[:n]))
		_ = f.Close()
		return nil, pid, nil
	}
	if err == nil {
		_, err = f.WriteString(strconv.Itoa(os.Getpid()))
	}
	var ours, there os.FileInfo
	if err == nil {
		ours, err = f.Stat()
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	if there, err = os.Lstat(path); err != nil || !os.SameFile(ours, there) { // its holder removed it meanwhile: once more
		_ = f.Close()
		return nil, 0, nil
	}
	return f, 0, nil
}
