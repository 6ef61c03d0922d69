package packetring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// Real processes: one writer, four readers, payloads that check themselves, rings far smaller than what passes through them.

// soak is how long each of these tests runs: short in `go test`, as long as $CFPIPE_SOAK says in scripts/soak.
func soak(t *testing.T, short time.Duration) time.Duration {
	if s := os.Getenv("CFPIPE_SOAK"); s != "" {
		d, err := time.ParseDuration(s)
		require.NoError(t, err)
		return d
	}
	return short
}

// report is what a reader process prints in the end.
type report struct {
	Stats
	Rings int // rings read to their end
	Torn  int // packets accepted that were not what the writer wrote
	First string
}

func (r *report) check(p Packet) {
	if err := checkPacket(p); err != nil {
		if r.Torn++; r.First == "" {
			r.First = err.Error()
		}
	}
}

func init() {
	// write KEY SLOTS BYTES SEED ours|slow|naive: publishes as fast as it can until its stdin ends, then closes the ring. slow takes
	// its time between any two stores, so that whoever kills it hits it inside a publication.
	roles["write"] = func(args []string) error {
		slots, _ := strconv.Atoi(args[1])
		dataSize, _ := strconv.Atoi(args[2])
		seed, _ := strconv.ParseUint(args[3], 10, 64)
		publish, end, err := openSink(args[0], slots, dataSize, args[4])
		if err != nil {
			return err
		}
		stop := stdinEnds()
		rnd := rand.New(rand.NewPCG(seed, 1))
		var buf []byte
		for seq := uint64(1); ; seq++ {
			if seq%16 == 0 {
				select {
				case <-stop:
					return end()
				default:
				}
			}
			p := stamp(seq)
			buf = payload(buf, seq, sizes(rnd, dataSize/4))
			p.Data = buf
			if err := publish(p); err != nil {
				return err
			}
		}
	}
	// read KEY WAIT: follows the key through the lives of its writers until its stdin ends; prints a report.
	roles["read"] = func(args []string) error {
		wait, _ := strconv.Atoi(args[1])
		var all report
		ctx, cancel := context.WithCancel(context.Background())
		go func() { <-stdinEnds(); cancel() }()
		var last uint64
		for ctx.Err() == nil {
			r, err := Open(shm.Prefix+args[0]+"-packets", ReaderOptions{Wait: Wait(wait)})
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrFormat) || errors.Is(err, shm.ErrTooSmall) {
				time.Sleep(time.Millisecond)
				continue
			}
			if err != nil {
				return err
			}
			if ino := inode(r.seg.File()); ino == last {
				r.Close()
				time.Sleep(time.Millisecond)
				continue
			} else {
				last = ino
			}
			r.wait.longest = 5 * time.Millisecond // deaths come fast here
			err = all.follow(ctx, r)
			r.Close()
			if err != nil {
				return err
			}
		}
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	// naive-read KEY: reads by the specification's pseudo-code until its stdin ends; prints a report.
	roles["naive-read"] = func(args []string) error {
		seg, err := shm.Open(shm.Prefix+args[0]+"-packets", shm.OpenOptions{ReadOnly: true})
		if err != nil {
			return err
		}
		r, err := openRing(seg.Bytes())
		if err != nil {
			return err
		}
		var all report
		a := &naiveAttempt{newAttempt(&r, 1<<30, false)}
		stop := stdinEnds()
		for last := uint64(0); ; {
			select {
			case <-stop:
				return json.NewEncoder(os.Stdout).Encode(all)
			default:
			}
			if r.newest() <= last {
				continue
			}
			a.begin(last+1, false)
			v := going
			for v == going {
				v = a.next()
			}
			if v == missed {
				all.Overruns++
				last = max(r.hdr.lastKeyframe.Load(), 1) - 1
				continue
			}
			last++
			all.Read++
			all.check(Packet{Seq: a.seq, PTS: a.d.pts, DTS: a.d.dts, Flags: Flags(a.d.flags), Data: a.dst})
		}
	}
}

// follow reads a ring to its end and checks the count: every packet between the first and the last was read or lost.
func (r *report) follow(ctx context.Context, rd *Reader) error {
	for {
		p, err := rd.Next(ctx)
		if err == nil {
			r.check(p)
			continue
		}
		s := rd.Stats()
		r.Read += s.Read
		r.Lost += s.Lost
		r.Overruns += s.Overruns
		r.Bytes += s.Bytes
		if errors.Is(err, context.Canceled) {
			if s.Read > 0 && s.Read+s.Lost < s.LastSeq-s.FirstSeq+1 {
				return fmt.Errorf("count: %+v", s)
			}
			return nil
		}
		if !errors.Is(err, ErrShutdown) {
			return err
		}
		r.Rings++
		if s.FirstSeq+s.Read+s.Lost != s.GlobalSeq+1 {
			return fmt.Errorf("count at the end of the ring: %+v", s)
		}
		return nil
	}
}

