package packetring

import (
	"sync"
	"syscall"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// neighbours are the rings that this process writes: its own readers of one are woken without the kernel.
var neighbours = struct {
	sync.Mutex
	bells map[fileID]*shm.Bell
}{bells: map[fileID]*shm.Bell{}}

type fileID struct{ dev, ino uint64 }

// identify returns what tells a ring's file from all others while it is open.
func identify(s *shm.Segment) (fileID, bool) {
	i, err := s.File().Stat()
	if err != nil {
		return fileID{}, false
	}
	st, ok := i.Sys().(*syscall.Stat_t)
	return fileID{st.Dev, st.Ino}, ok
}

// moveIn makes w's bell known, until the returned function is called.
func moveIn(w *Writer) (moveOut func()) {
	id, ok := identify(w.seg)
	if !ok {
		return func() {} // its readers wait as those of strangers do
	}
	neighbours.Lock()
	defer neighbours.Unlock()
	neighbours.bells[id] = &w.bell
	return func() {
		neighbours.Lock()
		defer neighbours.Unlock()
		delete(neighbours.bells, id)
	}
}

// neighbour returns the bell of the ring's writer if that is in this process, else nil.
func neighbour(s *shm.Segment) *shm.Bell {
	id, ok := identify(s)
	if !ok {
		return nil
	}
	neighbours.Lock()
	defer neighbours.Unlock()
	return neighbours.bells[id]
}
