package framering

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Publication is what List and Inspect find out about a publisher without talking to it.
type Publication struct {
	Key         string
	SocketPath  string
	ShmName     string
	Alive       bool // its lock is held, or it is foreign and its process maps the SHM
	Header      Header
	Slots       []SlotInfo       // Header.RingSize of them
	Subscribers []SubscriberSlot // those in use
	Err         error            // the SHM cannot be read; Header and what follows is empty then
}

// List returns the publishers with a control socket in runtimeDir that are alive, and those of which this process cannot
// tell (Err is set), sorted by key. It opens their SHM for reading and never connects: no publisher or subscriber notices.
func List(runtimeDir string) ([]Publication, error) {
	keys, err := controlSockets(runtimeDir)
	if err != nil {
		return nil, err
	}
	var list []Publication
	for _, key := range keys {
		p, err := Inspect(runtimeDir, key)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if p.Err = err; p.Alive || err != nil {
			list = append(list, p)
		}
	}
	return list, nil
}

// controlSockets are the keys, sorted, that have a control socket in runtimeDir, whoever has made it.
func controlSockets(runtimeDir string) (keys []string, err error) {
	entries, err := os.ReadDir(RuntimeDir(runtimeDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list publishers: %w", err)
	}
	for _, e := range entries {
		key, isSocket := strings.CutSuffix(e.Name(), ".sock")
		if isSocket && CheckKey(key) == nil && e.Type()&os.ModeSocket != 0 {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys) // file names sort cam1-audio.sock before cam1.sock
	return keys, nil
}

// elsewhereAfter is how long a key's SHM has to be missing: a publisher that ends removes it and its socket a moment apart.
const elsewhereAfter = 200 * time.Millisecond

// Elsewhere returns the keys, sorted, whose publishers listen in runtimeDir and whose SHM is not there: this process has another /dev/shm than they.
// Sockets of keys that have none are connected to, for nothing, and no others; where there are such keys it takes 200 ms.
func Elsewhere(runtimeDir string) ([]string, error) {
	keys, err := controlSockets(runtimeDir)
	here := func(key string) bool {
		if _, err := os.Lstat(shm.Dir + "/" + ShmName(key)); !errors.Is(err, os.ErrNotExist) {
			return true
		}
		alive, err := probe(SocketPath(runtimeDir, key))
		return !alive || err != nil
	}
	if keys = slices.DeleteFunc(keys, here); len(keys) > 0 {
		time.Sleep(elsewhereAfter)
		keys = slices.DeleteFunc(keys, here)
	}
	return keys, err
}

// Inspect reads the frame SHM of a key. The error Is os.ErrNotExist when there is none; whether its publisher lives is Alive.
func Inspect(runtimeDir, key string) (Publication, error) {
	p := Publication{Key: key, SocketPath: SocketPath(runtimeDir, key), ShmName: ShmName(key)}
	if err := CheckKey(key); err != nil {
		return p, err
	}
	seg, err := shm.Open(p.ShmName, shm.OpenOptions{ReadOnly: true, MinSize: headerSize})
	if err != nil {
		return p, fmt.Errorf("inspect %s: %w", key, err)
	}
	defer seg.Close()
	var head [headerSize]byte
	var parseErr error
	err = shm.Guard(func() {
		var b *block
		copy(head[:], seg.Bytes())
		if b, _, parseErr = openBlock(seg.Bytes()); parseErr != nil {
			return
		}
		p.Header = b.header()
		for i := range b.slots {
			p.Slots = append(p.Slots, b.slot(i))
		}
		for bit := 1; bit < subscriberSlots; bit++ {
			if s := b.subscriber(bit); s.State != SubscriberFree {
				p.Subscribers = append(p.Subscribers, s)
			}
		}
	})
	p.Alive = shm.Locked(seg) || foreignAlive(p.ShmName, head[:])
	if err = errors.Join(err, parseErr); err != nil {
		return p, fmt.Errorf("inspect %s: %w", key, err)
	}
	return p, nil
}
