package bench

import (
	"bytes"
	"context"
	"encoding/json"
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

func newFrameRole(arg []byte) (*frameRole, error) {
	r := &frameRole{}
	err := json.Unmarshal(arg, &r.framesArg)
	if err == nil {
		r.meta, err = framering.MetaOf(framering.NV12, r.Width, r.Height)
	}
	if err == nil {
		r.pictures, err = newPictures(r.framesArg, r.meta)
	}
	if err == nil {
		r.board, err = openBoard(r.Board)
	}
	return r, err
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
	s, err := framering.Dial(context.Background(), framering.DialOptions{RuntimeDir: a.Dir, Key: a.Key, Mode: framering.StrictOrder, CUDADevice: int32(a.Device)})
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
	helpers["frames-publisher"] = func(arg []byte) (any, error) {
		a, err := newFrameRole(arg)
		if err != nil {
			return nil, err
		}
		p, w, err := a.publisher()
		if err != nil {
			return nil, err
		}
		if err := a.board.pace(a.Rate, a.Bare, func() error { return a.publish(w, a.GPU) }); err != nil {
			return nil, err
		}
		return nil, errors.Join(p.Close(framering.ReasonNormal), a.pictures.close())
	}
	helpers["frames-reader"] = func(arg []byte) (any, error) {
		a, err := newFrameRole(arg)
		if err != nil {
			return nil, err
		}
		b := a.board
		s, r, err := a.reader()
		if err != nil {
			return nil, err
		}
		h := histogram()
		b.ready()
		for n := 0; ; n++ {
			f, err := r.Next(context.Background())
			now := time.Now().UnixNano()
			if err != nil {
				return percentiles(h), errors.Join(r.Close(), s.Close()) // the publisher has shut down
			}
			if took := now - f.PTS; n >= warmUp && took >= 0 {
				_ = h.RecordValue(took)
			}
			_ = f.Release()
		}
	}
	helpers["framestream-writer"] = func(arg []byte) (any, error) {
		a, err := newFrameRole(arg)
		if err != nil {
			return nil, err
		}
		b := a.board
		p, w, err := a.publisher()
		if err != nil {
			return nil, err
		}
		b.ready()
		var r streamResult
		start, before := time.Now(), mallocs()
		for !b.stopped() {
			if err := a.publish(w, true); err != nil {
				return nil, err
			}
			r.Bytes += a.meta.FrameSize
			r.Packets++
		}
		r.Allocs, r.Nanos = mallocs()-before, int64(time.Since(start))
		return r, errors.Join(p.Close(framering.ReasonNormal), a.pictures.close())
	}
	helpers["framestream-reader"] = func(arg []byte) (any, error) {
		a, err := newFrameRole(arg)
		if err != nil {
			return nil, err
		}
		b := a.board
		s, r, err := a.reader()
		if err != nil {
			return nil, err
		}
		b.ready()
		var got streamResult
		start, before := time.Now(), mallocs()
		for {
			f, err := r.Next(context.Background())
			if err != nil {
				break // the writer has shut down
			}
			if a.InPlace {
				err = a.pictures.look(f)
			} else {
				err = a.pictures.from(f)
			}
			if err := errors.Join(err, f.Release()); err != nil {
				return nil, err
			}
			got.Bytes += a.meta.FrameSize
			got.Packets++
			got.Lost += f.Lost
		}
		got.Allocs, got.Nanos = mallocs()-before, int64(time.Since(start))
		return got, errors.Join(r.Close(), s.Close(), a.pictures.close())
	}
	// The same copies between the same kind of memory, and nothing else.
	helpers["framecopy-writer"] = func(arg []byte) (any, error) {
		a, err := newFrameRole(arg)
		if err != nil {
			return nil, err
		}
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
	}
	helpers["framecopy-reader"] = func(arg []byte) (any, error) {
		a, err := newFrameRole(arg)
		if err != nil {
			return nil, err
		}
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
	}
}

func (b *board) copyFrames(size int, f func(i int)) streamResult {
	r := b.copyUntilStopped(f)
	r.Bytes = r.Packets * uint64(size)
	return r
}
