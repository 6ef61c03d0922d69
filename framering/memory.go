package framering

// FrameMemory is the memory of the frame slots as the control plane sees it: descriptors to pass on and the unit in which
// they are mapped. It may be called from several goroutines and stays the owner of the descriptors, which must remain open
// until [Publisher.Close] has returned.
type FrameMemory interface {
	// FDs returns one descriptor for each slot.
	FDs() []int
	// Granularity is the unit of a mapping in bytes, a power of two: the CUDA driver's, or the page size of memfds.
	Granularity() uint64
}

// FrameConfig describes the frame ring of a publisher.
type FrameConfig struct {
	RingSize int // slots, 1…16
	Meta     FrameMeta
	Policy   Policy
	Memory   FrameMemory

	ownership Ownership
}
