package pipeline

import (
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/mux"
)

// RecordStats are a recorder's running totals.
type RecordStats struct {
	Files     uint64    `json:"files"`           // opened
	Packets   uint64    `json:"packets"`         // access units of video in files; the fragment that is being written is not counted yet
	Lost      uint64    `json:"lost"`            // access units that the ring had passed on before they were read
	Overruns  uint64    `json:"overruns"`        // how often that has happened
	Dropped   uint64    `json:"dropped"`         // access units that were read and that the disk did not take
	Failures  uint64    `json:"failures"`        // errors of the disk
	Failing   bool      `json:"failing"`         // the disk does not take the file now
	Newest    time.Time `json:"newest,omitzero"` // of the newest of Packets; zero = none yet
	FileBytes uint64    `json:"bytes"`           // written into files
	Writes    uint64    `json:"writes"`          // calls of write
	WriteTime Seconds   `json:"write_seconds"`   // spent in them
	Syncs     uint64    `json:"fsyncs"`          // calls of fsync
	SyncTime  Seconds   `json:"fsync_seconds"`   // spent in them
	Slowest   Seconds   `json:"slowest_seconds"` // the longest of these calls
	Busy      Seconds   `json:"busy_seconds"`    // how long the call that runs now has taken; 0 = none runs
	Events    uint64    `json:"events"`          // events begun, of a recorder on events
	Event     bool      `json:"event"`           // one is recorded now
}

// RecordCounter is where a running recorder leaves its counts. The zero value is ready. It goes on counting when it is given to
// another recorder after the first has ended.
type RecordCounter struct {
	// Written by the recorder's goroutine, read by any. Nothing is derived from two of them, so they need no common order.
	files, packets, lost, overruns, dropped, failures atomic.Uint64
	fileBytes, writes, syncs                          atomic.Uint64
	writeTime, syncTime, slowest, newest, busySince   atomic.Int64
	failing, event                                    atomic.Bool
	events                                            atomic.Uint64
}

// Stats may be called at any time from any goroutine.
func (c *RecordCounter) Stats() RecordStats {
	s := RecordStats{
		Files: c.files.Load(), Packets: c.packets.Load(), Lost: c.lost.Load(), Overruns: c.overruns.Load(), Dropped: c.dropped.Load(), Failures: c.failures.Load(),
		Failing: c.failing.Load(), FileBytes: c.fileBytes.Load(), Writes: c.writes.Load(), WriteTime: Seconds(c.writeTime.Load()),
		Events: c.events.Load(), Event: c.event.Load(), Syncs: c.syncs.Load(), SyncTime: Seconds(c.syncTime.Load()), Slowest: Seconds(c.slowest.Load()),
	}
	if n := c.newest.Load(); n != 0 {
		s.Newest = time.Unix(0, n)
	}
	if b := c.busySince.Load(); b != 0 {
		s.Busy = Seconds(time.Since(monotonicStart)) - Seconds(b)
	}
	return s
}

func (c *RecordCounter) opened() {
	c.files.Add(1)
	c.failing.Store(false)
}

// call measures a call into the file system.
func (c *RecordCounter) call(total *atomic.Int64, f func() error) error {
	begun := time.Now()
	c.busySince.Store(max(int64(begun.Sub(monotonicStart)), 1))
	err := f()
	c.busySince.Store(0)
	d := int64(time.Since(begun))
	total.Add(d)
	if d > c.slowest.Load() {
		c.slowest.Store(d)
	}
	return err
}

// timedFile is a file whose calls are measured.
type timedFile struct {
	mux.File
	c *RecordCounter
}

func (f *timedFile) Write(p []byte) (n int, err error) {
	f.c.writes.Add(1)
	err = f.c.call(&f.c.writeTime, func() error {
		n, err = f.File.Write(p)
		return err
	})
	f.c.fileBytes.Add(uint64(n))
	return n, err
}

func (f *timedFile) Sync() error {
	f.c.syncs.Add(1)
	return f.c.call(&f.c.syncTime, f.File.Sync)
}
