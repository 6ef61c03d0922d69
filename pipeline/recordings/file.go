// Package recordings knows what is recorded: it keeps an index of the files that recorders write, finds what was recorded at a time, and joins
// it into one file.
//
// The files are the truth and the index a copy of what they say: it may be deleted, damaged or old at any time and is made anew from them.
package recordings

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/mux"
)

// Unknown stands for a count that only a reader of the whole file could tell: of Matroska and transport streams that were not finished, and whose
// recorder's word was lost.
const Unknown = -1

// File is a recorded file.
type File struct {
	Key           string
	Path          string // absolute
	Start, End    time.Time
	Bytes         int64
	Packets       int64 // access units of video, or Unknown
	Keyframes     int64 // or Unknown
	Lost          int64 // access units that were published and are in no file, here or in front of it; Unknown of one that was cut off, after a rebuild
	Video, Audio  uint32
	Width, Height int
	Cause         string // mux.CauseContinuous, or the event that began it: mux.CauseEvent and more
	Finished      bool   // complete; else it is being written or was cut off

	Open     bool      // it is being written now
	Modified time.Time // when the file system says it was written last

	root string // the folder of its place, which no link leads out of; "" = that of the file
}

// FileOf is a file as its recorder reports it.
func FileOf(key string, s mux.Segment) File {
	f := File{
		Key: key, Path: s.Path, Start: s.Start.UTC(), End: s.End.UTC(), Bytes: s.Bytes, Packets: int64(s.Packets), Keyframes: int64(s.Keyframes), Lost: int64(s.Lost),
		Video: s.Video, Audio: s.Audio, Width: s.Width, Height: s.Height, Cause: s.Cause, Finished: s.Err == nil,
	}
	if f.Cause == "" {
		f.Cause = mux.CauseContinuous
	}
	return f
}

// Codecs names what is in the file, such as "h264+aac".
func (f *File) Codecs() string {
	if f.Video == 0 {
		return ""
	}
	if f.Audio == 0 {
		return media.CodecName(f.Video)
	}
	return media.CodecName(f.Video) + "+" + media.CodecName(f.Audio)
}

// State is finished, recording, or cut for a file whose recorder did not come to its end.
func (f *File) State() string {
	switch {
	case f.Finished:
		return "finished"
	case f.Open:
		return "recording"
	}
	return "cut"
}

// Recording is mux.CauseContinuous or mux.CauseEvent.
func (f *File) Recording() string {
	if strings.HasPrefix(f.Cause, mux.CauseEvent) {
		return mux.CauseEvent
	}
	return mux.CauseContinuous
}

// MarshalJSON writes the file for scripts: counts that are not known are null.
func (f File) MarshalJSON() ([]byte, error) {
	known := func(n int64) *int64 {
		if n < 0 {
			return nil
		}
		return &n
	}
	return json.Marshal(struct {
		Key       string    `json:"key"`
		Path      string    `json:"path"`
		Start     time.Time `json:"start"`
		End       time.Time `json:"end"`
		Duration  float64   `json:"duration"`
		Bytes     int64     `json:"bytes"`
		Packets   *int64    `json:"packets"`
		Keyframes *int64    `json:"keyframes"`
		Lost      *int64    `json:"lost"`
		Codecs    string    `json:"codecs"`
		Width     int       `json:"width"`
		Height    int       `json:"height"`
		Recording string    `json:"recording"`
		Cause     string    `json:"cause"`
		State     string    `json:"state"`
	}{
		f.Key, f.Path, f.Start.UTC(), f.End.UTC(), f.End.Sub(f.Start).Seconds(), f.Bytes, known(f.Packets), known(f.Keyframes), known(f.Lost), f.Codecs(),
		f.Width, f.Height, f.Recording(), f.Cause, f.State(),
	})
}

