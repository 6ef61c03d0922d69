package recordings

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"
)

const (
	// busyTimeout is how long to wait for another process that writes.
	busyTimeout = 5 * time.Second
	// listTimeout bounds one query: 86,400 rows take less than two seconds.
	listTimeout = 20 * time.Second
	// listPage is the least number of rows asked for at once.
	listPage = 256
)

var (
	// ErrNewer says that an index was made by a newer version of this program.
	ErrNewer = errors.New("the index was made by a newer cfpipe")
	// ErrForeign says that a file is something else.
	ErrForeign = errors.New("this is no index of recordings, or its head is overwritten: it is left alone; " +
		"if it was the index, delete it, and it is made anew from the recordings, else name another file")
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

// keysText finds each key by the index, not by all of its rows.
const keysText = `WITH RECURSIVE keys(key) AS (
	SELECT min(key) FROM files UNION ALL SELECT (SELECT min(key) FROM files WHERE key > keys.key) FROM keys WHERE keys.key IS NOT NULL
) SELECT key FROM keys WHERE key IS NOT NULL`

// keys returns the keys of all files, sorted.
func (x *Index) keys(ctx context.Context) (keys []string, err error) {
	rows, err := x.db.QueryContext(ctx, keysText)
	if err != nil {
		return nil, x.failed("list", err)
	}
	defer rows.Close()
	for rows.Next() {
		var k string
		if err := rows.Scan(&k); err != nil {
			return nil, x.failed("list", err)
		}
		keys = append(keys, k)
	}
	return keys, x.failed("list", rows.Err())
}

// rowsText finds the files of a key that have something in a span. Those that begin in front of it by no more than the longest file lasts are looked
// at; files that are being written have grown since, and their end is no reason to leave them out.
func rowsText(q *Query) string {
	before := ""
	if !q.To.IsZero() {
		before = " AND start < :to"
	}
	return `
SELECT ` + columns + ` FROM files WHERE key = :key AND start >= :from - (SELECT max(end - start) FROM files WHERE key = :key) AND end > :from` + before + `
	AND (start, path) > (:after, :path)
UNION ALL
SELECT ` + columns + ` FROM files WHERE finished = 0 AND key = :key AND end <= :from` + before + ` AND (start, path) > (:after, :path)
ORDER BY start, path LIMIT :n`
}

// rows returns what the index says, by key and time, n rows behind that of a file; 0 = all.
func (x *Index) rows(ctx context.Context, q Query, after File, n int) (list []File, err error) {
	keys := slices.Compact(slices.Sorted(slices.Values(q.Keys)))
	if len(keys) == 0 {
		if keys, err = x.keys(ctx); err != nil {
			return nil, err
		}
	}
	st, err := x.db.PrepareContext(ctx, rowsText(&q))
	if err != nil {
		return nil, x.failed("list", err)
	}
	defer st.Close()
	var span []any
	if !q.To.IsZero() {
		span = append(span, sql.Named("to", q.To.UnixNano()))
	}
	from := int64(math.MinInt64)
	if !q.From.IsZero() {
		from = q.From.UnixNano()
	}
	span = append(span, sql.Named("from", from))
	for _, key := range keys {
		start, path := int64(math.MinInt64), ""
		if after.Path != "" {
			if key < after.Key {
				continue
			}
			if key == after.Key {
				start, path = after.Start.UnixNano(), after.Path
			}
		}
		most := -1
		if n > 0 {
			most = n - len(list)
		}
		rows, err := st.QueryContext(ctx, append(span, sql.Named("key", key), sql.Named("after", start), sql.Named("path", path), sql.Named("n", most))...)
		if err != nil {
			return nil, x.failed("list", err)
		}
		if list, err = x.scan(list, rows); err != nil {
			return nil, err
		}
		if len(list) == n && n > 0 {
			break
		}
	}
	return list, nil
}

// scan adds rows to a list, and frees them.
func (x *Index) scan(list []File, rows *sql.Rows) ([]File, error) {
	defer rows.Close()
	for rows.Next() {
		var f File
		var start, end, modified int64
		var state int
		var packets, keyframes, lost sql.NullInt64
		if err := rows.Scan(&f.Path, &f.Key, &start, &end, &f.Bytes, &packets, &keyframes, &lost, &f.Video, &f.Audio, &f.Width, &f.Height, &f.Cause, &state,
			&modified); err != nil {
			return nil, x.failed("list", fmt.Errorf("%w: %w", ErrDamaged, err))
		}
		f.Start, f.End, f.Modified = time.Unix(0, start).UTC(), time.Unix(0, end).UTC(), time.Unix(0, modified)
		f.Finished, f.Open = state == stateFinished, state == stateOpen
		f.Packets, f.Keyframes, f.Lost = known(packets), known(keyframes), known(lost)
		list = append(list, f)
	}
	return list, x.failed("list", rows.Err())
}

// spans returns from when until when there are files of each key, sorted. The newest is asked how far it is where it lies in one of the places.
func (x *Index) spans(ctx context.Context, places []Place) (spans []Span, err error) {
	keys, err := x.keys(ctx)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		newest := File{Key: key}
		var from, end int64
		var state int
		err := x.db.QueryRowContext(ctx, "SELECT (SELECT min(start) FROM files WHERE key = :key), path, end, finished FROM files WHERE key = :key ORDER BY start DESC LIMIT 1",
			sql.Named("key", key)).Scan(&from, &newest.Path, &end, &state)
		if errors.Is(err, sql.ErrNoRows) { // its last file was removed meanwhile
			continue
		}
		if err != nil {
			return nil, x.failed("list", err)
		}
		if newest.End = time.Unix(0, end).UTC(); state == stateOpen && newest.within(places) {
			newest.update(ctx)
		}
		spans = append(spans, Span{Key: key, From: time.Unix(0, from).UTC(), To: newest.End})
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
	if err = damaged(err); errors.Is(err, ErrDamaged) {
		opened.doubt(x.path)
	}
	return fmt.Errorf("index %s: %s: %w", x.path, op, err)
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
