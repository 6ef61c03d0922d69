package framering

import "errors"

// Buffer is the memory of one frame slot. It is an alias of an unnamed interface, so that packages of memory can return it
// without importing this one.
type Buffer = interface {
	// Size is the number of usable bytes.
	Size() int
	// Bytes is the memory itself, or nil when the CPU cannot address it.
	Bytes() []byte
	// Pointer is the address: the GPU's where Bytes is nil.
	Pointer() uintptr
	// FD shares the buffer with another process and belongs to it; -1 for an imported one.
	FD() int
	// Close unmaps the memory. Other processes keep their own mappings.
	Close() error
}

// Memory is where a publisher takes its frame slots from: a GPU, or memfds.
type Memory interface {
	// Alloc makes a buffer of at least size bytes; name shows in /proc.
	Alloc(name string, size int) (Buffer, error)
	// Granularity is the unit of a mapping in bytes, a power of two.
	Granularity() int
}

// Importer maps the frame slots that a publisher shares.
type Importer interface {
	// Import maps the first size bytes, in units of granularity, of what fd shares. Both numbers are the publisher's claim: an
	// importer refuses what the kernel or the driver does not confirm, and memory that its owner could still cut. It takes fd
	// over in every case.
	Import(fd, size, granularity int) (Buffer, error)
}

// frameMemory is the memory of the frame slots as the control plane sees it: descriptors to pass on and the unit in which
// they are mapped. It may be called from several goroutines and stays the owner of the descriptors.
type frameMemory interface {
	// FDs returns one descriptor for each slot.
	FDs() []int
	// Granularity is the unit of a mapping in bytes, a power of two: the CUDA driver's, or the page size of memfds.
	Granularity() uint64
}

// slotMemory is the buffers of a frame ring as the handshake passes them on.
type slotMemory struct {
	buffers     []Buffer
	granularity int
	ipc         *ipcMemory // protocols 1 and 2
}

func allocSlots(m Memory, name string, n, size int) (*slotMemory, error) {
	s := &slotMemory{granularity: m.Granularity()}
	for range n {
		b, err := m.Alloc(name, size)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.buffers = append(s.buffers, b)
	}
	return s, nil
}

// FDs implements frameMemory.
func (s *slotMemory) FDs() []int {
	fds := make([]int, len(s.buffers))
	for i, b := range s.buffers {
		fds[i] = b.FD()
	}
	return fds
}

// Granularity implements frameMemory.
func (s *slotMemory) Granularity() uint64 { return uint64(s.granularity) }

func (s *slotMemory) close() error {
	var err error
	if s.ipc != nil && s.ipc.event != nil {
		err = s.ipc.event.Close()
	}
	for _, b := range s.buffers {
		err = errors.Join(err, b.Close())
	}
	s.buffers = nil
	return err
}
