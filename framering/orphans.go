package framering

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Orphan is a ring in /dev/shm whose publisher was killed. The next publisher of its key replaces it; until then it takes space.
type Orphan struct {
	Name  string // below /dev/shm
	Bytes int64
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
		if size, dead := orphaned(e.Name()); dead {
			list = append(list, Orphan{Name: e.Name(), Bytes: size})
		}
	}
	return list, nil
}

func orphaned(name string) (size int64, dead bool) {
	seg, err := shm.Open(name, shm.OpenOptions{ReadOnly: true, MinSize: headerSize})
	if err != nil {
		return 0, false
	}
	defer seg.Close()
	var head [headerSize]byte
	if shm.Guard(func() { copy(head[:], seg.Bytes()) }) != nil {
		return 0, false
	}
	return int64(len(seg.Bytes())), !shm.Locked(seg) && !foreignAlive(name, head[:])
}

// RemoveOrphan removes a ring from /dev/shm when its publisher is dead, and returns its size. One that has come to life since is
// left alone: 0 and no error.
func RemoveOrphan(name string) (bytes int64, err error) {
	bytes, err = shm.RemoveDead(name, func(head []byte) bool { return foreignAlive(name, head) })
	if errors.Is(err, shm.ErrExists) {
		return 0, nil
	}
	return bytes, err
}
