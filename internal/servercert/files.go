package servercert

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"
)

// lookInterval is how often the files are looked at, at most: handshakes may come by the thousand.
const lookInterval = time.Second

// Files is a certificate and its key in two files. It looks at them when a peer shakes hands and takes what is new in them: a renewed
// certificate needs no restart. What cannot be read, such as a certificate whose key is not written yet, leaves the old one in place.
type Files struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	stood   [2]os.FileInfo // of the files that current is from
	looked  time.Time
	told    string // the error that was logged last
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

// Certificate returns the newest certificate.
func (f *Files) Certificate() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) >= lookInterval {
		f.look()
		f.looked = time.Now()
	}
	return f.current
}

// look reads the files anew when they are others than those that were read.
func (f *Files) look() {
	now := f.stand()
	if same(now[0], f.stood[0]) && same(now[1], f.stood[1]) {
		return
	}
	c, err := Load(f.cert, f.key)
	if err != nil {
		if f.told != err.Error() {
			f.told = err.Error()
			f.log.Warn("the certificate's files have changed and cannot be read: the old one stays", "file", f.cert, "error", err)
		}
		return
	}
	f.current, f.stood, f.told = c, now, ""
	f.log.Info("the certificate was renewed", "file", f.cert, "fingerprint", Fingerprint(c), "expires", c.Leaf.NotAfter)
}

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
