package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/packetring"
)

// Stream is the throughput of one writer and several readers, each a process, that copy every packet: the writer into the ring, each
// reader out of it. The writer waits for the slowest reader, over a side channel of the benchmark (the ring has none), so that
// nothing is lost. All run in turn, and stand beside two references that copy the same packets between the same kinds of memory:
//
//   - Memcpy, one process that copies alone: the memory bandwidth that a program sees. Ratio is what reached the readers against it.
//   - Parallel, as many processes as the stream has, all their copies added up: no order, no slots, no wake-ups, nobody waits for the
//     slowest, and whoever has a core to himself for a while copies the same bytes again from his own cache, where a stream has new
//     ones each time, written by another core. ParallelRatio is all that the stream copied against that; it has no goal.
//
// InPlace: the readers do not copy, they look at every byte where it lies, and as many of the reference's processes do so too.
type Stream struct {
	InPlace        bool    `json:"in_place,omitempty"`
	Readers        int     `json:"readers"`
	Size           int     `json:"payload_bytes"`
	Packets        uint64  `json:"packets_per_reader"`
	Lost           uint64  `json:"lost"`
	Ring           float64 `json:"ring_bytes_per_second"` // copied in and out
	Delivered      float64 `json:"delivered_bytes_per_second"`
	Memcpy         float64 `json:"memcpy_bytes_per_second"`
	Parallel       float64 `json:"parallel_memcpy_bytes_per_second"`
	Ratio          float64 `json:"ratio"`
	ParallelRatio  float64 `json:"parallel_ratio"`
	WriterAllocs   float64 `json:"allocations_per_packet_writer"`
	ReaderAllocs   float64 `json:"allocations_per_packet_reader"`
	PacketsASecond float64 `json:"packets_per_second"`
	Rounds         int     `json:"rounds"`
}

const (
	streamSize  = 64 << 10
	streamSlots = 128
	streamBytes = streamSlots * streamSize // 8 MiB, the default ring
	// streamAhead is how far the writer gets ahead of the slowest reader.
	streamAhead  = streamSlots * 3 / 4
	streamRounds = 3
)

type streamArg struct {
	Board, Ring, Key string
	Index, Readers   int
}

type streamResult struct {
	Bytes   uint64
	Packets uint64
	Lost    uint64
	Allocs  uint64
	Nanos   int64
}

func (a streamArg) boardName() string { return a.Board }

func init() {
	helper("stream-writer", func(a streamArg, b *board) (any, error) {
		w, err := packetring.Create(a.Key, packetring.Config{Slots: streamSlots, DataSize: streamBytes})
		if err != nil {
			return nil, err
		}
		defer w.Close()
		p := packetring.Packet{Flags: packetring.FlagKey, Data: grey(streamSize)}
		b.ready()
		var r streamResult
		start, before := time.Now(), mallocs()
		for !b.stopped() {
			seq, err := w.Publish(p)
			if err != nil {
				return nil, err
			}
			r.Bytes += streamSize
			r.Packets++
			b.waitForReaders(seq, a.Readers)
		}
		r.Allocs, r.Nanos = mallocs()-before, int64(time.Since(start))
		return r, w.Close()
	})
	helper("stream-reader", func(a streamArg, b *board) (any, error) {
		r, err := packetring.Open(a.Ring, packetring.ReaderOptions{})
		if err != nil {
			return nil, err
		}
		defer r.Close()
		line, wanted := lineFirst+2*a.Index, b.word(lineFirst+2*a.Index+1)
		progress := b.word(line)
		b.ready()
		start, before := time.Now(), mallocs()
		for {
			p, err := r.Next(context.Background())
			if err != nil {
				break // the writer has shut down
			}
			progress.Store(p.Seq)
			if w := wanted.Load(); w != 0 && p.Seq >= w && wanted.CompareAndSwap(w, 0) {
				shm.FutexWake(b.futex(line))
			}
		}
		s := r.Stats()
		return streamResult{Bytes: s.Bytes, Packets: s.Read, Lost: s.Lost, Allocs: mallocs() - before, Nanos: int64(time.Since(start))}, nil
	})
	// memcpy-writer and memcpy-reader copy like the two above, from and to the same kind of memory.
	helper("memcpy-writer", func(a streamArg, b *board) (any, error) {
		seg, err := shm.CreateLocked(a.Ring, streamBytes, shm.CreateOptions{})
		if err != nil {
			return nil, err
		}
		defer seg.Close()
		block := grey(streamSize)
		return b.copyUntilStopped(func(i int) { copy(seg.Bytes()[i%streamSlots*streamSize:], block) }), nil
	})
	helper("memcpy-reader", func(a streamArg, b *board) (any, error) {
		seg, err := shm.Open(a.Ring, shm.OpenOptions{ReadOnly: true})
		if err != nil {
			return nil, err
		}
		defer seg.Close()
		block := grey(streamSize)
		return b.copyUntilStopped(func(i int) { copy(block, seg.Bytes()[i%streamSlots*streamSize:]) }), nil
	})
}

