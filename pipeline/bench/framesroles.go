package bench

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
)

// framesArg tells a helper of the frames' measurements what to do.
type framesArg struct {
	latencyArg
	Dir           string
	Width, Height int
	Wait          framering.Wait
	Strict        bool
	InPlace       bool // readers of the stream look at every byte where it lies instead of copying it out
	GPU           bool // the frames lie in memory of GPU Device
	Device        int
}

// frameRole is what the helpers have in common.
type frameRole struct {
	framesArg
	board    *board
	meta     framering.FrameMeta
	pictures pictures
}

// frameHelper makes a role known that has to do with pictures.
func frameHelper(role string, play func(*frameRole) (any, error)) {
	helper(role, func(a framesArg, b *board) (any, error) {
		r := &frameRole{framesArg: a, board: b}
		var err error
		if r.meta, err = framering.MetaOf(framering.NV12, r.Width, r.Height); err != nil {
			return nil, err
		}
		if r.pictures, err = newPictures(a, r.meta); err != nil {
			return nil, err
		}
		result, err := play(r)
		return result, errors.Join(err, r.pictures.close())
	})
}

// frameWriter is a frameHelper that publishes.
func frameWriter(role string, play func(*frameRole, *framering.FrameWriter) (any, error)) {
	frameHelper(role, func(a *frameRole) (any, error) {
		p, w, err := a.publisher()
		if err != nil {
			return nil, err
		}
		result, err := play(a, w)
		return result, errors.Join(err, p.Close(framering.ReasonNormal))
	})
}

// frameReader is a frameHelper that reads.
func frameReader(role string, play func(*frameRole, *framering.FrameReader) (any, error)) {
	frameHelper(role, func(a *frameRole) (any, error) {
		s, r, err := a.reader()
		if err != nil {
			return nil, err
		}
		result, err := play(a, r)
		return result, errors.Join(err, r.Close(), s.Close())
	})
}

func (a *frameRole) publisher() (*framering.Publisher, *framering.FrameWriter, error) {
	p, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: a.Dir, Key: a.Key})
	if err != nil {
		return nil, nil, err
	}
	policy := framering.DropOldest
	if a.Strict {
		policy = framering.StrictWait
	}
	w, err := p.StartFrames(framering.FrameOptions{
		RingSize: frameSlots, Meta: a.meta, Policy: policy, AckTimeout: 10 * time.Second, Memory: a.pictures.memory(),
	})
	if err == nil {
		err = p.Serve()
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.Close(framering.ReasonError))
	}
	return p, w, nil
}

func (a *frameRole) reader() (*framering.Subscriber, *framering.FrameReader, error) {
	s, err := framering.Dial(context.Background(), framering.DialOptions{
		RuntimeDir: a.Dir, Key: a.Key, Mode: framering.StrictOrder, CUDADevice: int32(a.Device),
	})
	if err != nil {
		return nil, nil, err
	}
	r, err := s.Frames(framering.FrameReaderOptions{Memory: cudavmm.NewReceiver(a.Device), Wait: a.Wait})
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, r, nil
}

// publish puts one frame into the ring as decode does: within a GPU the copy is announced. pts is that of the call of Publish.
func (a *frameRole) publish(w *framering.FrameWriter, fill bool) error {
	slot, err := w.Acquire(context.Background())
	if err != nil {
		return err
	}
	if a.GPU {
		w.Announce()
	}
	if fill {
		if err := a.pictures.into(slot.Buffer); err != nil {
			return err
		}
	}
	_, err = w.Publish(time.Now().UnixNano())
	return err
}

func init() {
	// frames-publisher: as latency-publisher, with frames whose pixels stand already, or come by a copy within the GPU.
	frameWriter("frames-publisher", func(a *frameRole, w *framering.FrameWriter) (any, error) {
		return nil, a.board.pace(a.Rate, a.Bare, func() error { return a.publish(w, a.GPU) })
	})
	frameReader("frames-reader", func(a *frameRole, r *framering.FrameReader) (any, error) {
		h := histogram()
		a.board.ready()
		for n := 0; ; n++ {
			f, err := r.Next(context.Background())
			now := time.Now().UnixNano()
			if err != nil {
				return percentiles(h), nil // the publisher has shut down
			}
			if took := now - f.PTS; n >= warmUp && took >= 0 {
				_ = h.RecordValue(took)
			}
			_ = f.Release()
		}
	})
	frameWriter("framestream-writer", func(a *frameRole, w *framering.FrameWriter) (any, error) {
		a.board.ready()
		var r streamResult
		start, before := time.Now(), mallocs()
		for !a.board.stopped() {
			if err := a.publish(w, true); err != nil {
				return nil, err
			}
			r.Bytes += a.meta.FrameSize
			r.Packets++
		}
		r.Allocs, r.Nanos = mallocs()-before, int64(time.Since(start))
		return r, nil
	})
	frameReader("framestream-reader", func(a *frameRole, r *framering.FrameReader) (any, error) {
		take := a.pictures.from
		if a.InPlace {
			take = a.pictures.look
		}
		a.board.ready()
		var got streamResult
		start, before := time.Now(), mallocs()
		for {
			f, err := r.Next(context.Background())
			if err != nil {
				break // the writer has shut down
			}
			if err := errors.Join(take(f), f.Release()); err != nil {
				return nil, err
			}
			got.Bytes += a.meta.FrameSize
			got.Packets++
			got.Lost += f.Lost
		}
		got.Allocs, got.Nanos = mallocs()-before, int64(time.Since(start))
		return got, nil
	})
	// The same copies between the same kind of memory, and nothing else.
	frameHelper("framecopy-writer", func(a *frameRole) (any, error) {
		if a.GPU {
			return a.copyWithinGPU()
		}
		size := int(a.meta.FrameSize)
		seg, err := shm.CreateLocked(a.Ring, frameSlots*size, shm.CreateOptions{})
		if err != nil {
			return nil, err
		}
		defer seg.Close()
		picture := grey(size)
		return a.board.copyFrames(size, func(i int) { copy(seg.Bytes()[i%frameSlots*size:], picture) }), nil
	})
	frameHelper("framecopy-reader", func(a *frameRole) (any, error) {
		if a.GPU {
			return a.copyWithinGPU()
		}
		seg, err := shm.Open(a.Ring, shm.OpenOptions{ReadOnly: true})
		if err != nil {
			return nil, err
		}
		defer seg.Close()
		size := int(a.meta.FrameSize)
		picture := grey(size)
		each := func(slot []byte) { copy(picture, slot) }
		if a.InPlace {
			each = func(slot []byte) { bytes.Count(slot, picture[:1]) }
		}
		return a.board.copyFrames(size, func(i int) { each(seg.Bytes()[i%frameSlots*size:][:size]) }), nil
	})
}

func (b *board) copyFrames(size int, f func(i int)) streamResult {
	r := b.copyUntilStopped(f)
	r.Bytes = r.Packets * uint64(size)
	return r
}
