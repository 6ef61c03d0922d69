package framering

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

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
	entries, err := os.ReadDir(RuntimeDir(runtimeDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list publishers: %w", err)
	}
	var list []Publication
	for _, e := range entries {
		key, isSocket := strings.CutSuffix(e.Name(), ".sock")
		if !isSocket || CheckKey(key) != nil || e.Type()&os.ModeSocket == 0 {
			continue
		}
		p, err := Inspect(runtimeDir, key)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if p.Err = err; p.Alive || err != nil {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Publication) int { return strings.Compare(a.Key, b.Key) }) // file names sort cam1-audio.sock before cam1.sock
	return list, nil
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
