package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/cfpipe/cfpipe/framering"
)

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
	case (username == "") != (passwordFile == ""):
		return usageError{errors.New("--username and --password-file belong together")}
	case passwordFile != "" && password == "":
		return usageError{fmt.Errorf("--password-file %s: the first line is empty", passwordFile)}
	}
	return nil
}

// readPassword reads the first line of a --password-file; "" without a file.
func readPassword(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("--password-file: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSuffix(line, "\r"), nil
}

// byteSize is a flag value such as 8MiB, 512KiB, 2GiB, 1MB or a plain number of bytes.
type byteSize int64

var byteUnits = []struct {
	suffix string
	factor int64
}{ // longest suffix first
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}, {"B", 1},
}

// Set parses s; it is the pflag.Value method.
func (b *byteSize) Set(s string) error {
	number, factor := strings.TrimSpace(s), int64(1)
	for _, u := range byteUnits {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = strings.TrimSpace(n), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return errors.New("want a size such as 8MiB, 500KB or 4096")
	}
	if n > math.MaxInt64/factor {
		return errors.New("size is too large")
	}
	*b = byteSize(n * factor)
	return nil
}

// String returns the size in the largest binary unit that divides it.
func (b *byteSize) String() string {
	n := int64(*b)
	for _, u := range []struct {
		suffix string
		factor int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n != 0 && n%u.factor == 0 {
			return fmt.Sprintf("%d%s", n/u.factor, u.suffix)
		}
	}
	return strconv.FormatInt(n, 10)
}

// Type names the value in --help.
func (*byteSize) Type() string { return "size" }
