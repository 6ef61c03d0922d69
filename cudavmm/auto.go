package cudavmm

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Receiver imports whatever kind of memory a publisher shares: the kernel tells a memfd from GPU memory. The GPU is opened when
// the first buffer of its kind comes. It implements the frame ring's Importer.
type Receiver struct {
	ordinal int

	mu     sync.Mutex
	device *Device
}

// NewReceiver returns a Receiver that maps GPU memory on the given GPU, or none at all (ErrUnavailable) where ordinal is negative. Close
// it after its buffers.
func NewReceiver(ordinal int) *Receiver { return &Receiver{ordinal: ordinal} }

// Import takes fd over, see [Host.Import] and [Device.Import].
func (r *Receiver) Import(fd, size, granularity int) (Buffer, error) {
	if shm.IsMemfd(fd) {
		return Host{}.Import(fd, size, granularity)
	}
	v, err := r.Device()
	if err != nil {
		_ = syscall.Close(fd)
		return nil, err
	}
	return v.Import(fd, size, granularity)
}

// Device returns the receiver's GPU, which stays its own.
func (r *Receiver) Device() (*Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ordinal < 0 {
		return nil, fmt.Errorf("%w: only memory of the host is wanted here", ErrUnavailable)
	}
	if r.device == nil {
		v, err := OpenDevice(r.ordinal)
		if err != nil {
			return nil, err
		}
		r.device = v
	}
	return r.device, nil
}

// Close gives the GPU back.
func (r *Receiver) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.device == nil {
		return nil
	}
	v := r.device
	r.device = nil
	return v.Close()
}