// grey is what is copied. Its pages are its own: those of a slice that nobody has written to are all the kernel's one page of zeros, which
// the fastest cache holds, and copying from them is twice as fast as copying pictures.
func grey(size int) []byte { return bytes.Repeat([]byte{greyLevel}, size) }

const greyLevel = 0x80

func (b *board) copyUntilStopped(f func(i int)) (r streamResult) {
	b.ready()
	start := time.Now()
	for i := 0; !b.stopped(); i++ {
		f(i)
		r.Bytes += streamSize
		r.Packets++
	}
	r.Nanos = int64(time.Since(start))
	return r
}

// waitForReaders returns when no reader is streamAhead packets behind seq any more, or the measurement stops.
func (b *board) waitForReaders(seq uint64, readers int) {
	for i := range readers {
		line := lineFirst + 2*i
		progress, wanted := b.word(line), b.word(line+1)
		if seq-progress.Load() < streamAhead {
			continue
		}
		// Half way down before it goes on, and not woken before that: fewer, longer sleeps.
		wanted.Store(seq - streamAhead/2)
		for now := progress.Load(); seq-now > streamAhead/2 && !b.stopped(); now = progress.Load() {
			_ = shm.FutexWait(b.futex(line), uint32(now), 10*time.Millisecond)
		}
		wanted.Store(0)
	}
}

func (o Packets) stream(ctx context.Context) (Stream, error) {
	s := Stream{Readers: o.Readers, Size: streamSize, Rounds: streamRounds}
	err := s.measure(o.Duration, "memcpy", "stream", func(kind string, readers int) ([]streamResult, error) {
		return o.streamRound(ctx, kind, readers, o.Duration/streamRounds, func(b *board, key string, reader int) any {
			return streamArg{Board: b.seg.Name(), Key: key, Ring: shm.Prefix + key + "-packets", Index: reader, Readers: readers}
		})
	})
	return s, err
}

// measure runs the references and the ring in turn, streamRounds times, and fills in the sums and means. A round returns the writer's
// result first; all rounds of a kind together take duration.
func (s *Stream) measure(duration time.Duration, reference, ring string, round func(kind string, readers int) ([]streamResult, error)) error {
	var packets, writerAllocs, readerAllocs, read uint64
	for range streamRounds {
		alone, err := round(reference, 0)
		if err != nil {
			return err
		}
		parallel, err := round(reference, s.Readers)
		if err != nil {
			return err
		}
		got, err := round(ring, s.Readers)
		if err != nil {
			return err
		}
		s.Memcpy += bytesASecond(alone) / streamRounds
		s.Parallel += bytesASecond(parallel) / streamRounds
		s.Ring += bytesASecond(got) / streamRounds
		s.Delivered += bytesASecond(got[1:]) / streamRounds
		packets += got[0].Packets
		writerAllocs += got[0].Allocs
		for _, r := range got[1:] {
			s.Lost += r.Lost
			readerAllocs += r.Allocs
			read += r.Packets
		}
	}
	s.Packets = read / uint64(s.Readers)
	s.PacketsASecond = float64(packets) / duration.Seconds()
	s.WriterAllocs = float64(writerAllocs) / float64(max(packets, 1))
	s.ReaderAllocs = float64(readerAllocs) / float64(max(read, 1))
	s.Ratio, s.ParallelRatio = s.Delivered/s.Memcpy, s.Ring/s.Parallel
	return nil
}

