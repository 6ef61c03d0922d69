package site

import (
	"time"

	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/retention"
)

// resultsRescan is when the folders of results are read again: there are few files, and retention is not told of them.
const resultsRescan = time.Minute

// retention says which files are kept, and how many.
func (c *Config) retention() (sets []retention.Set, all retention.Bounds) {
	files := c.fileSets()
	for i, place := range placesOf(files) {
		s := retention.Set{Kind: files[i].kind, Place: place, Keep: files[i].keep.bounds()}
		if s.Kind == kindInfer {
			s.Rescan = resultsRescan
		}
		sets = append(sets, s)
	}
	if c.Retention != nil {
		all = c.Retention.bounds()
	}
	return sets, all
}

func (r Retention) bounds() retention.Bounds {
	return retention.Bounds{Age: time.Duration(r.Age), Size: int64(r.Size), Free: int64(r.Free)}
}

// kept tells retention of a finished file.
func (s *Site) kept(f pipeline.Recorded) {
	kind := kindRecord
	if f.Event != nil {
		kind = kindEvents
	}
	s.keeper.Finished(kind, f.Key, f.Path, f.Bytes)
}
