package framering

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Frames of protocols 1 and 2: a slot's descriptor holds the cudaIpcMemHandle_t of its memory, the header holds the
// cudaIpcEventHandle_t of the event that is recorded behind each picture. Section numbers here are those of the documents of protocol 1.
//
// There is one event for all slots, recorded again with every frame. A reader that waits for it may so wait for a later frame than its
// own, which is late but right; that its own is still whole only slot.seq tells, and only after the reader's stream has synchronised
// (Frame.Check, Frame.Release).

// IPCEvent is an interprocess event. Like Buffer it is an alias of an unnamed interface.
type IPCEvent = interface {
	// Handle is the cudaIpcEventHandle_t.
	Handle() [64]byte
	// Record records the event behind the work queued on a stream; 0 is a stream of its own with nothing queued.
	Record(stream uintptr) error
	// WaitOn makes a stream wait for the event as it was recorded last.
	WaitOn(stream uintptr) error
	Close() error
}

// IPCMemory is what a publisher's Memory must be, too, for frames of protocols 1 and 2.
type IPCMemory interface {
	// AllocIPC makes a buffer of at least size bytes and its cudaIpcMemHandle_t.
	AllocIPC(size int) (Buffer, [64]byte, error)
	// ShareIPC returns the handle of memory that stays the caller's. The buffer's Close leaves the memory alone.
	ShareIPC(pointer uintptr, size int) (Buffer, [64]byte, error)
	NewIPCEvent() (IPCEvent, error)
}

// IPCImporter is what a subscriber's Importer must be, too, for frames of protocols 1 and 2.
type IPCImporter interface {
	// OpenIPC maps the memory of a handle, of which at least size bytes must be there. A handle that the process has open already
	// is the same mapping.
	OpenIPC(handle [64]byte, size int) (Buffer, error)
	OpenIPCEvent(handle [64]byte) (IPCEvent, error)
}

// ErrPIDNamespace says that CUDA IPC failed between processes that do not see each other's PID; its text names the remedy.
var ErrPIDNamespace = errors.New("publisher and subscriber are in different PID namespaces, which the CUDA IPC of protocols 1 and 2 " +
	"does not cross: let them share one (docker run --pid=container:…, shareProcessNamespace: true), or publish with protocol 4")

// ipcMemory is what subscribers learn about a generation's memory.
type ipcMemory struct {
	handles  [][64]byte
	external []uintptr // EXTERNAL: the program's own pointers
	event    IPCEvent
}

// describe fills the descriptors of a new block, which nobody reads yet.
func (m *ipcMemory) describe(b *block) {
	for i := range b.slots {
		b.slots[i].memHandle = m.handles[i]
		if m.external != nil {
			binary.LittleEndian.PutUint64(b.slots[i].external[:], uint64(m.external[i]))
		}
	}
	b.hdr.events = m.event.Handle()
}

// shareSlots makes the buffers of a ring and the event, or takes the caller's memory.
func shareSlots(o FrameOptions) (*slotMemory, error) {
	m, ok := o.Memory.(IPCMemory)
	if !ok {
		return nil, fmt.Errorf("protocols 1 and 2 need GPU memory, %T is none: %w", o.Memory, ErrNotAvailable)
	}
	if o.External != nil && len(o.External) != o.RingSize {
		return nil, fmt.Errorf("%d pointers for a ring of %d slots: %w", len(o.External), o.RingSize, ErrInvalidArg)
	}
	s := &slotMemory{granularity: 1, ipc: &ipcMemory{external: o.External}}
	for i := range o.RingSize {
		var b Buffer
		var handle [64]byte
		var err error
		if o.External == nil {
			b, handle, err = m.AllocIPC(int(o.Meta.FrameSize))
		} else {
			b, handle, err = m.ShareIPC(o.External[i], int(o.Meta.FrameSize))
		}
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.buffers, s.ipc.handles = append(s.buffers, b), append(s.ipc.handles, handle)
	}
	event, err := m.NewIPCEvent()
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.ipc.event = event
	return s, nil
}

// openIPC maps the slots and the event that the descriptors name. handles and event are copies.
func (r *FrameReader) openIPC(m Importer, handles [][64]byte, event [64]byte, producer uint64) error {
	im, ok := m.(IPCImporter)
	if !ok {
		return fmt.Errorf("frames of protocol %d lie in GPU memory, %T cannot map it: %w", r.sub.side.resp.Version, m, ErrNotAvailable)
	}
	explain := func(what string, err error) error {
		if r.sub.PID == 0 || uint64(r.sub.PID) != producer { // the kernel's word against the publisher's own
			err = fmt.Errorf("%w: %w", ErrPIDNamespace, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	for i, h := range handles {
		b, err := im.OpenIPC(h, int(r.meta.FrameSize))
		if err != nil {
			return explain(fmt.Sprintf("slot %d", i), err)
		}
		r.slots = append(r.slots, b)
		if uint64(b.Size()) < r.meta.FrameSize {
			return fmt.Errorf("slot %d: %d bytes of memory for a frame of %d: %w", i, b.Size(), r.meta.FrameSize, ErrProtocol)
		}
	}
	e, err := im.OpenIPCEvent(event)
	if err != nil {
		return explain("event", err)
	}
	r.event = e
	return nil
}

// WaitOn makes a CUDA stream wait until the frame's pixels are there; the reads queued behind it then see them. It must come before any
// read of frames of protocols 1 and 2. In protocol 4 the pixels are there when the frame is, and it does nothing.
func (f Frame) WaitOn(stream uintptr) error {
	if f.event == nil {
		return nil
	}
	if err := f.event.WaitOn(stream); err != nil {
		return fmt.Errorf("frame %d: %w", f.Seq, err)
	}
	return nil
}

// PublishOn is Publish for a frame that work queued on a CUDA stream is still writing: readers wait for it on the GPU. It is for
// protocols 1 and 2; in protocol 4 synchronise the stream and use Publish.
func (w *FrameWriter) PublishOn(pts int64, stream uintptr) (uint64, error) {
	if w.ring.memory.ipc == nil {
		return 0, fmt.Errorf("frame ring: protocol 4 has no event: %w", ErrInvalidArg)
	}
	return w.publish(pts, stream)
}
