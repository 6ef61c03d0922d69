package recordings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// reconcile makes the index say what the files do. It returns when that is to be done again: soon, where something could not be read.
func (w *Writer) reconcile(ctx context.Context, x *Index) (again time.Duration, err error) {
	w.missed.Store(false) // before the folders are read: what is dropped from now on may be missed again
	w.mu.Lock()
	places := slices.Clone(w.places)
	w.mu.Unlock()
	begun := time.Now()
	st, err := x.reconcile(ctx, places, nil)
	if err != nil {
		return 0, err
	}
	if st.Read+st.Gone > 0 {
		w.log.Info("the index of recordings was compared with the files", "index", w.o.Path, "files", st.Files, "read", st.Read, "gone", st.Gone, "took",
			time.Since(begun).Round(time.Millisecond))
	}
	if st.Unread > 0 {
		w.log.Warn("recordings cannot be read; the index goes on to say of them what it knows", "index", w.o.Path, "unread", st.Unread, "error", st.Why, "again_in", unreadPace)
		return unreadPace, nil
	}
	return reconcilePace, nil
}

// Reconciled is what a comparison of an index with the files did.
type Reconciled struct {
	Files int // recordings that there are
	Read  int // of them, those that were new or had changed
	Gone  int // rows whose file is gone
	Other int // files that are no recordings

	Unread int   // files and folders that are there and cannot be read: what the index says of them stays
	Why    error // the first of them cannot
}

// unread are the files and folders that are there and cannot be read, by path.
type unread map[string]bool

// hides says whether a file is one of them or lies in one of them.
func (u unread) hides(path string) bool {
	for len(u) > 0 {
		if u[path] {
			return true
		}
		up := filepath.Dir(path)
		if up == path {
			break
		}
		path = up
	}
	return false
}

func (x *Index) reconcile(ctx context.Context, places []Place, progress func(Reconciled)) (st Reconciled, err error) {
	rows, err := x.rows(ctx, Query{}, File{}, 0)
	if err != nil {
		return st, err
	}
	known := make(map[string]File, len(rows))
	for _, f := range rows {
		known[f.Path] = f
	}
	var batch []change
	flush := func(least int) error {
		if len(batch) < least || len(batch) == 0 {
			return nil
		}
		err := x.apply(ctx, batch)
		batch = batch[:0]
		return err
	}
	seen, hidden := map[string]bool{}, unread{}
	miss := func(path string, err error) error {
		hidden[path] = true
		st.Unread, st.Why = len(hidden), cmp.Or(st.Why, err)
		return nil
	}
	for _, p := range places {
		err := p.Walk(ctx, func(f Found, err error) error {
			if err != nil {
				return miss(f.Path, err)
			}
			if seen[f.Path] {
				return nil
			}
			seen[f.Path] = true
			old, ok := known[f.Path]
			if ok && old.Video != 0 && !old.Open && old.Bytes == f.Info.Size() && old.Modified.UnixNano() == f.Info.ModTime().UnixNano() && (p.Key == "" || p.Key == old.Key) {
				st.Files++
				return nil
			}
			now, err := p.read(ctx, f)
			switch {
			case ctx.Err() != nil: // it says nothing of the file
				return ctx.Err()
			case errors.Is(err, fs.ErrNotExist):
				delete(seen, f.Path)
				return nil
			case err != nil && ok && old.Video == 0 && now.Open: // just begun: not a byte to read yet
				return nil
			case err != nil && hides(f.name, err):
				return miss(f.Path, err)
			case err != nil:
				st.Other++
				delete(seen, f.Path)
				return nil
			}
			if ok && now.Lost == Unknown && old.Start.Equal(now.Start) {
				now.Lost = old.Lost
			}
			st.Files++
			st.Read++
			batch = append(batch, change{File: now})
			if progress != nil {
				progress(st)
			}
			return flush(maxBatch)
		})
		if err != nil {
			return st, fmt.Errorf("read the recordings in %s: %w", p.Dir, err)
		}
	}
	for path := range known {
		if seen[path] {
			continue
		}
		_, err := os.Lstat(path)
		if !errors.Is(err, fs.ErrNotExist) && hidden.hides(path) {
			continue
		}
		if err == nil && !slices.ContainsFunc(places, func(p Place) bool { return p.holds(path) && p.has(path) }) {
			continue // of a camera that is no longer in the site file
		}
		st.Gone++
		batch = append(batch, change{File: File{Path: path}, gone: true})
		if err := flush(maxBatch); err != nil {
			return st, err
		}
	}
	return st, flush(1)
}

// Rebuild compares an index with the files once, and makes it where there is none. A running Writer of the same index does no harm.
func Rebuild(ctx context.Context, path string, places []Place, log *slog.Logger, progress func(Reconciled)) (Reconciled, error) {
	x, err := openWriter(ctx, path, log)
	if err != nil {
		return Reconciled{}, err
	}
	defer func() {
		if x != nil {
			x.Close()
		}
	}()
	st, err := x.reconcile(ctx, places, progress)
	if !errors.Is(err, ErrDamaged) || ctx.Err() != nil {
		return st, err
	}
	x.Close()
	if err := moveAside(path, err, log); err != nil {
		return st, err
	}
	if x, err = openWriter(ctx, path, log); err != nil {
		return st, err
	}
	return x.reconcile(ctx, places, progress)
}
