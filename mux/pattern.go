package mux

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Pattern is a file name with strftime conversions and %{key}.
type Pattern struct {
	text, key string
}

// conversions are strftime's, in Go's layout language; what a layout cannot say stands in expand.
var conversions = map[byte]string{
	'Y': "2006", 'm': "01", 'd': "02", 'H': "15", 'M': "04", 'S': "05", 'y': "06", 'I': "03", 'p': "PM", 'b': "Jan", 'B': "January",
	'a': "Mon", 'A': "Monday", 'j': "002", 'z': "-0700", 'Z': "MST", 'e': "_2", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06",
}

// maxNameTries bounds the search for a name that is free.
const maxNameTries = 100000

// ParsePattern checks a pattern. Besides strftime's conversions it knows %{key}, %s (Unix seconds), %f (milliseconds) and %%.
func ParsePattern(text, key string) (*Pattern, error) {
	p := &Pattern{text: text, key: key}
	if text == "" || strings.HasSuffix(text, "/") {
		return nil, fmt.Errorf("pattern %q: it names no file", text)
	}
	_, err := p.expand(time.Now())
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Pattern) expand(t time.Time) (string, error) {
	var b strings.Builder
	for rest := p.text; rest != ""; {
		i := strings.IndexByte(rest, '%')
		if i < 0 || i == len(rest)-1 {
			if i >= 0 {
				return "", fmt.Errorf("pattern %q ends in %%; a percent sign is %%%%", p.text)
			}
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:i])
		c := rest[i+1]
		rest = rest[i+2:]
		switch {
		case c == '%':
			b.WriteByte('%')
		case c == 's':
			fmt.Fprintf(&b, "%d", t.Unix())
		case c == 'f':
			fmt.Fprintf(&b, "%03d", t.Nanosecond()/1e6)
		case c == '{' && strings.HasPrefix(rest, "key}"):
			b.WriteString(p.key)
			rest = rest[len("key}"):]
		case conversions[c] != "":
			b.WriteString(t.Format(conversions[c]))
		case c == '{':
			name, _, _ := strings.Cut(rest, "}")
			return "", fmt.Errorf("pattern %q: %%{%s} is not known: only %%{key}", p.text, name)
		default:
			return "", fmt.Errorf("pattern %q: %%%c is not known", p.text, c)
		}
	}
	return b.String(), nil
}

// Create makes the file of a segment that begins at t (local time names it), and the folders above it. A file that exists is
// never touched: the new one gets a number in front of its extension. The file is locked (fcntl's F_OFD_SETLK) as long as it is
// open, by which others tell a file that is being written: see InUse.
func (p *Pattern) Create(t time.Time) (*os.File, error) {
	path, err := p.expand(t.Local())
	if err != nil {
		return nil, err
	}
	first := path
	for n := 1; n <= maxNameTries; n++ {
		if n > 1 {
			path = numbered(first, n)
		}
		f, err := createIn(path)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("create recording: %w", err)
		}
		_ = shm.LockFile(f) // advice to others: a file system without locks records as well
		return f, nil
	}
	return nil, fmt.Errorf("create recording: %s and %d numbered names after it exist", path, maxNameTries)
}

// CheckFolder makes the folder below which all files lie and says whether this process may write there.
func (p *Pattern) CheckFolder() error {
	dir := p.Files().Dir
	const write, search = 2, 1
	err := os.MkdirAll(dir, 0o777)
	if err == nil {
		err = syscall.Access(dir, write|search)
	}
	if err != nil {
		return &WriteError{Err: fmt.Errorf("folder %s of the recordings: %w", dir, err)}
	}
	return nil
}

// numbered is the name of the n-th file of one name.
func numbered(path string, n int) string {
	ext := filepath.Ext(path)
	return fmt.Sprintf("%s-%d%s", strings.TrimSuffix(path, ext), n, ext)
}

// createIn makes a file and the folders above it, which somebody may remove in that moment because they are empty.
func createIn(path string) (f *os.File, err error) {
	for range 3 {
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return nil, err
		}
		if f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666); !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
	}
	return nil, err
}

// OpenIn opens a file below a folder of recordings for reading: no link is followed, and no pipe is waited for. It may be anything else than
// a recording still.
func OpenIn(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
}

// InUse says whether a recorder holds the lock of a file that it writes. Asking takes nothing: any number may ask at once. A file system without
// locks has no open files that could be told.
func InUse(f *os.File) bool {
	locked, err := shm.FileLocked(f)
	return err == nil && locked
}

// syncDir makes the names in a folder survive a loss of power.
func syncDir(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
