package cudavmm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Stream is an ordered queue of work on a GPU. One goroutine at a time uses it.
type Stream struct {
	device *Device
	stream uintptr
	mu     sync.Mutex // guards stream and copy against Close
	copy   *copy2D    // on the heap once: a call into the driver makes every pointer escape
}

// spinFor is how long Synchronize asks the stream before it blocks: a copy of one picture is done in about 15 µs, waking from
// a blocking wait takes about 10 µs more. Longer work does not hold a core.
const spinFor = 60 * time.Microsecond

// NewStream makes a stream that does not wait for the default stream.
func (v *Device) NewStream() (*Stream, error) {
	s := &Stream{device: v, copy: new(copy2D)}
	if err := v.do("cuStreamCreate", func() result { return v.driver.api.streamCreate(&s.stream, streamNonBlocking) }); err != nil {
		return nil, err
	}
	v.hold()
	return s, nil
}

// Handle is the stream (CUstream), for libraries that queue work on it.
func (s *Stream) Handle() uintptr { return s.stream }

// Device returns the stream's GPU.
func (s *Stream) Device() *Device { return s.device }

// Close waits for the queued work and gives the stream back.
func (s *Stream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stream == 0 {
		return nil
	}
	a, h := s.device.driver.api, s.stream
	s.stream = 0
	return errors.Join(
		s.device.do("cuStreamSynchronize", func() result { return a.streamSynchronize(h) }),
		s.device.do("cuStreamDestroy", func() result { return a.streamDestroy(h) }),
		s.device.Close(),
	)
}

// enter makes the context current on this thread, which it holds until leave.
func (s *Stream) enter() error {
	s.mu.Lock()
	if s.stream == 0 {
		s.mu.Unlock()
		return fmt.Errorf("stream: %w", ErrClosed)
	}
	runtime.LockOSThread()
	if r := s.device.driver.api.ctxSetCurrent(s.device.ctx); r != 0 {
		s.leave()
		return s.device.driver.check("cuCtxSetCurrent", r)
	}
	return nil
}

func (s *Stream) leave() {
	runtime.UnlockOSThread()
	s.mu.Unlock()
}

// Plane is a rectangle of bytes in GPU memory (Pointer) or host memory (Host).
type Plane struct {
	Pointer uintptr
	Host    []byte // used when not nil; must stay alive and unmoved until the stream is synchronised
	Pitch   int    // bytes from one line to the next
}

// Copy2D queues the copy of height lines of width bytes. Copies from or to pageable host memory may block.
func (s *Stream) Copy2D(dst, src Plane, width, height int) error {
	if width <= 0 || height <= 0 || width > dst.Pitch || width > src.Pitch {
		return fmt.Errorf("copy %d×%d bytes between pitches %d and %d: out of range", width, height, src.Pitch, dst.Pitch)
	}
	for _, p := range []Plane{dst, src} {
		if p.Host != nil && len(p.Host) < p.Pitch*(height-1)+width {
			return fmt.Errorf("copy %d×%d bytes with pitch %d: host memory holds %d", width, height, p.Pitch, len(p.Host))
		}
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	c := s.copy
	*c = copy2D{srcPitch: uint64(src.Pitch), dstPitch: uint64(dst.Pitch), width: uint64(width), height: uint64(height)}
	c.srcType, c.srcDevice = memoryTypeDevice, uint64(src.Pointer)
	if src.Host != nil {
		c.srcType, c.srcDevice, c.srcHost = memoryTypeHost, 0, unsafe.Pointer(unsafe.SliceData(src.Host))
	}
	c.dstType, c.dstDevice = memoryTypeDevice, uint64(dst.Pointer)
	if dst.Host != nil {
		c.dstType, c.dstDevice, c.dstHost = memoryTypeHost, 0, unsafe.Pointer(unsafe.SliceData(dst.Host))
	}
	r := s.device.driver.api.memcpy2DAsync(c, s.stream)
	c.srcHost, c.dstHost = nil, nil
	return s.device.driver.check("cuMemcpy2DAsync", r)
}

// Memset2D queues filling height lines of width bytes with value.
func (s *Stream) Memset2D(dst Plane, value byte, width, height int) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.device.driver.check("cuMemsetD2D8Async",
		s.device.driver.api.memsetD2D8Async(uint64(dst.Pointer), uint64(dst.Pitch), uint32(value), uint64(width), uint64(height), s.stream))
}

// Synchronize waits until all queued work is done. It asks for a moment and then blocks without holding a core.
func (s *Stream) Synchronize() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	a := s.device.driver.api
	for start := time.Now(); time.Since(start) < spinFor; {
		if r := a.streamQuery(s.stream); r != codeNotReady {
			return s.device.driver.check("cuStreamQuery", r)
		}
		for range 16 { // about half a microsecond
			shm.Pause()
		}
	}
	return s.device.driver.check("cuStreamSynchronize", a.streamSynchronize(s.stream))
}

// Wait makes what is queued after it wait for the event.
func (s *Stream) Wait(e *Event) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.device.driver.check("cuStreamWaitEvent", s.device.driver.api.streamWaitEvent(s.stream, e.event, 0))
}

// Event marks a point in a stream.
type Event struct {
	device *Device
	event  uintptr
	once   sync.Once
	err    error
}

// NewEvent makes an event; timing says whether Elapsed is wanted.
func (v *Device) NewEvent(timing bool) (*Event, error) {
	e := &Event{device: v}
	flags := uint32(eventBlockingSync)
	if !timing {
		flags |= eventDisableTiming
	}
	if err := v.do("cuEventCreate", func() result { return v.driver.api.eventCreate(&e.event, flags) }); err != nil {
		return nil, err
	}
	v.hold()
	return e, nil
}

// Record queues the event on a stream.
func (e *Event) Record(s *Stream) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	return s.device.driver.check("cuEventRecord", s.device.driver.api.eventRecord(e.event, s.stream))
}

// Done tells whether the stream has passed the event.
func (e *Event) Done() (bool, error) {
	err := e.device.do("cuEventQuery", func() result { return e.device.driver.api.eventQuery(e.event) })
	var de *Error
	if errors.As(err, &de) && de.Code == codeNotReady {
		return false, nil
	}
	return err == nil, err
}

// Synchronize blocks until the stream has passed the event.
func (e *Event) Synchronize() error {
	return e.device.do("cuEventSynchronize", func() result { return e.device.driver.api.eventSynchronize(e.event) })
}

// Elapsed returns the time between two events that were made with timing and have been passed.
func (e *Event) Elapsed(since *Event) (time.Duration, error) {
	var ms float32
	err := e.device.do("cuEventElapsedTime", func() result { return e.device.driver.api.eventElapsedTime(&ms, since.event, e.event) })
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}

// Close gives the event back.
func (e *Event) Close() error {
	e.once.Do(func() {
		e.err = errors.Join(e.device.do("cuEventDestroy", func() result { return e.device.driver.api.eventDestroy(e.event) }), e.device.Close())
	})
	return e.err
}
