package site

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Load reads and checks a site file. The error joins *FieldErrors; it Is os.ErrNotExist when there is no such file.
func Load(file string) (*Config, error) { return loadFor(file, nil) }

// loadFor is Load for who needs a part of the file: what is wrong with fields that do not matter is no error.
func loadFor(file string, matters func(path string) bool) (*Config, error) {
	text, err := readBounded(file, maxFile+1)
	if err != nil {
		return nil, err
	}
	c, d, err := parse(file, text, matters)
	if err != nil {
		return nil, err
	}
	d.check(c)
	if len(d.errs) > 0 {
		return nil, errors.Join(d.errs...)
	}
	c.warnings, c.private = d.warnings, d.private
	return c, nil
}

// readBounded reads a plain file: a pipe would be waited for, and a device has no end.
func readBounded(file string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		if info.IsDir() {
			return nil, &fs.PathError{Op: "read", Path: file, Err: syscall.EISDIR}
		}
		return nil, fmt.Errorf("%s is no plain file", file)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}
