package recordings

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

const (
	// application marks a database as an index of recordings: "cfrx".
	application = 0x63667278
	// version is that of the tables. An older index is made anew, a newer one belongs to a newer program.
	version = 2
	// busyTimeout is how long to wait for another process that writes.
	busyTimeout = 5 * time.Second
	// listTimeout bounds one query: 86,400 rows take less than two seconds.
	listTimeout = 20 * time.Second
	// listPage is the least number of rows asked for at once.
	listPage = 256
)

// Times are Unix ns, counts that are not known are NULL, finished is one of the states below.
// What SQLite keeps of these texts in sqlite_master is compared with them.
const (
	filesTable = `files (
	path TEXT PRIMARY KEY, key TEXT NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER NOT NULL,
	packets INTEGER, keyframes INTEGER, lost INTEGER, video INTEGER NOT NULL, audio INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
	cause TEXT NOT NULL, finished INTEGER NOT NULL, modified INTEGER NOT NULL
) WITHOUT ROWID`
	filesByTime = "files_by_time ON files (key, start)"
)

// What an index says of a file's end.
const (
	stateOpen     = 0 // it is being written, as far as is known: the file itself must be asked
	stateFinished = 1
	stateCut      = 2 // its recorder did not come to its end, and it grows no more
)

func (f *File) indexState() int {
	switch {
	case f.Finished:
		return stateFinished
	case f.Open:
		return stateOpen
	}
	return stateCut
}

var (
	// ErrNewer says that an index was made by a newer version of this program.
	ErrNewer = errors.New("the index was made by a newer cfpipe")
	// ErrForeign says that a file is something else.
	ErrForeign = errors.New("this is no index of recordings: it is left alone")
	// ErrDamaged says that an index cannot be read.
	ErrDamaged = errors.New("the index is damaged")
)

// Index is an index of recordings in a file. Safe for concurrent use.
type Index struct {
	db    *sql.DB
	path  string
	close func() error
}

// Close frees the index. Idempotent.
func (x *Index) Close() error { return x.close() }

const columns = "path, key, start, end, bytes, packets, keyframes, lost, video, audio, width, height, cause, finished, modified"

// List returns the files that match, by key and time. Files that are gone are left out; those that are being written, or have changed since they were
// cut off, are asked how far they are now.
func (x *Index) List(ctx context.Context, q Query) ([]File, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	n := 0 // all rows at once
	if q.Limit > 0 {
		n = max(q.Limit, listPage)
	}
	var list []File
	for after := (File{}); ; {
		page, err := x.rows(ctx, q, after, n)
		if err != nil {
			return nil, err
		}
		whole := len(page) < n || n == 0
		if !whole {
			after = page[n-1]
		}
		list = append(list, current(ctx, page, q)...)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if q.Limit > 0 && len(list) > q.Limit {
			list = list[:q.Limit]
		}
		if whole || len(list) == q.Limit {
			return list, nil
		}
	}
}

// current is what is true of files now that an index told of.
func current(ctx context.Context, list []File, q Query) []File {
	n := 0
	for _, f := range list {
		if ctx.Err() == nil && f.within(q.Places) {
			list[n] = f
			n++
		}
	}
	list, q.Places = list[:n], nil
	n = 0
	for _, f := range list {
		info, err := os.Lstat(f.Path)
		if err != nil || !info.Mode().IsRegular() {
			continue // it is gone
		}
		changed := f.Bytes != info.Size() || !f.Modified.Equal(info.ModTime())
		if f.Open || !f.Finished && changed {
			f.Open = false
			f.update(ctx)
		}
		if !f.dead() && q.matches(&f) {
			list[n] = f
			n++
		}
	}
	return list[:n]
}

// rows returns what the index says, n rows behind that of a file; 0 = all. Files that are being written have grown since: their end is no reason
// to leave them out.
func (x *Index) rows(ctx context.Context, q Query, after File, n int) ([]File, error) {
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
		where, args = append(where, "(end > ? OR finished = ?)"), append(args, q.From.UnixNano(), stateOpen)
	}
	if after.Path != "" {
		where, args = append(where, "(key, start, path) > (?, ?, ?)"), append(args, after.Key, after.Start.UnixNano(), after.Path)
	}
	args = append(args, cmp.Or(n, -1))
	rows, err := x.db.QueryContext(ctx, "SELECT "+columns+" FROM files WHERE "+strings.Join(where, " AND ")+" ORDER BY key, start, path LIMIT ?", args...)
	if err != nil {
		return nil, x.failed("list", err)
	}
	defer rows.Close()
	var list []File
	for rows.Next() {
		var f File
		var start, end, modified int64
		var state int
		var packets, keyframes, lost sql.NullInt64
		if err := rows.Scan(&f.Path, &f.Key, &start, &end, &f.Bytes, &packets, &keyframes, &lost, &f.Video, &f.Audio, &f.Width, &f.Height, &f.Cause, &state,
			&modified); err != nil {
			return nil, fmt.Errorf("index %s: list: %w: %w", x.path, ErrDamaged, err)
		}
		f.Start, f.End, f.Modified = time.Unix(0, start).UTC(), time.Unix(0, end).UTC(), time.Unix(0, modified)
		f.Finished, f.Open = state == stateFinished, state == stateOpen
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
		var state int
		err := x.db.QueryRowContext(ctx, "SELECT path, end, finished FROM files WHERE key = ? ORDER BY start DESC LIMIT 1", newest.Key).Scan(&newest.Path, &end, &state)
		if err != nil {
			return nil, x.failed("list", err)
		}
		if newest.End = time.Unix(0, end).UTC(); state == stateOpen {
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
				c.End.UnixNano(), c.Bytes, null(c.Packets), null(c.Keyframes), null(c.Lost), c.Video, c.Audio, c.Width, c.Height, c.Cause, c.indexState(), c.Modified.UnixNano())
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