// openSink returns a writer of ours, or one of the specification's, which neither locks nor wakes.
func openSink(key string, slots, dataSize int, kind string) (publish func(Packet) error, end func() error, err error) {
	if kind != "naive" {
		w, err := Create(key, Config{Slots: slots, DataSize: dataSize})
		if err != nil {
			return nil, nil, err
		}
		if kind == "slow" {
			w.x.chunk = 100
			w.publish = func() {
				for w.x.next() {
					for range 500 {
						shm.Pause()
					}
				}
			}
		}
		return func(p Packet) error { _, err := w.Publish(p); return err }, w.Close, nil
	}
	path := shm.Dir + "/" + shm.Prefix + key + "-packets"
	if err := os.WriteFile(path, make([]byte, fileSize(uint32(slots), uint32(dataSize))), 0o600); err != nil {
		return nil, nil, err
	}
	seg, err := shm.Open(path, shm.OpenOptions{})
	if err != nil {
		return nil, nil, err
	}
	r := layRing(seg.Bytes(), uint32(slots), uint32(dataSize))
	initRing(&r, Config{Protocol: 4})
	x := naivePublication{publication{ring: &r}}
	publish = func(p Packet) error {
		for x.begin(p); x.next(); {
		}
		x.end()
		return nil
	}
	return publish, func() error { r.hdr.shutdown.Store(1); return os.Remove(path) }, nil
}

func stdinEnds() <-chan struct{} {
	c := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(c)
	}()
	return c
}

func inode(f *os.File) uint64 {
	st, err := f.Stat()
	if err != nil {
		return 0
	}
	return st.Sys().(*syscall.Stat_t).Ino
}

// process is a child that ends when its stdin is closed.
type process struct {
	*testenv.Process
	in *os.File
}

func start(t *testing.T, role string, args ...string) *process {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := testenv.Child(role, args...)
	cmd.Stdin = r
	p := &process{testenv.StartCmd(t, cmd), w}
	r.Close()
	t.Cleanup(func() { w.Close() })
	return p
}

// finish ends the process and returns what it reports.
func (p *process) finish(t *testing.T) (r report) {
	t.Helper()
	p.in.Close()
	require.NoError(t, p.WaitFor(t, 30*time.Second), p.Stderr())
	if p.Stdout() != "" {
		require.NoError(t, json.Unmarshal([]byte(p.Stdout()), &r))
	}
	return r
}

func startReaders(t *testing.T, key string, n int) []*process {
	t.Helper()
	readers := make([]*process, n)
	for i := range readers {
		readers[i] = start(t, "read", key, strconv.Itoa(i%2)) // shared and direct; busy ones would starve the rest
	}
	return readers
}

// stall stops and continues processes at random until the time is over.
func stall(rnd *rand.Rand, procs []*process, d, longest time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		p := procs[rnd.IntN(len(procs))]
		_ = p.Process.Process.Signal(syscall.SIGSTOP)
		time.Sleep(time.Duration(rnd.Int64N(int64(longest))))
		_ = p.Process.Process.Signal(syscall.SIGCONT)
		time.Sleep(time.Duration(rnd.IntN(5_000)) * time.Microsecond)
	}
}

// newest reads a ring as a stranger would: its newest seq and its writer's process.
func newest(key string) (seq, pid uint64) {
	_ = view(key, func(r *ring) { seq, pid = r.newest(), r.hdr.producerPID.Load() })
	return seq, pid
}

func written(key string) (bytes uint64) {
	_ = view(key, func(r *ring) { bytes = r.hdr.writeOffset.Load() })
	return bytes
}

