package recordings

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// application marks a database as an index of recordings: "cfrx".
	application = 0x63667278
	// version is that of the tables. A newer index belongs to a newer program.
	version = 3
	// oldest is the version of the oldest index that is read as it is, and that a writer brings up to date. One that is older still is made anew.
	oldest = 2
)

// schemas are the tables and indexes of each version, as SQLite keeps them in sqlite_master.
//
// Times are Unix ns, counts that are not known are NULL, finished is one of the states below.
var schemas = func() map[int]map[string]string {
	v2 := map[string]string{
		"files": `CREATE TABLE files (
	path TEXT PRIMARY KEY, key TEXT NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER NOT NULL,
	packets INTEGER, keyframes INTEGER, lost INTEGER, video INTEGER NOT NULL, audio INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
	cause TEXT NOT NULL, finished INTEGER NOT NULL, modified INTEGER NOT NULL
) WITHOUT ROWID`,
		"files_by_time": "CREATE INDEX files_by_time ON files (key, start)",
	}
	v3 := maps.Clone(v2)
	v3["files_by_length"] = "CREATE INDEX files_by_length ON files (key, end - start)" // how far in front of a time a file may begin that lasts into it
	v3["files_open"] = "CREATE INDEX files_open ON files (key, start) WHERE finished = 0"
	return map[int]map[string]string{2: v2, 3: v3}
}()

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

// check returns the version of the tables; 0 = there are none yet. Where somebody has put other tables, views or triggers into an index, it is damaged.
func (x *Index) check(ctx context.Context) (v int, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	id, v, tables, err := x.schema(ctx)
	switch {
	case err != nil:
		return 0, damaged(err)
	case id != application && len(tables) > 0:
		return v, ErrForeign
	case v > version:
		return v, fmt.Errorf("%w: version %d, this one knows %d", ErrNewer, v, version)
	case len(tables) == 0:
		return 0, nil
	case v >= oldest && !maps.Equal(tables, schemas[v]):
		return v, fmt.Errorf("%w: its tables are not those of an index", ErrDamaged)
	}
	return v, nil
}

// schema returns what the database says of itself, but for SQLite's own statistics: in one statement, since another process may bring it up to date.
func (x *Index) schema(ctx context.Context) (id, v int, tables map[string]string, err error) {
	rows, err := x.db.QueryContext(ctx, `SELECT application_id, user_version, coalesce(name, ''), coalesce(sql, '') FROM pragma_application_id, pragma_user_version
		LEFT JOIN (SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\' LIMIT 10)`)
	if err != nil {
		return 0, 0, nil, err
	}
	defer rows.Close()
	tables = map[string]string{}
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&id, &v, &name, &text); err != nil {
			return 0, 0, nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if name != "" || text != "" {
			tables[name] = text
		}
	}
	return id, v, tables, rows.Err()
}

// create makes what the newest version has and is not there yet, in one step: a file that has tables says whose they are.
func (x *Index) create(ctx context.Context) error {
	steps := []string{"BEGIN IMMEDIATE"}
	for _, name := range slices.Sorted(maps.Keys(schemas[version])) { // the table's is the first
		text := schemas[version][name]
		for _, kind := range []string{"CREATE TABLE ", "CREATE INDEX "} {
			text = strings.Replace(text, kind, kind+"IF NOT EXISTS ", 1)
		}
		steps = append(steps, text)
	}
	steps = append(steps, fmt.Sprintf("PRAGMA application_id=%d", application), fmt.Sprintf("PRAGMA user_version=%d", version), "COMMIT")
	if _, err := x.db.ExecContext(ctx, strings.Join(steps, "; ")); err != nil {
		return damaged(err)
	}
	return x.writeAhead(ctx) // last: the database says whose it is without its log
}
