package framering

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Orphan is a ring in /dev/shm whose publisher was killed. The next publisher of its key replaces it; until then it takes space.
type Orphan struct {
	Name  string // below /dev/shm
	Bytes int64
	Made  time.Time // when its file was written last: when its publisher began, or made it larger
	PID   int       // of its publisher, in its own namespace; 0 = it does not say
	UID   int       // whose it is
}

// Removable says whether this user may remove it.
func (o Orphan) Removable() bool {
	uid := os.Geteuid()
	return uid == 0 || uid == o.UID
}

// Key is the key that the ring is of; in quotes where the file's name holds none.
func (o Orphan) Key() string {
	name := strings.TrimPrefix(o.Name, shm.Prefix)
	if key, ok := strings.CutSuffix(name, "-packets"); ok && o.Of(key) {
		name = key
	}
	if CheckKey(name) != nil {
		return fmt.Sprintf("%q", name)
	}
	return name
}

// Of says whether the ring is one of a key.
func (o Orphan) Of(key string) bool { return o.Name == ShmName(key) || o.Name == PacketShmName(key) }

// Orphans returns the rings whose publisher is dead. Those that this user may not read are left out.
func Orphans() ([]Orphan, error) {
	entries, err := os.ReadDir(shm.Dir) // sorted
	if err != nil {
		return nil, fmt.Errorf("list rings: %w", err)
	}
	var list []Orphan
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), shm.Prefix) || !e.Type().IsRegular() {
			continue
		}
		if o, dead := orphaned(e.Name()); dead {
			list = append(list, o)
		}
	}
	return list, nil
}

func orphaned(name string) (o Orphan, dead bool) {
	seg, err := shm.Open(name, shm.OpenOptions{ReadOnly: true, MinSize: headerSize})
	if err != nil {
		return o, false
	}
	defer seg.Close()
	var head [headerSize]byte
	if shm.Guard(func() { copy(head[:], seg.Bytes()) }) != nil || shm.Locked(seg) || foreignAlive(name, head[:]) {
		return o, false
	}
	st, err := seg.File().Stat()
	if err != nil {
		return o, false
	}
	o = Orphan{Name: name, Bytes: st.Size(), Made: st.ModTime(), PID: publisherPID(head[:])}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		o.UID = int(sys.Uid)
	}
	return o, true
}

// RemoveOrphan removes a ring from /dev/shm when its publisher is dead, and the sockets that it has left in runtimeDir, and returns the
// ring's size. One that has come to life since is left alone: 0 and no error.
func RemoveOrphan(runtimeDir, name string) (bytes int64, err error) {
	bytes, err = shm.RemoveDead(name, func(head []byte) bool { return foreignAlive(name, head) }, func() {
		if key := strings.TrimPrefix(name, shm.Prefix); CheckKey(key) == nil {
			removeDeadSocket(SocketPath(runtimeDir, key))
			removeDeadSocket(SnapshotPath(runtimeDir, key))
		}
	})
	if errors.Is(err, shm.ErrExists) {
		return 0, nil
	}
	return bytes, err
}