func view(key string, f func(r *ring)) error {
	seg, err := shm.Open(shm.Prefix+key+"-packets", shm.OpenOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer seg.Close()
	r, err := openRing(seg.Bytes())
	if err == nil {
		f(&r)
	}
	return err
}

// Readers stalled and resumed at random, the ring wrapping thousands of times: nothing torn, every packet read or counted as lost.
func TestReadersStalled(t *testing.T) {
	testenv.CheckLeaks(t)
	d := soak(t, 2*time.Second)
	testenv.Watchdog(t, d+2*time.Minute)
	for _, kind := range []string{"ours", "naive"} {
		t.Run(kind+" writer", func(t *testing.T) {
			key := uniqueKey(t)
			const dataSize = 32 << 10
			w := start(t, "write", key, "64", strconv.Itoa(dataSize), "1", kind)
			watch(t, "the ring", func() bool { seq, _ := newest(key); return seq > 0 })
			readers := startReaders(t, key, 4)
			rnd := rand.New(rand.NewPCG(1, 2))
			stall(rnd, readers, d, 20*time.Millisecond)
			for written(key)/dataSize <= 2000 { // on a machine that is busy otherwise
				stall(rnd, readers, 100*time.Millisecond, 20*time.Millisecond)
			}
			turns := written(key) / dataSize
			w.finish(t)
			var sum report
			for _, p := range readers {
				r := p.finish(t)
				require.Zero(t, r.Torn, r.First)
				require.NotZero(t, r.Read)
				sum.Read += r.Read
				sum.Lost += r.Lost
				sum.Overruns += r.Overruns
			}
			t.Logf("%d turns of the ring, %d packets read by 4 readers, %d lost in %d overruns, none torn", turns, sum.Read, sum.Lost, sum.Overruns)
			require.NotZero(t, sum.Overruns, "nobody was ever overrun: the test tests nothing")
		})
	}
}

// The writer is killed at random moments, again and again, and comes back: the readers follow it from ring to ring, accept nothing torn
// and lose count of nothing, and no orphan blocks the next writer.
func TestWriterKilled(t *testing.T) {
	testenv.CheckLeaks(t)
	d := soak(t, 0)
	testenv.Watchdog(t, d+3*time.Minute)
	key := uniqueKey(t)
	readers := startReaders(t, key, 4)
	rnd := rand.New(rand.NewPCG(3, 4))
	kills, midPacket := 0, 0
	for end := time.Now().Add(d); kills < 50 || time.Now().Before(end); kills++ {
		w := start(t, "write", key, "32", "16384", strconv.Itoa(kills), []string{"ours", "slow"}[kills%2])
		pid := uint64(w.Process.Process.Pid)
		watch(t, "the ring", func() bool { seq, owner := newest(key); return owner == pid && seq > 20 || exited(w) })
		require.False(t, exited(w), w.Stderr())
		time.Sleep(time.Duration(rnd.IntN(10_000)) * time.Microsecond)
		w.Kill()
		if torn(t, key) {
			midPacket++
		}
		time.Sleep(time.Duration(rnd.IntN(20_000)) * time.Microsecond) // sometimes the readers see the end, sometimes the successor
	}
	require.NotZero(t, midPacket, "no kill has hit a publication")
	// The last orphan is followed by a writer of this process, which closes its ring.
	w := create(t, key, Config{})
	p := stamp(1)
	p.Data = payload(nil, 1, 100)
	_, err := w.Publish(p)
	require.NoError(t, err)
	var sum report
	for _, p := range readers {
		r := p.finish(t)
		require.Zero(t, r.Torn, r.First)
		require.NotZero(t, r.Rings, "no ring was read to its end")
		sum.Rings += r.Rings
		sum.Read += r.Read
		sum.Lost += r.Lost
	}
	t.Logf("%d kills, %d of them inside a publication; 4 readers saw %d rings end, read %d packets and lost %d, none torn",
		kills, midPacket, sum.Rings, sum.Read, sum.Lost)
}

func exited(p *process) bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// torn tells whether the ring's writer died inside a publication: the slot of the packet after the newest is not the oldest packet's.
func torn(t *testing.T, key string) (yes bool) {
	t.Helper()
	require.NoError(t, view(key, func(r *ring) {
		yes = r.at(r.newest()+1).seq.Load() != r.newest()+1-uint64(len(r.slots)) && r.newest() >= uint64(len(r.slots))
	}))
	return yes
}

// A reader that comes after the writer's death reads what is there to its end and is told.
func TestOrphan(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	key := uniqueKey(t)
	w := start(t, "write", key, "32", "16384", "1", "ours")
	watch(t, "the ring", func() bool { seq, _ := newest(key); return seq > 100 })
	w.Kill()
	for _, o := range waits {
		r := open(t, shm.Prefix+key+"-packets", o)
		var all report
		require.NoError(t, all.follow(t.Context(), r))
		require.Equal(t, 1, all.Rings)
		require.Zero(t, all.Torn, all.First)
		_, err := r.Next(t.Context())
		require.ErrorIs(t, err, ErrGone)
	}
	create(t, key, Config{}) // takes the name over, and cleans up
}

// How the specification's reader does on our writer. Our order of stores cannot save it, it never looks at the cursor; what it
// accepts is reported.
func TestNaiveReaderProcess(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	key := uniqueKey(t)
	w := start(t, "write", key, "64", "32768", "1", "ours")
	watch(t, "packets", func() bool { seq, _ := newest(key); return seq > 0 })
	n := start(t, "naive-read", key)
	stall(rand.New(rand.NewPCG(1, 2)), []*process{n}, soak(t, 500*time.Millisecond), 3*time.Millisecond)
	r := n.finish(t)
	w.finish(t)
	require.NotZero(t, r.Read)
	t.Logf("the specification's reader on our writer: %d packets accepted, %d of them torn (%s), %d overruns noticed", r.Read,
		r.Torn, r.First, r.Overruns)
}
