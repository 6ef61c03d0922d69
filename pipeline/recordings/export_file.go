package recordings

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ErrExists says that an output exists already.
var ErrExists = errors.New("it exists; --force replaces it")

// ExportFile exports into a file, which appears under its name when it is complete and not before: until then it is NAME.RANDOM.part, which goes
// away on failure. A file that exists is replaced only by force; of several exports into one file the first that is complete makes it.
func ExportFile(ctx context.Context, path string, force bool, o ExportOptions) (done Exported, err error) {
	if _, err := os.Lstat(path); err == nil && !force {
		return done, fmt.Errorf("export to %s: %w", path, ErrExists)
	}
	part := path + "." + strings.ToLower(rand.Text()[:8]) + ".part" // os.CreateTemp gives it to its owner alone, whatever the umask says
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
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
	if err := errors.Join(f.Sync(), f.Close()); err != nil { // some disks say only then that they are full, or broken
		return done, &OutputError{fmt.Errorf("export to %s: %w", path, err)}
	}
	if force {
		err = os.Rename(part, path)
	} else {
		err = moveNew(part, path)
	}
	if err != nil {
		return done, &OutputError{fmt.Errorf("export to %s: %w", path, err)}
	}
	return done, nil
}

// moveNew renames a file, but replaces nothing that came in between: then it returns ErrExists.
func moveNew(from, to string) error {
	err := os.Link(from, to)
	if err == nil {
		return os.Remove(from)
	}
	if errors.Is(err, os.ErrExist) {
		return ErrExists
	}
	// A file system without links: the name is taken first, by an empty file.
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, os.ErrExist) {
		return ErrExists
	}
	if err != nil {
		return err
	}
	f.Close()
	if err = os.Rename(from, to); err != nil {
		_ = os.Remove(to)
	}
	return err
}

// OutputError says that an output could not be made: no recording is missing.
type OutputError struct{ Err error }

func (e *OutputError) Error() string { return e.Err.Error() }
func (e *OutputError) Unwrap() error { return e.Err }
