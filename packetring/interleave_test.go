package packetring

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// The deterministic scheduler: a reader takes one load a step, and the writer, one store a step, moves in three bursts: in front of the
// reader's first step and at any two points after it, each burst of any length. Every such schedule is run (see sample).
//
// This proves the logic of the order, on memory where stores become visible in order. What the processor may reorder is the
// barriers' part (internal/shm, and the tests with real processes).

// sample is the share of the schedules with a third burst that is run: 1 of 211 under the race detector, which has nothing to find in
// one thread, else all of them.
var sample = map[bool]int{true: 211, false: 1}[raceEnabled && os.Getenv("CFPIPE_SOAK") == ""]

type schedule struct {
	slots, dataSize uint32
	before          int   // packets in the ring at the beginning
	size            []int // payload bytes of packet seq: size[seq % len]
	publish         int   // packets published during the schedule
}

// The geometries differ in what gives out first: slots, bytes, both; packets that wrap around the end of data[] and that do not.
var schedules = []schedule{
	{slots: 3, dataSize: 4096, before: 3, size: []int{8}, publish: 2},          // slots alone
	{slots: 8, dataSize: 24, before: 4, size: []int{8}, publish: 2},            // bytes alone
	{slots: 3, dataSize: 28, before: 3, size: []int{8}, publish: 2},            // both, wrapping
	{slots: 4, dataSize: 40, before: 4, size: []int{4, 16, 8, 12}, publish: 2}, // mixed sizes
	{slots: 1, dataSize: 16, before: 1, size: []int{8}, publish: 2},            // a single slot
	{slots: 2, dataSize: 16, before: 2, size: []int{16, 1}, publish: 2},        // packets as large as the ring
}

func (s schedule) packet(seq uint64) Packet {
	p := stamp(seq)
	p.Data = make([]byte, s.size[seq%uint64(len(s.size))])
	for i := range p.Data {
		p.Data[i] = byte(seq)<<4 | byte(i)
	}
	return p
}

// newModel returns the ring in its first state, a way back to it, and the writer at that point.
func (s schedule) newModel(newWriter func(publication) storer) (r *ring, reset func() storer) {
	r = heapRing(s.slots, s.dataSize, Config{Protocol: 4})
	x := publication{ring: r}
	for range s.before {
		for x.begin(s.packet(x.seq + 1)); x.next(); {
		}
		x.end()
	}
	type image struct {
		global, key, off uint64
		slots            [][6]uint64
		data             []byte
	}
	save := image{r.hdr.globalSeq.Load(), r.hdr.lastKeyframe.Load(), r.hdr.writeOffset.Load(), nil, append([]byte(nil), r.data...)}
	for i := range r.slots {
		l := &r.slots[i]
		save.slots = append(save.slots, [6]uint64{l.seq.Load(), uint64(l.pts.Load()), uint64(l.dts.Load()), l.offset.Load(),
			uint64(l.size.Load()), uint64(l.flags.Load())})
	}
	return r, func() storer {
		r.hdr.globalSeq.Store(save.global)
		r.hdr.lastKeyframe.Store(save.key)
		r.hdr.writeOffset.Store(save.off)
		for i, v := range save.slots {
			l := &r.slots[i]
			l.seq.Store(v[0])
			l.pts.Store(int64(v[1]))
			l.dts.Store(int64(v[2]))
			l.offset.Store(v[3])
			l.size.Store(uint32(v[4]))
			l.flags.Store(uint32(v[5]))
		}
		copy(r.data, save.data)
		return newWriter(x)
	}
}

// explore runs every schedule for every packet in the ring and counts what the reader accepted: whole packets and torn ones.
func (s schedule) explore(newWriter func(publication) storer, newReader func(*ring) (loader, *attempt)) (accepted, torn int, first error) {
	r, reset := s.newModel(newWriter)
	stores, loads := s.length(reset, newReader, r)
	expected := make([]Packet, s.before+1)
	for seq := range expected {
		expected[seq] = s.packet(uint64(seq))
	}
	l, a := newReader(r)
	for seq := r.oldest(uint64(s.before)); seq <= uint64(s.before); seq++ {
		for b0 := 0; b0 <= stores; b0++ {
			for at1 := 1; at1 <= loads; at1++ {
				for at2 := at1; at2 <= loads; at2++ {
					for b1 := 0; b0+b1 <= stores; b1++ {
						for b2 := 0; b0+b1+b2 <= stores; b2++ {
							if (at1 == at2) != (b2 == 0) {
								continue // the same as another schedule
							}
							if b2 > 0 && sample > 1 && (b0*31+at1*17+at2*13+b1*7+b2)%sample != 0 {
								continue
							}
							w := &bursts{storer: reset(), s: s, left: s.publish, seq: uint64(s.before)}
							w.run(b0)
							l.begin(seq, false)
							v := going
							for step := 1; v == going; step++ {
								v = l.next()
								if step == at1 {
									w.run(b1)
								}
								if step == at2 {
									w.run(b2)
								}
							}
							if v != whole {
								continue
							}
							accepted++
							if err := sameAs(expected[seq], a); err != nil {
								torn++
								if first == nil {
									first = fmt.Errorf("packet %d, bursts of %d, %d and %d stores at loads 0, %d and %d: %w", seq, b0, b1, b2, at1, at2, err)
								}
							}
						}
					}
				}
			}
		}
	}
	return accepted, torn, first
}

