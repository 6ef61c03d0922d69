package recordings

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/cfpipe/cfpipe/internal/shm"
)

const (
	// application marks a database as an index of recordings: "cfrx".
	application = 0x63667278
	// version is that of the tables. An older index is made anew, a newer one belongs to a newer program.
	version = 1
	// busyTimeout is how long to wait for another process that writes.
	busyTimeout = 5 * time.Second
)

// Times are Unix ns, counts that are not known are NULL.
const schema = `
CREATE TABLE files (
	path TEXT PRIMARY KEY, key TEXT NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER NOT NULL,
	packets INTEGER, keyframes INTEGER, lost INTEGER, video INTEGER NOT NULL, audio INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
	cause TEXT NOT NULL, finished INTEGER NOT NULL, modified INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX files_by_time ON files (key, start);
`

var (
	// ErrNewer says that an index was made by a newer version of this program.
	ErrNewer = errors.New("the index was made by a newer cfpipe")
	// ErrForeign says that a file is a database, but no index of recordings.
	ErrForeign = errors.New("this database is no index of recordings")
	// ErrDamaged says that an index cannot be read.
	ErrDamaged = errors.New("the index is damaged")
)

// Index is an index of recordings in a file. Safe for concurrent use.
type Index struct {
	db   *sql.DB
	path string
}

// OpenIndex opens an index to read it. It Is fs.ErrNotExist where there is none, ErrDamaged, ErrForeign or ErrNewer.
func OpenIndex(path string) (*Index, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("index %s: %w", path, err)
	}
	mode := "ro"
	if quiet(path) {
		mode = "immutable"
	}
	x, err := open(path, mode)
	if err != nil {
		return nil, err
	}
	v, err := x.check()
	if err == nil && v == 0 {
		err = fmt.Errorf("%w: it is empty", ErrDamaged)
	}
	if err != nil {
		x.Close()
		return nil, fmt.Errorf("index %s: %w", path, err)
	}
	return x, nil
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
		x, err := open(path, "rwc")
		if err != nil {
			return nil, false, err
		}
		var v int
		if v, err = x.check(); err == nil && v == version {
			err = x.quickCheck(ctx)
		}
		if err == nil && v == version {
			return x, false, nil
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
		aside, moveErr := moveAside(path)
		if moveErr != nil {
			return nil, false, fmt.Errorf("index %s: %w; it cannot be moved aside: %w", path, err, moveErr)
		}
		log.Warn("the index of recordings is damaged or old: it was moved aside, and is made anew from the files", "index", path, "moved_to", aside, "error", err)
	}
	return nil, false, fmt.Errorf("index %s: %w", path, ErrDamaged)
}

// placeError is why an index cannot be where it is wanted, with the remedy.
func placeError(path string, err error) error {
	return fmt.Errorf("index %s: %w: name a file where uid %d may write, by index: in the site file or --index", path, err, os.Geteuid())
}

func open(path, mode string) (*Index, error) {
	immutable := mode == "immutable"
	if immutable {
		mode = "ro"
	}
	q := url.Values{"mode": {mode}, "_txlock": {"immediate"}, "_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()), "synchronous(NORMAL)",
	}}
	if immutable {
		q.Set("immutable", "1")
	}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: q.Encode()}).String())
	if err != nil {
		return nil, fmt.Errorf("index %s: %w", path, err)
	}
	db.SetMaxOpenConns(map[string]int{"ro": 4}[mode] + 1)
	return &Index{db: db, path: path}, nil
}

// check returns the version of the tables; 0 = there are none yet.
func (x *Index) check() (v int, err error) {
	if err := checkHeader(x.path); err != nil {
		return 0, err
	}
	var id, tables int
	if err = x.db.QueryRow("PRAGMA application_id").Scan(&id); err == nil {
		if err = x.db.QueryRow("PRAGMA user_version").Scan(&v); err == nil {
			err = x.db.QueryRow("SELECT count(*) FROM sqlite_master").Scan(&tables)
		}
	}
	switch {
	case err != nil:
		return 0, damaged(err)
	case id != application && tables > 0:
		return v, ErrForeign
	case v > version:
		return v, fmt.Errorf("%w: version %d, this one knows %d", ErrNewer, v, version)
	case tables == 0:
		return 0, nil
	}
	return v, nil
}