// read asks the file what it is. With an error only Open is told.
func (p *Place) read(ctx context.Context, f Found) (File, error) {
	file, err := mux.OpenIn(f.root, f.name)
	if err != nil {
		return File{}, err
	}
	defer file.Close()
	open := mux.InUse(file)
	info, err := file.Stat()
	if err != nil {
		return File{}, err
	}
	s, err := mux.Summarize(ctx, file)
	if err != nil {
		return File{Open: open}, err
	}
	x := File{
		Key: s.Key, Path: f.Path, Bytes: info.Size(), Packets: int64(s.Packets), Keyframes: int64(s.Keyframes), Lost: s.Lost,
		Video: s.Video, Audio: s.Audio, Width: s.Width, Height: s.Height, Cause: s.Cause,
		Finished: s.Complete && !open, Open: open, Modified: info.ModTime(),
	}
	if p.Key != "" {
		x.Key = p.Key
	} else if framering.CheckKey(x.Key) != nil { // it says none, or is a file from elsewhere
		x.Key = keyOf(f.name)
	}
	if x.Cause == "" {
		x.Cause = mux.CauseContinuous
	}
	zero := s.Start
	if zero.IsZero() || !countable(zero.Add(s.Begin)) || !countable(zero.Add(s.End)) { // a file of somebody else: it was written last when it ended
		zero = info.ModTime().Add(-s.End)
	}
	x.Start, x.End = zero.Add(s.Begin).UTC(), zero.Add(s.End).UTC()
	return x, nil
}

// keyOf guesses the key of a file that does not say it: the first folder of its name, or the word that its name begins with.
func keyOf(name string) string {
	first, _, folder := strings.Cut(filepath.ToSlash(name), "/")
	if folder {
		return first
	}
	first = strings.TrimSuffix(first, filepath.Ext(first))
	if i := strings.IndexAny(first, "-_ ."); i > 0 {
		first = first[:i]
	}
	return first
}

// Query says which files are meant.
type Query struct {
	Keys     []string  // none = all
	From, To time.Time // files that have something in this span; zero = without bound
	Places   []Place   // none = wherever they lie; an index may be shared, and its rows are believed no further than that
	Limit    int       // of files that an index lists; 0 = none
}

func (q *Query) matches(f *File) bool {
	return (len(q.Keys) == 0 || slices.Contains(q.Keys, f.Key)) && (q.From.IsZero() || f.End.After(q.From)) && (q.To.IsZero() || f.Start.Before(q.To)) &&
		(len(q.Places) == 0 || slices.ContainsFunc(q.Places, func(p Place) bool { return p.owns(f.Key, f.Path) }))
}

// dead says whether a recorder that the index told of ended before it wrote anything that can be read.
func (f *File) dead() bool { return !f.Finished && f.Video == 0 && !f.Open }

// order sorts by key, then by time.
func order(a, b File) int {
	return cmp.Or(cmp.Compare(a.Key, b.Key), a.Start.Compare(b.Start), cmp.Compare(a.Path, b.Path))
}

// Scan reads what lies in places, without an index: every file is asked. progress may be nil.
func Scan(ctx context.Context, places []Place, q Query, progress func(files int)) ([]File, error) {
	var list []File
	seen := map[string]bool{}
	for _, p := range places {
		err := p.Walk(ctx, func(f Found, err error) error {
			if err != nil && f.Path == p.Dir {
				return err
			}
			if err != nil || seen[f.Path] {
				return nil
			}
			seen[f.Path] = true
			x, err := p.read(ctx, f)
			if progress != nil {
				progress(len(seen))
			}
			if err == nil && q.matches(&x) {
				list = append(list, x)
			}
			return ctx.Err() // what cannot be read is no recording
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(list, order)
	return list, nil
}

// within finds the place of a file, beyond whose folder it is never opened; false = it is of none of them.
func (f *File) within(places []Place) bool {
	for _, p := range places {
		if p.owns(f.Key, f.Path) {
			if p.holds(f.Path) {
				f.root = p.Dir
			}
			return true
		}
	}
	return len(places) == 0
}

// at opens the folder beyond which the file does not lie, and says what it is called there.
func (f *File) at() (root *os.Root, name string, err error) {
	dir, name := filepath.Split(f.Path)
	if f.root != "" {
		dir = f.root
		if name, err = filepath.Rel(dir, f.Path); err != nil {
			return nil, "", err
		}
	}
	root, err = os.OpenRoot(dir)
	return root, name, err
}

// update asks an unfinished file how far it is.
func (f *File) update(ctx context.Context) {
	root, name, err := f.at()
	if err != nil {
		return
	}
	defer root.Close()
	p := Place{Key: f.Key, Dir: root.Name()}
	x, err := p.read(ctx, Found{root: root, name: name, Path: f.Path})
	if err != nil {
		f.Open = x.Open
		return
	}
	if x.root = f.root; x.Lost == Unknown {
		x.Lost = f.Lost
	}
	*f = x
}
