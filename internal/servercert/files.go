package servercert

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// lookInterval is how often the files are looked at, at most: handshakes may come by the thousand.
	lookInterval = time.Second
	// maxRenewed bounds a file that is read again. A chain of ten certificates has some 20 KiB.
	maxRenewed = 1 << 20
)

// Files is a certificate and its key in two files. It looks at them when a peer shakes hands and takes what is new in them: a renewed
// certificate needs no restart. What cannot be read, such as a certificate whose key is not written yet, leaves the old one in place.
type Files struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	looked  time.Time
	looking bool // somebody does; what follows is theirs

	stood [2]os.FileInfo // of the files that current is from
	told  string         // the error that was logged last
}

// OpenFiles reads the files. Later changes and errors are logged to log.
func OpenFiles(certFile, keyFile string, log *slog.Logger) (*Files, error) {
	f := &Files{cert: certFile, key: keyFile, log: log, looked: time.Now()}
	f.stood = f.stand()
	var err error
	if f.current, err = Load(certFile, keyFile); err != nil {
		return nil, err
	}
	if end := f.current.Leaf.NotAfter; time.Now().After(end) {
		log.Warn("the certificate has expired: peers will refuse it until it is renewed", "file", certFile, "expired", end)
	}
	return f, nil
}

// Certificate returns the newest certificate. Whoever asks when it is time to look waits for the disk, and nobody else: a disk that hangs holds up
// one handshake.
func (f *Files) Certificate() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.looking && time.Since(f.looked) >= lookInterval {
		f.looking = true
		f.mu.Unlock()
		c := f.look()
		f.mu.Lock()
		if c != nil {
			f.current = c
		}
		f.looking, f.looked = false, time.Now()
	}
	return f.current
}

// look reads the files anew when they are others than those that were read; nil = there is nothing new.
func (f *Files) look() *tls.Certificate {
	now := f.stand()
	if same(now[0], f.stood[0]) && same(now[1], f.stood[1]) {
		return nil
	}
	c, err := load(readRenewed, f.cert, f.key)
	if err != nil {
		if f.told != err.Error() {
			f.told = err.Error()
			f.log.Warn("the certificate's files have changed and cannot be read: the old one stays", "file", f.cert, "error", err)
		}
		return nil
	}
	f.stood, f.told = now, ""
	f.log.Info("the certificate was renewed", "file", f.cert, "fingerprint", Fingerprint(c), "expires", c.Leaf.NotAfter)
	return c
}

// readRenewed reads a file that somebody has put in the place of another: a pipe would be waited for.
func readRenewed(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: %w", name, errNoPlainFile)
	case info.Size() > maxRenewed:
		return nil, fmt.Errorf("%s has %d bytes: want %d at most", name, info.Size(), maxRenewed)
	}
	return io.ReadAll(io.LimitReader(f, maxRenewed))
}

var errNoPlainFile = errors.New("not a plain file")

// stand says which files there are, before they are read: what changes in between is noticed at the next look.
func (f *Files) stand() (now [2]os.FileInfo) {
	for i, name := range []string{f.cert, f.key} {
		now[i], _ = os.Stat(name) // one that is gone is told by Load
	}
	return now
}

func same(a, b os.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