func sameAs(want Packet, a *attempt) error {
	if a.d.pts != want.PTS || a.d.dts != want.DTS || Flags(a.d.flags) != want.Flags || string(a.dst) != string(want.Data) {
		return fmt.Errorf("torn: %+v %x, want %+v", a.d, a.dst, want)
	}
	return nil
}

// length returns how many steps the writer takes for its packets, and the reader for the longest one.
func (s schedule) length(reset func() storer, newReader func(*ring) (loader, *attempt), r *ring) (stores, loads int) {
	w := &bursts{storer: reset(), s: s, left: s.publish, seq: uint64(s.before)}
	for w.run(1) {
		stores++
	}
	reset()
	l, _ := newReader(r)
	for seq := r.oldest(uint64(s.before)); seq <= uint64(s.before); seq++ {
		l.begin(seq, false)
		n := 1
		for l.next() == going {
			n++
		}
		loads = max(loads, n)
	}
	return stores, loads
}

// bursts runs a writer some steps at a time.
type bursts struct {
	storer
	s    schedule
	left int
	seq  uint64
	busy bool
}

// run takes n steps and tells whether there was one left to take.
func (b *bursts) run(n int) bool {
	for range n {
		if !b.busy {
			if b.left == 0 {
				return false
			}
			b.left--
			b.seq++
			b.begin(b.s.packet(b.seq))
			b.busy = true
		}
		if !b.next() {
			b.end()
			b.busy = false
		}
	}
	return true
}

const modelChunk = 4 // payload bytes a step

func ourWriter(x publication) storer { x.chunk = modelChunk; return &x }

func naiveWriter(x publication) storer { x.chunk = modelChunk; return &naivePublication{x} }

func ourReader(foreign bool) func(*ring) (loader, *attempt) {
	return func(r *ring) (loader, *attempt) {
		a := newAttempt(r, 1<<20, foreign)
		a.chunk = modelChunk
		return &a, &a
	}
}

func naiveReader(r *ring) (loader, *attempt) {
	n := &naiveAttempt{newAttempt(r, 1<<20, false)}
	n.chunk = modelChunk
	return n, &n.attempt
}

// Whatever the schedule, a reader accepts no packet of ours that is not whole.
func TestEverySchedule(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	for _, s := range schedules {
		accepted, torn, err := s.explore(ourWriter, ourReader(false))
		require.NoError(t, err, "%+v: %d of %d torn", s, torn, accepted)
		require.NotZero(t, accepted, "%+v", s)
	}
}

// With room for a packet in flight, it accepts none of a writer that follows the specification either; without that room it would.
func TestEveryScheduleOfANaiveWriter(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	unprotected := 0
	for _, s := range schedules {
		accepted, torn, err := s.explore(naiveWriter, ourReader(true))
		require.NoError(t, err, "%+v: %d of %d torn", s, torn, accepted)
		if s.slots > 2 {
			require.NotZero(t, accepted, "%+v", s)
		}
		_, torn, _ = s.explore(naiveWriter, ourReader(false))
		unprotected += torn
	}
	require.NotZero(t, unprotected, "the schedules do not find what they look for")
}

// The specification's reader is not safe on any writer: it has no look at the cursor. Our order of stores spares it torn fields alone.
func TestEveryScheduleOfANaiveReader(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	for _, s := range schedules[:2] {
		accepted, torn, err := s.explore(ourWriter, naiveReader)
		t.Logf("naive reader, our writer: %+v: %d of %d accepted packets torn (%v)", s, torn, accepted, err)
		if s.dataSize == 4096 {
			require.NoError(t, err, "where slots give out first, our order protects it")
		}
		accepted, torn, _ = s.explore(naiveWriter, naiveReader)
		t.Logf("naive reader, naive writer: %d of %d", torn, accepted)
	}
}

// mutant stores in another order than ours.
type mutant struct {
	publication
	order []int // of the steps
	i     int
}

func (m *mutant) begin(p Packet) { m.publication.begin(p); m.i = 0 }

func (m *mutant) next() bool {
	step := m.order[m.i]
	m.step = step
	m.publication.next()
	if step != 3 || m.done == len(m.p.Data) { // the payload takes several steps
		m.i++
	}
	return m.i < len(m.order)
}

// Every step of the order is needed: the schedules find what goes wrong without it.
func TestScheduleFindsMutants(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	for name, order := range map[string][]int{
		"slot not invalidated":      {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
		"slot invalidated late":     {1, 2, 3, 4, 5, 6, 0, 7, 8, 9, 10, 11},
		"cursor behind the payload": {0, 2, 3, 1, 4, 5, 6, 7, 8, 9, 10, 11},
	} {
		torn := 0
		for _, s := range schedules {
			_, n, _ := s.explore(func(x publication) storer { x.chunk = modelChunk; return &mutant{publication: x, order: order} }, ourReader(false))
			torn += n
			if torn > 0 {
				break
			}
		}
		require.NotZero(t, torn, name)
	}
}