func bytesASecond(results []streamResult) (sum float64) {
	for _, r := range results {
		sum += float64(r.Bytes) / (float64(r.Nanos) / 1e9)
	}
	return sum
}

// rounds makes the names of one round's segments differ from those of the last.
var rounds atomic.Int64

// streamRound runs one writer and the readers of a kind for d; the writer's result comes first. arg is what the process of a reader (or
// of the writer, -1) is told.
func (o Packets) streamRound(ctx context.Context, kind string, readers int, d time.Duration,
	arg func(b *board, key string, reader int) any) ([]streamResult, error) {
	b, err := newBoard()
	if err != nil {
		return nil, err
	}
	defer b.seg.Close()
	key := fmt.Sprintf("bench-%d-%d", os.Getpid(), rounds.Add(1))
	procs := make([]*process, readers+1)
	defer func() { kill(procs...) }()
	for i := range procs {
		role := kind + "-reader"
		if i == 0 {
			role = kind + "-writer"
		}
		if procs[i], err = o.start(ctx, role, arg(b, key, i-1)); err != nil {
			return nil, err
		}
		if err := b.await(ctx, i+1, procs[i]); err != nil {
			return nil, err
		}
	}
	b.set(lineGo, 1)
	if err := pause(ctx, d); err != nil {
		return nil, err
	}
	b.set(lineGo, 2)
	results := make([]streamResult, len(procs))
	for i, p := range procs {
		if err := p.result(&results[i]); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// streamLeast is what a stream should reach of its reference.
const streamLeast = 0.6

// goal is what reaches the readers, against the memory's bandwidth.
func (s *Stream) goal() Goal {
	if s.InPlace {
		return atLeast("stream in place: delivered, × memcpy", s.Ratio, streamLeast)
	}
	return atLeast("stream: delivered, × memcpy", s.Ratio, streamLeast)
}

// write prints the stream as a table; unit is what it is made of.
func (s *Stream) write(out io.Writer, unit string) {
	delivered, moved := "copied out", "copied"
	if s.InPlace {
		delivered, moved = "looked at where it lies, every byte", "copied in or looked at"
	}
	fmt.Fprintf(out, "\nSTREAM: 1 writer, %d readers, %ss of %d KiB, no loss allowed (%d lost). Delivered: what the readers %s;\n"+
		"memcpy: one process that copies alone; parallel: %d processes that do the same and do not wait for each other, against all that\n"+
		"the stream %s.\n", s.Readers, unit, s.Size>>10, s.Lost, delivered, s.Readers+1, moved)
	fmt.Fprintf(out, "%ss/s\tdelivered\tmemcpy\tratio\tall\tparallel\tratio\tallocations per %s\n", unit, unit)
	fmt.Fprintf(out, "%.0f\t%.2f GB/s\t%.2f GB/s\t%.2f\t%.2f GB/s\t%.2f GB/s\t%.2f\twriter %.4f, reader %.4f\n", s.PacketsASecond,
		s.Delivered/1e9, s.Memcpy/1e9, s.Ratio, s.Ring/1e9, s.Parallel/1e9, s.ParallelRatio, s.WriterAllocs, s.ReaderAllocs)
}
