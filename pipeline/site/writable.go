package site

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/mux"
)

// Unwritable names the folders that the site writes into and this user cannot: the site may be meant for another user, so they are no errors.
func (c *Config) Unwritable() (list []string) {
	told := map[string]bool{}
	look := func(field, dir string) {
		if at, err := unwritable(dir); err != nil && !told[at] {
			told[at] = true
			list = append(list, fmt.Sprintf("%s: %s: %v: this user (uid %d) cannot write into it", field, at, err, os.Geteuid()))
		}
	}
	for _, f := range c.fileSets() {
		if p, err := mux.ParsePattern(f.out, f.key); err == nil { // else Load has said it
			look(f.path, p.Files().Dir)
		}
	}
	if index := c.indexPath(); index != "" {
		look("index", filepath.Dir(index))
	}
	return list
}

// unwritable says why nothing can be made in a folder, or in the one that it would be made in, which it returns.
func unwritable(dir string) (at string, err error) {
	for at = dir; ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) && at != filepath.Dir(at) {
			continue
		}
		return at, shm.Writable(at)
	}
}
