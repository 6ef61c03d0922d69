package recordings

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrExists says that an output exists already.
var ErrExists = errors.New("it exists; --force replaces it")

// ExportFile exports into a file, which appears under its name when it is complete and not before: until then it is NAME.part, which goes away
// on failure. A file that exists is replaced only by force.
func ExportFile(ctx context.Context, path string, force bool, o ExportOptions) (done Exported, err error) {
	if _, err := os.Lstat(path); err == nil && !force {
		return done, fmt.Errorf("export to %s: %w", path, ErrExists)
	}
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o666)
	if err != nil {
		return done, &OutputError{err}
	}
	defer func() {
		f.Close()
		if err != nil {
			_ = os.Remove(part)
		}
	}()
	o.Out, o.Seek = f, true
	if done, err = Export(ctx, o); err != nil {
		return done, err
	}
	if err := f.Close(); err != nil {
		return done, &OutputError{err}
	}
	if force {
		err = os.Rename(part, path)
	} else if err = os.Link(part, path); err == nil { // unlike Rename it replaces nothing that came in between
		err = os.Remove(part)
	} else if errors.Is(err, os.ErrExist) {
		err = ErrExists
	} else {
		err = os.Rename(part, path) // a file system without links
	}
	if err != nil {
		return done, &OutputError{fmt.Errorf("export to %s: %w", path, err)}
	}
	return done, nil
}

// OutputError says that an output could not be made: no recording is missing.
type OutputError struct{ Err error }

func (e *OutputError) Error() string { return e.Err.Error() }
func (e *OutputError) Unwrap() error { return e.Err }
