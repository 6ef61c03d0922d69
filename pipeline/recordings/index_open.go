package recordings

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// OpenIndex opens an index to read it. It Is fs.ErrNotExist where there is none, ErrDamaged, ErrForeign or ErrNewer.
func OpenIndex(path string) (*Index, error) {
	if err := plainFile(path); err != nil {
		return nil, fmt.Errorf("index %s: %w", path, err)
	}
	x, err := openToRead(path, quiet(path))
	if err != nil {
		return nil, err
	}
	v, err := x.check(context.Background())
	if err == nil && v < oldest {
		err = fmt.Errorf("%w: it is empty or old", ErrDamaged)
	}
	if err != nil {
		x.Close()
		if errors.Is(err, ErrDamaged) {
			opened.doubt(path)
			err = cmp.Or(foreign(path), err)
		}
		return nil, fmt.Errorf("index %s: %w", path, err)
	}
	return x, nil
}

// CheckIndex says why a Writer could not keep an index in a file: it is something else, or cannot be read. One that is damaged is made anew.
func CheckIndex(path string) error {
	if path == "" {
		return nil
	}
	x, err := OpenIndex(path)
	switch {
	case err == nil:
		return x.Close()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrDamaged):
		return nil
	}
	return err
}

// quiet says whether nobody writes an index and all of it is in its file: a writer has a log beside it. SQLite would make one, and shared memory, for
// a reader too, which leaves both behind; and a folder that is not ours to write would have no reader at all.
func quiet(path string) bool {
	_, err := os.Lstat(path + "-wal")
	return errors.Is(err, fs.ErrNotExist)
}

// openWriter opens an index to write it, and makes it where there is none. One that is old is brought up to date; one
// that is damaged, or too old for that, is moved aside, with a word to log.
func openWriter(ctx context.Context, path string, log *slog.Logger) (*Index, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, placeError(path, err)
	}
	if err := shm.Writable(dir); err != nil { // SQLite says neither where nor why
		return nil, placeError(path, fmt.Errorf("write into %s: %w", dir, err))
	}
	for range 2 {
		if err := plainFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("index %s: %w", path, err)
		}
		x, err := openToWrite(path)
		if err != nil {
			return nil, err
		}
		if err = x.prepare(ctx, log); err == nil {
			return x, nil
		}
		x.Close()
		if !errors.Is(err, ErrDamaged) {
			return nil, fmt.Errorf("index %s: %w", path, err)
		}
		if err := moveAside(path, err, log); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("index %s: %w", path, ErrDamaged)
}

// prepare makes the tables of an index where there are none, and brings those of an older version up to date.
func (x *Index) prepare(ctx context.Context, log *slog.Logger) error {
	v, err := x.check(ctx)
	switch {
	case err != nil:
		return err
	case v == 0:
		if info, err := os.Stat(x.path); err == nil && info.Size() > 0 && info.Size() < headSize { // SQLite takes it for an empty one
			return fmt.Errorf("%w: it has no head", ErrDamaged)
		}
		return x.create(ctx)
	case v < oldest:
		return fmt.Errorf("%w: version %d is too old, want %d to %d", ErrDamaged, v, oldest, version)
	}
	if err := x.quickCheck(ctx); err != nil {
		return err
	}
	if v == version {
		return x.writeAhead(ctx)
	}
	log.Info("the index of recordings is brought up to date", "index", x.path, "from_version", v, "to_version", version)
	return x.create(ctx)
}

// placeError is why an index cannot be where it is wanted, with the remedy.
func placeError(path string, err error) error {
	return fmt.Errorf("index %s: %w: name a file where uid %d may write, by index: in the site file or --index", path, err, os.Geteuid())
}

// openToWrite opens an index that one connection writes, and makes it where there is none.
func openToWrite(path string) (*Index, error) { return open(path, url.Values{"mode": {"rwc"}}, 1) }

// openToRead opens an index for several that read at once. quiet says that nobody writes it.
func openToRead(path string, quiet bool) (*Index, error) {
	q := url.Values{"mode": {"ro"}}
	if quiet {
		q.Set("immutable", "1")
	}
	return open(path, q, 5)
}

func open(path string, mode url.Values, conns int) (*Index, error) {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "synchronous(NORMAL)", "trusted_schema(OFF)",
	}}
	maps.Copy(q, mode)
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return nil, fmt.Errorf("index %s: %w", path, err)
	}
	db.SetMaxOpenConns(conns)
	free := opened.add(path)
	return &Index{db: db, path: path, close: sync.OnceValue(func() error {
		defer free()
		return db.Close()
	})}, nil
}

func (x *Index) quickCheck(ctx context.Context) error {
	var text string
	if err := x.db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&text); err != nil {
		return damaged(err)
	}
	if text != "ok" {
		return fmt.Errorf("%w: %.100s", ErrDamaged, text)
	}
	return nil
}

func (x *Index) writeAhead(ctx context.Context) error {
	_, err := x.db.ExecContext(ctx, "PRAGMA journal_mode=WAL")
	return damaged(err)
}

// damaged marks the errors of SQLite that a new file would mend.
func damaged(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) {
		switch e.Code() {
		case sqlite3.SQLITE_IOERR_IN_PAGE, sqlite3.SQLITE_IOERR_SHORT_READ: // it stays that way as long as somebody has it open
			return fmt.Errorf("%w: it was cut off: %w", ErrDamaged, err)
		}
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA:
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		case sqlite3.SQLITE_ERROR: // a table or a column that is not there
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	return err
}
