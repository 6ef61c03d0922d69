package site

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

// noIndex is what index says where there shall be none.
const noIndex = "off"

// Library says where the recordings of a site lie, and their index.
func (c *Config) Library() recordings.Library {
	return recordings.Library{Index: c.indexPath(), Places: c.places()}
}

// indexPath is the file of the index; "" = there is none.
func (c *Config) indexPath() string {
	switch {
	case c.Index == noIndex:
		return ""
	case c.Index != "":
		return c.Index
	}
	if roots := c.roots(); len(roots) > 0 {
		return filepath.Join(roots[0], recordings.IndexName)
	}
	return ""
}

// roots are the folders that the names of recordings begin with: that of the defaults first, so that a camera with a folder of its own does not move
// the index, then those of the cameras.
func (c *Config) roots() (roots []string) {
	var outs []string
	for _, r := range []*Record{c.Defaults.Record, c.Defaults.Events} {
		if r != nil && slices.ContainsFunc(c.recordings(), func(x recording) bool { return x.Out == r.Out }) {
			outs = append(outs, r.Out)
		}
	}
	for _, r := range c.recordings() {
		outs = append(outs, r.Out)
	}
	for _, out := range outs {
		fixed, _, _ := strings.Cut(out, "%")
		if root := filepath.Dir(fixed + "x"); !slices.Contains(roots, root) {
			roots = append(roots, root)
		}
	}
	return roots
}

// formerIndexes are the places where the index of this site may have been before its folders were others.
func (c *Config) formerIndexes() (paths []string) {
	roots := c.roots()
	if len(roots) == 0 {
		return nil
	}
	common := roots[0]
	for _, r := range roots[1:] {
		for common != "/" && r != common && !strings.HasPrefix(r, common+"/") {
			common = filepath.Dir(common)
		}
	}
	for _, root := range append(roots, common) {
		if path := filepath.Join(root, recordings.IndexName); path != c.indexPath() && !slices.Contains(paths, path) {
			paths = append(paths, path)
		}
	}
	return paths
}

// places are the folders of all recordings.
func (c *Config) places() []recordings.Place {
	return placesOf(slices.DeleteFunc(c.fileSets(), func(f fileSet) bool { return f.kind == kindInfer }))
}

// placesOf sorts file sets and returns where each of them lies. A file is that of one set alone: where a key begins with another one, that of the
// longer, and where others of its own key write beside its recordings, that of the others.
func placesOf(sets []fileSet) []recordings.Place {
	slices.SortStableFunc(sets, func(a, b fileSet) int {
		return cmp.Or(cmp.Compare(len(b.key), len(a.key)), cmp.Compare(a.key, b.key), cmp.Compare(a.kind, b.kind))
	})
	places := make([]recordings.Place, len(sets))
	for i, f := range sets {
		places[i], _ = recordings.PlaceOf(f.key, f.out) // checked by Load
	}
	return recordings.Disjoint(places)
}

// CheckIndex says why the site could not keep its index in the file that is there.
func (c *Config) CheckIndex() error {
	if err := recordings.CheckIndex(c.indexPath()); err != nil {
		return &FieldError{File: c.name, Field: "index", Err: err}
	}
	return nil
}

// LoadRecordings reads from a site file where its recordings lie. What is wrong with the rest of the file, such as passwords that this user may not
// read, is no error.
func LoadRecordings(file string) (recordings.Library, error) {
	c, err := loadFor(file, aboutRecordings)
	if err != nil {
		return recordings.Library{}, err
	}
	if lib := c.Library(); len(lib.Places) > 0 {
		return lib, nil
	}
	return recordings.Library{}, &FieldError{File: file, Err: errors.New("nothing is recorded by it")}
}

// aboutRecordings says whether a field has to do with where recordings lie.
func aboutRecordings(path string) bool {
	switch path {
	case "", "index", "cameras":
		return true
	}
	words := strings.Split(path, ".")
	switch words[0] {
	case "defaults":
		words = words[1:]
	case "cameras":
		words = words[min(2, len(words)):]
	default:
		return false
	}
	if len(words) > 0 && words[0] == "sub" {
		words = words[1:]
	}
	return len(words) > 0 && (words[0] == "record" || words[0] == "events")
}

func (d *decoder) checkIndex(c *Config) {
	if c.Index != "" && c.Index != noIndex {
		c.Index = d.beside(c.Index)
		if info, err := os.Stat(c.Index); err == nil && !info.Mode().IsRegular() {
			d.complain("index", "%s is no plain file: want the name of a file for the index, or off", c.Index)
		}
	}
}

// indexer keeps the index of what a site records, where the newest configuration wants it. The zero value with a log is ready; without
// configuration it keeps none.
type indexer struct {
	log *slog.Logger

	mu   sync.Mutex
	w    *recordings.Writer // nil = there is no index
	path string
	end  context.CancelFunc
	done chan struct{}
}

// configure is for one goroutine.
func (x *indexer) configure(c *Config) {
	lib := c.Library()
	x.mu.Lock()
	w, path := x.w, x.path
	x.mu.Unlock()
	if w != nil && path == lib.Index {
		w.SetPlaces(lib.Places)
		return
	}
	x.stop()
	if lib.Index == "" {
		return
	}
	if path != "" && path != lib.Index {
		x.log.Warn("the index of recordings is another file now, and the one before is no longer used", "index", lib.Index, "before", path)
	}
	go x.tellFormer(lib.Index, c.formerIndexes()) // by itself: a disk may hang
	w = recordings.NewWriter(recordings.WriterOptions{Path: lib.Index, Places: lib.Places, Logger: x.log})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	x.mu.Lock()
	x.w, x.path, x.end, x.done = w, lib.Index, cancel, done
	x.mu.Unlock()
}

// tellFormer tells of indexes that are left from when the site had other folders.
func (x *indexer) tellFormer(index string, former []string) {
	for _, path := range former {
		if _, err := os.Lstat(path); err == nil {
			x.log.Warn("the index of recordings is now here, and this site does not use the old one any more: delete it when no other site does",
				"index", index, "old", path)
		}
	}
}

// stop writes what was reported and ends; an index whose disk hangs is left behind.
func (x *indexer) stop() {
	x.mu.Lock()
	w, end, done := x.w, x.end, x.done
	x.w = nil
	x.mu.Unlock()
	if w == nil {
		return
	}
	end()
	select {
	case <-done:
	case <-time.After(pipeline.StopTimeout):
		x.log.Error("the index of recordings does not stop and is left behind")
	}
}

// writer returns the Writer; nil = there is no index.
func (x *indexer) writer() *recordings.Writer {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.w
}

// finished tells the index of a file that a recorder has finished. It does not block.
func (x *indexer) finished(f pipeline.Recorded) {
	if w := x.writer(); w != nil {
		w.Finished(recordings.FileOf(f.Key, f.Segment))
	}
}

// started tells the index of a file that was opened. It does not block.
func (x *indexer) started(s Started) {
	if w := x.writer(); w != nil {
		w.Started(s.Key, s.Path, s.Start, s.Cause)
	}
}

// removed tells the index of a file that retention has removed. It does not block.
func (x *indexer) removed(path string) {
	if w := x.writer(); w != nil {
		w.Removed(path)
	}
}
