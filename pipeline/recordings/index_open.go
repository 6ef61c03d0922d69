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
	if err == nil && v != version {
		err = fmt.Errorf("%w: it is empty or old", ErrDamaged)
	}
	if err != nil {
		x.Close()
		if errors.Is(err, ErrDamaged) {
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

// openWriter opens an index to write it, and makes it where there is none. One that is damaged or old is moved aside, with a word to log.
func openWriter(ctx context.Context, path string, log *slog.Logger) (_ *Index, fresh bool, err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, false, placeError(path, err)
	}
	if err := shm.Writable(dir); err != nil { // SQLite says neither where nor why
		return nil, false, placeError(path, fmt.Errorf("write into %s: %w", dir, err))
	}
	for range 2 {
		if err := plainFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, false, fmt.Errorf("index %s: %w", path, err)
		}
		x, err := openToWrite(path)
		if err != nil {
			return nil, false, err
		}
		var v int
		if v, err = x.check(ctx); err == nil && v == version {
			err = x.quickCheck(ctx)
		}
		if err == nil && v == version {
			return x, false, nil
		}
		if info, serr := os.Stat(path); err == nil && v == 0 && serr == nil && info.Size() > 0 && info.Size() < headSize {
			err = fmt.Errorf("%w: it has no head", ErrDamaged) // SQLite takes it for an empty one
		}
		if err == nil && v == 0 {
			if err = x.create(ctx); err == nil {
				return x, true, nil
			}
		}
		x.Close()
		if err == nil { // an older version
			err = fmt.Errorf("%w: version %d, want %d", ErrDamaged, v, version)
		}
		if !errors.Is(err, ErrDamaged) {
			return nil, false, fmt.Errorf("index %s: %w", path, err)
		}
		if err := moveAside(path, err, log); err != nil {
			return nil, false, err
		}
	}
	return nil, false, fmt.Errorf("index %s: %w", path, ErrDamaged)
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

// check returns the version of the tables; 0 = there are none yet. Where somebody has put other tables, views or triggers into an index, it is damaged.
func (x *Index) check(ctx context.Context) (v int, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var id int
	var tables map[string]string
	if err = x.db.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err == nil {
		if err = x.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v); err == nil {
			tables, err = x.tables(ctx)
		}
	}
	switch {
	case err != nil:
		return 0, damaged(err)
	case id != application && len(tables) > 0:
		return v, ErrForeign
	case v > version:
		return v, fmt.Errorf("%w: version %d, this one knows %d", ErrNewer, v, version)
	case len(tables) == 0:
		return 0, nil
	case v == version && !maps.Equal(tables, map[string]string{"files": "CREATE TABLE " + filesTable, "files_by_time": "CREATE INDEX " + filesByTime}):
		return v, fmt.Errorf("%w: its tables are not those of an index", ErrDamaged)
	}
	return v, nil
}

// tables returns what sqlite_master says, but for SQLite's own statistics.
func (x *Index) tables(ctx context.Context) (map[string]string, error) {
	rows, err := x.db.QueryContext(ctx, `SELECT name, coalesce(sql, '') FROM sqlite_master WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\' LIMIT 10`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	tables := map[string]string{}
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		tables[name] = text
	}
	return tables, rows.Err()
}

func (x *Index) quickCheck(ctx context.Context) error {
	var text string
	if err := x.db.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&text); err != nil {
		return damaged(err)
	}
	if text != "ok" {
		return fmt.Errorf("%w: %.100s", ErrDamaged, text)
	}
	_, err := x.db.ExecContext(ctx, "PRAGMA journal_mode=WAL")
	return damaged(err)
}

func (x *Index) create(ctx context.Context) error {
	_, err := x.db.ExecContext(ctx, "PRAGMA journal_mode=WAL")
	if err == nil { // in one step: a file that has tables says whose they are
		_, err = x.db.ExecContext(ctx, fmt.Sprintf("BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS %s; CREATE INDEX IF NOT EXISTS %s; PRAGMA application_id=%d; "+
			"PRAGMA user_version=%d; COMMIT", filesTable, filesByTime, application, version))
	}
	return damaged(err)
}

// damaged marks the errors of SQLite that a new file would mend.
func damaged(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) {
		switch e.Code() & 0xff {
		case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA:
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		case sqlite3.SQLITE_ERROR: // a table or a column that is not there
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
	}
	return err
}
