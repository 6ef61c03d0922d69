package retention

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// diskPatience is how long the keeper waits for a disk before it looks after the others: one that hangs must not let them run full.
const diskPatience = 3 * time.Second

// disk is a file system on which files are kept. It does one thing at a time for the keeper; while that takes, it is left alone.
type disk struct{ busy atomic.Bool }

// do runs f, which uses the disk of a ledger, in a goroutine of its own. It returns false when f has not come to its end in time, and
// goes on, or could not begin since the disk is still at something else.
func (k *Keeper) do(l *ledger, f func()) bool {
	k.mu.Lock()
	d := l.disk
	k.mu.Unlock()
	if d == nil || !l.busy.CompareAndSwap(false, true) {
		return false
	}
	if !d.busy.CompareAndSwap(false, true) {
		l.busy.Store(false)
		return false
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer l.busy.Store(false)
		defer d.busy.Store(false)
		f()
	}()
	t := time.NewTimer(diskPatience)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		k.log.Warn("a disk does not answer; its recordings are left alone until it does", "folder", l.dir())
		return false
	}
}

// answers says whether the disk of a ledger is known and free for something.
func (k *Keeper) answers(l *ledger) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.disk != nil && !l.disk.busy.Load() && !l.busy.Load() && !l.looking.Load()
}

// look finds out on which disk each ledger's files lie and how much is free there. All are asked at once.
func (k *Keeper) look(ledgers []*ledger) {
	var asked sync.WaitGroup
	for _, l := range ledgers {
		if !l.looking.CompareAndSwap(false, true) {
			continue // it has not answered yet
		}
		asked.Go(func() {
			defer l.looking.Store(false)
			base := existing(l.dir())
			free, size, err := k.space(base)
			var st syscall.Stat_t
			serr := syscall.Stat(base, &st)
			k.mu.Lock()
			defer k.mu.Unlock()
			if l.free, l.diskSize = free, size; err != nil {
				l.free, l.diskSize = -1, 0
			}
			if serr == nil {
				l.disk = k.diskOf(uint64(st.Dev)) //nolint:unconvert // its width depends on the architecture
			}
		})
	}
	done := make(chan struct{})
	go func() {
		asked.Wait()
		close(done)
	}()
	t := time.NewTimer(diskPatience)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// existing is dir, or the folder above it that exists.
func existing(dir string) string {
	for {
		if i, err := os.Stat(dir); err == nil && i.IsDir() {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return dir
		}
		dir = up
	}
}

// space is what a user without privileges may still write into a folder, and the size of its disk.
func space(dir string) (free, size int64, err error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, nil
}

// DiskOf returns the size in bytes and the device of the disk on which a folder lies, or will lie. It blocks as long as the disk does.
func DiskOf(dir string) (size int64, device uint64, err error) {
	dir = existing(dir)
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("disk of %s: %w", dir, err)
	}
	_, size, err = space(dir)
	return size, uint64(st.Dev), err //nolint:unconvert // its width depends on the architecture
}

// canMeet says whether a disk can have so much free space at all.
func (k *Keeper) canMeet(l *ledger, want int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.diskSize <= 0 || want <= l.diskSize
}

// freeOf is the space on the disk of a ledger, if it has answered.
func (k *Keeper) freeOf(l *ledger) (free int64, known bool) {
	if !k.answers(l) {
		return 0, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.free, l.free >= 0
}

// diskOf is for those who hold the keeper's mutex.
func (k *Keeper) diskOf(dev uint64) *disk {
	d := k.disks[dev]
	if d == nil {
		d = &disk{}
		k.disks[dev] = d
	}
	return d
}

// byDisk groups ledgers by where their files lie.
func (k *Keeper) byDisk(ledgers []*ledger) (groups [][]*ledger) {
	k.mu.Lock()
	defer k.mu.Unlock()
	index := map[*disk]int{}
	for _, l := range ledgers {
		if l.disk == nil {
			continue
		}
		i, ok := index[l.disk]
		if !ok {
			i = len(groups)
			index[l.disk] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], l)
	}
	return groups
}
