package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cfpipe/cfpipe/framering"
	sites "github.com/cfpipe/cfpipe/pipeline/site"
)

// waitFlag adds --wait to commands that wait for what, at most d unless told otherwise.
func waitFlag(f *pflag.FlagSet, wait *time.Duration, d time.Duration, what string) {
	f.DurationVar(wait, "wait", d, "how long to wait for "+what+"; 0 = not at all, negative = for ever; status 4 when it ends in vain")
}

// checkKeys makes a key that cannot be one wrong usage.
func checkKeys(keys ...string) error {
	for _, key := range keys {
		if err := framering.CheckKey(key); err != nil {
			return usageError{err}
		}
	}
	return nil
}

// checkCredentials refuses half a pair: a server that was given only one of both must not serve as if it had been given none, and
// an empty file is no password.
func checkCredentials(username, passwordFile, password string) error {
	switch {
	case username == "" && passwordFile != "":
		return usageError{errors.New("--username is missing: it and --password-file belong together")}
	case username != "" && passwordFile == "":
		return usageError{errors.New("--password-file is missing: it and --username belong together")}
	case passwordFile != "" && password == "":
		return usageError{fmt.Errorf("--password-file %s: the first line is empty", passwordFile)}
	}
	return nil
}

// maxPasswordFile bounds a --password-file: a wrong name (a recording, /dev/zero) is not to fill the memory.
const maxPasswordFile = 4096

// readPassword reads the first line of a --password-file; "" without a file.
func readPassword(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("--password-file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPasswordFile+1))
	if err != nil {
		return "", fmt.Errorf("--password-file: %w", err)
	}
	if len(b) > maxPasswordFile {
		return "", usageError{fmt.Errorf("--password-file %s: longer than %d bytes: this is no password of one line", path, maxPasswordFile)}
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSuffix(line, "\r"), nil
}

// byteSize is a flag value such as 8MiB, 512KiB, 2GiB, 1MB or a plain number of bytes.
type byteSize int64

// Set parses s; it is the pflag.Value method.
func (b *byteSize) Set(s string) error {
	n, err := sites.ParseSize(s)
	if err == nil {
		*b = byteSize(n)
	}
	return err
}

// String returns the size in the largest binary unit that divides it.
func (b *byteSize) String() string { return sites.FormatSize(int64(*b)) }

// Type names the value in --help.
func (*byteSize) Type() string { return "size" }
