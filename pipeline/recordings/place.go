package recordings

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/mux"
)

// Place is where recordings lie: the files of one folder whose names a recorder's pattern gives, or which have a recording's extension. Nothing outside of
// the folder is looked at, whatever links stand in it.
type Place struct {
	Key     string // of all files here; "" = what each of them says
	Dir     string // absolute
	Pattern string // that names the files; "" = all that have a recording's extension are meant

	files  mux.Files   // of the pattern
	others []mux.Files // whose files are not of this place, though their names fit: see Disjoint
}

// PlaceOf is where a recorder of key writes the files of a pattern.
func PlaceOf(key, pattern string) (Place, error) {
	pattern, err := filepath.Abs(pattern)
	if err != nil {
		return Place{}, err
	}
	p, err := mux.ParsePattern(pattern, key)
	if err != nil {
		return Place{}, err
	}
	files := p.Files()
	return Place{Key: key, Dir: files.Dir, Pattern: pattern, files: files}, nil
}

// Folder is a place of recordings of any keys, which their files or else the folders in it name.
func Folder(dir string) (Place, error) {
	dir, err := filepath.Abs(dir)
	return Place{Dir: dir}, err
}

// Disjoint makes a file whose name fits several places with patterns one of the first of them alone.
func Disjoint(places []Place) []Place {
	places = slices.Clone(places)
	for i := range places {
		p := &places[i]
		p.others = nil
		for _, o := range places[:i] {
			if within(o.Dir, p.Dir) || within(p.Dir, o.Dir) { // else no file fits both
				p.others = append(p.others, o.files)
			}
		}
	}
	return places
}

// within says whether a folder is root or lies in it; both are clean.
func within(dir, root string) bool {
	return dir == root || strings.HasPrefix(dir, strings.TrimSuffix(root, "/")+"/")
}

func (p *Place) has(path string) bool {
	if p.Pattern != "" {
		return p.files.Match(path) && !slices.ContainsFunc(p.others, func(o mux.Files) bool { return o.Match(path) })
	}
	switch strings.ToLower(filepath.Ext(path)) {
	case ".mp4", ".m4v", ".fmp4", ".mkv", ".ts":
		return true
	}
	return false
}

// holds says whether a path, which need not be clean, lies in the place's folder.
func (p *Place) holds(path string) bool {
	rel, err := filepath.Rel(p.Dir, path)
	return err == nil && filepath.IsLocal(rel)
}

// owns says whether a file of key is one of this place. A folder of any keys is not that strict: it may be known under other names.
func (p *Place) owns(key, path string) bool {
	return p.Key == "" || p.Key == key && p.holds(path) && p.has(path)
}

// Name is what a file of this place is called within it; ok is false for one that is not of this place.
func (p *Place) Name(path string) (name string, ok bool) {
	rel, err := filepath.Rel(p.Dir, path)
	return filepath.ToSlash(rel), err == nil && filepath.IsLocal(rel) && p.has(path)
}

// Found is a plain file of a place as its folder shows it. It is for the call that it is shown to.
type Found struct {
	Path string
	Info fs.FileInfo
	root *os.Root
	name string // below the root
}

// Walk shows each plain file of a place to f, until f fails or ctx ends, and returns why it ended early. A place that does not exist yet is empty. What
// went away meanwhile, and what lies below the folder and is not ours to read, is passed over. Of any other error, which may hide files, f is told
// with the path of what cannot be read instead of a file: that of the place's own folder, where it is that.
func (p *Place) Walk(ctx context.Context, f func(Found, error) error) error {
	root, err := os.OpenRoot(p.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return f(Found{Path: p.Dir, name: "."}, err)
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		x := Found{Path: filepath.Join(p.Dir, name), root: root, name: name}
		if err == nil {
			if !d.Type().IsRegular() || !p.has(x.Path) {
				return nil
			}
			x.Info, err = d.Info()
		}
		if err != nil {
			if err = unlessForeign(name, err); err == nil {
				return nil
			}
		}
		return f(x, err)
	})
}

// unlessForeign passes over what went away meanwhile, and what lies below the folder and is not ours to read, such as lost+found. Any other error, of
// the disk or for want of descriptors, hides files that are ours.
func unlessForeign(name string, err error) error {
	foreign := errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO)
	if errors.Is(err, fs.ErrNotExist) || foreign && name != "." {
		return nil
	}
	return err
}

// hides says whether a file could not be read for a reason that says nothing of what is in it: one that Walk would tell of.
func hides(name string, err error) bool {
	var of *fs.PathError // of the file itself: FFmpeg has error numbers of its own
	return errors.As(err, &of) && unlessForeign(name, of) != nil
}

// Closed says whether the file is one of ours that no recorder writes. The error is one that Walk would tell of.
func (f *Found) Closed() (bool, error) {
	file, err := mux.OpenIn(f.root, f.name)
	if err != nil {
		return false, unlessForeign(f.name, err)
	}
	defer file.Close()
	return !mux.InUse(file), nil
}

// openPlain opens a plain file below a root: no link is followed, and no pipe is waited for. Of what is none, the error Is mux.ErrNoRecording.
func openPlain(root *os.Root, name string) (*os.File, error) {
	f, err := mux.OpenIn(root, name)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", f.Name(), mux.ErrNoRecording)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Open opens a file of this place by its Name. No link leads out of the place, and the file itself is none.
func (p *Place) Open(name string) (*os.File, error) {
	name = filepath.FromSlash(name)
	if !filepath.IsLocal(name) || !p.has(filepath.Join(p.Dir, name)) {
		return nil, fs.ErrNotExist
	}
	root, err := os.OpenRoot(p.Dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := openPlain(root, name)
	if errors.Is(err, mux.ErrNoRecording) {
		err = fs.ErrNotExist
	}
	return f, err
}

// ErrSpared says that a file is not one to be removed.
var ErrSpared = errors.New("it is spared")

// Remove removes a file of this place. It returns ErrSpared for what is none, is no plain file, or is being written, and an error that Is
// fs.ErrNotExist where there is no such file.
func (p *Place) Remove(path string) error {
	name, ok := p.Name(path)
	if !ok {
		return ErrSpared
	}
	root, err := os.OpenRoot(p.Dir)
	if err != nil {
		return err
	}
	defer root.Close()
	name = filepath.FromSlash(name)
	f, err := openPlain(root, name)
	if errors.Is(err, mux.ErrNoRecording) {
		return ErrSpared
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if mux.InUse(f) {
		return ErrSpared
	}
	return root.Remove(name)
}

// RemoveEmpty removes a folder below that of this place when nothing has come or gone in it for so long and it is empty. gone says that there is no
// such folder any more, whoever has removed it.
func (p *Place) RemoveEmpty(dir string, after time.Duration) (gone bool) {
	name, err := filepath.Rel(p.Dir, dir)
	if err != nil || name == "." || !filepath.IsLocal(name) {
		return false
	}
	root, err := os.OpenRoot(p.Dir)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer root.Close()
	info, err := root.Lstat(name)
	if err == nil && info.IsDir() && time.Since(info.ModTime()) > after {
		err = root.Remove(name) // fails when something is in it
		return err == nil
	}
	return errors.Is(err, fs.ErrNotExist)
}
