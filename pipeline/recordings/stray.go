package recordings

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cfpipe/cfpipe/mux"
)

// Stray is what lies under a name of a key that no place is of: that of a camera which is recorded no longer, or by somebody else.
type Stray struct {
	Dir, Key string // Dir is the folder that the names of all keys begin with
	Files    int
	Bytes    int64
}

// Strays finds files that patterns with %{key} have made for some key and that are of none of places. It reads the folders below the patterns' fixed
// part, sorted by folder and key; what it cannot read is passed over. With ctx's error it returns what it had found until then.
func Strays(ctx context.Context, patterns []string, places []Place) (found []Stray, err error) {
	roots := map[string][]mux.Files{}
	slices.Sort(patterns)
	for _, pattern := range slices.Compact(patterns) {
		if f, ok := mux.FilesOfAnyKey(pattern); ok {
			roots[f.Dir] = append(roots[f.Dir], f)
		}
	}
	byKey := map[string][]*Place{}
	for i := range places {
		byKey[places[i].Key] = append(byKey[places[i].Key], &places[i])
	}
	for dir, files := range roots {
		strays := map[string]*Stray{}
		err = errors.Join(err, walkPlain(ctx, dir, func(path string, d fs.DirEntry) {
			key := keyIn(files, path)
			if key == "" || slices.ContainsFunc(byKey[key], func(p *Place) bool { return p.has(path) }) ||
				slices.ContainsFunc(places, func(p Place) bool { return p.holds(path) && p.has(path) }) { // a name with several readings
				return
			}
			info, err := d.Info()
			if err != nil {
				return
			}
			if strays[key] == nil {
				strays[key] = &Stray{Dir: dir, Key: key}
			}
			strays[key].Files++
			strays[key].Bytes += info.Size()
		}))
		for _, s := range strays {
			found = append(found, *s)
		}
	}
	slices.SortFunc(found, func(a, b Stray) int { return cmp.Or(cmp.Compare(a.Dir, b.Dir), cmp.Compare(a.Key, b.Key)) })
	return found, err
}

func keyIn(files []mux.Files, path string) string {
	for _, f := range files {
		if key := f.KeyOf(path); key != "" {
			return key
		}
	}
	return ""
}

// walkPlain shows each plain file below a folder to f, links excepted, until ctx ends, whose error it returns.
func walkPlain(ctx context.Context, dir string, f func(path string, d fs.DirEntry)) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			f(filepath.Join(dir, name), d)
		}
		return ctx.Err()
	})
}