// checkHeader finds files that are no database before SQLite writes to them.
func checkHeader(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var head [16]byte
	n, err := io.ReadFull(f, head[:])
	if n == 0 && errors.Is(err, io.EOF) {
		return nil
	}
	if !bytes.Equal(head[:n], []byte("SQLite format 3\x00")) {
		return fmt.Errorf("%w: it is no database", ErrDamaged)
	}
	return nil
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
	for _, text := range []string{
		"PRAGMA journal_mode=WAL", schema, fmt.Sprintf("PRAGMA application_id=%d", application), fmt.Sprintf("PRAGMA user_version=%d", version),
	} {
		if _, err := x.db.ExecContext(ctx, text); err != nil {
			return damaged(err)
		}
	}
	return nil
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

// moveAside renames a database and what belongs to it.
func moveAside(path string) (string, error) {
	aside := path + ".damaged-" + time.Now().UTC().Format("20060102-150405.000")
	if err := os.Rename(path, aside); err != nil {
		return "", err
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return aside, nil
}

// Close frees the index. Idempotent.
func (x *Index) Close() error { return x.db.Close() }

const columns = "path, key, start, end, bytes, packets, keyframes, lost, video, audio, width, height, cause, finished, modified"

// List returns the files that match, by key and time. Files that are gone are left out; those that are being written, or were cut off, are asked
// how far they are now.
func (x *Index) List(ctx context.Context, q Query) ([]File, error) {
	list, err := x.rows(ctx, q)
	if err != nil {
		return nil, err
	}
	return current(ctx, list, q), ctx.Err()
}

// current is what is true of files now that an index told of.
func current(ctx context.Context, list []File, q Query) []File {
	n := 0
	for _, f := range present(list) {
		if !f.Finished {
			f.update(ctx)
		}
		if q.matches(&f) {
			list[n] = f
			n++
		}
	}
	return list[:n]
}

// rows returns what the index says. Files that are not finished have grown since: their end is no reason to leave them out.
func (x *Index) rows(ctx context.Context, q Query) ([]File, error) {
	where, args := []string{"1"}, []any{}
	if len(q.Keys) > 0 {
		marks := make([]string, len(q.Keys))
		for i, k := range q.Keys {
			marks[i] = "?"
			args = append(args, k)
		}
		where = append(where, "key IN ("+strings.Join(marks, ",")+")")
	}
	if !q.To.IsZero() {
		where, args = append(where, "start < ?"), append(args, q.To.UnixNano())
	}
	if !q.From.IsZero() {
		where, args = append(where, "(end > ? OR finished = 0)"), append(args, q.From.UnixNano())
	}
	rows, err := x.db.QueryContext(ctx, "SELECT "+columns+" FROM files WHERE "+strings.Join(where, " AND ")+" ORDER BY key, start, path", args...)
	if err != nil {
		return nil, x.failed("list", err)
	}
	defer rows.Close()
	var list []File
	for rows.Next() {
		var f File
		var start, end, modified int64
		var packets, keyframes, lost sql.NullInt64
		if err := rows.Scan(&f.Path, &f.Key, &start, &end, &f.Bytes, &packets, &keyframes, &lost, &f.Video, &f.Audio, &f.Width, &f.Height, &f.Cause, &f.Finished,
			&modified); err != nil {
			return nil, fmt.Errorf("index %s: list: %w: %w", x.path, ErrDamaged, err)
		}
		f.Start, f.End, f.Modified = time.Unix(0, start).UTC(), time.Unix(0, end).UTC(), time.Unix(0, modified)
		f.Packets, f.Keyframes, f.Lost = known(packets), known(keyframes), known(lost)
		list = append(list, f)
	}
	return list, x.failed("list", rows.Err())
}

// spans returns from when until when there are files of each key, sorted.
func (x *Index) spans(ctx context.Context) (spans []Span, err error) {
	rows, err := x.db.QueryContext(ctx, "SELECT key, min(start) FROM files GROUP BY key ORDER BY key")
	if err != nil {
		return nil, x.failed("list", err)
	}
	defer rows.Close()
	for rows.Next() {
		var s Span
		var from int64
		if err := rows.Scan(&s.Key, &from); err != nil {
			return nil, x.failed("list", err)
		}
		s.From = time.Unix(0, from).UTC()
		spans = append(spans, s)
	}
	if err := rows.Err(); err != nil {
		return nil, x.failed("list", err)
	}
	for i := range spans {
		newest := File{Key: spans[i].Key}
		var end int64
		err := x.db.QueryRowContext(ctx, "SELECT path, end, finished FROM files WHERE key = ? ORDER BY start DESC LIMIT 1", newest.Key).Scan(&newest.Path, &end, &newest.Finished)
		if err != nil {
			return nil, x.failed("list", err)
		}
		if newest.End = time.Unix(0, end).UTC(); !newest.Finished {
			newest.update(ctx)
		}
		spans[i].To = newest.End
	}
	return spans, nil
}

func known(n sql.NullInt64) int64 {
	if !n.Valid {
		return Unknown
	}
	return n.Int64
}

func (x *Index) failed(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("index %s: %s: %w", x.path, op, damaged(err))
}

// change is a file that is there now, or one that is gone.
type change struct {
	File
	gone bool
}

// apply writes changes in one step.
func (x *Index) apply(ctx context.Context, changes []change) error {
	tx, err := x.db.BeginTx(ctx, nil)
	if err != nil {
		return x.failed("write", err)
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	for _, c := range changes {
		if c.gone {
			_, err = tx.ExecContext(ctx, "DELETE FROM files WHERE path = ?", c.Path)
		} else {
			_, err = tx.ExecContext(ctx, "INSERT OR REPLACE INTO files ("+columns+") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", c.Path, c.Key, c.Start.UnixNano(),
				c.End.UnixNano(), c.Bytes, null(c.Packets), null(c.Keyframes), null(c.Lost), c.Video, c.Audio, c.Width, c.Height, c.Cause, c.Finished, c.Modified.UnixNano())
		}
		if err != nil {
			return x.failed("write", err)
		}
	}
	return x.failed("write", tx.Commit())
}

func null(n int64) any {
	if n < 0 {
		return nil
	}
	return n
}

// Has says whether the index knows a file as one of key.
func (x *Index) Has(ctx context.Context, key, path string) (bool, error) {
	var n int
	err := x.db.QueryRowContext(ctx, "SELECT count(*) FROM files WHERE path = ? AND key = ?", path, key).Scan(&n)
	return n > 0, x.failed("look up", err)
}
