package site

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that is written as 60s, 5m or 30d.
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

var errDuration = errors.New("want a duration such as 10s, 5m, 12h or 30d")

// ParseDuration reads Go's durations, and whole days (30d) and weeks (4w). It is never negative.
func ParseDuration(s string) (time.Duration, error) {
	for suffix, unit := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		if n, ok := strings.CutSuffix(s, suffix); ok {
			v, err := strconv.ParseUint(n, 10, 32)
			if err != nil || v > uint64(math.MaxInt64/unit) {
				return 0, errDuration
			}
			return time.Duration(v) * unit, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errDuration
	}
	return d, nil
}

// Size is a number of bytes that is written as 8MiB or 500GB.
type Size int64

var sizeUnits = []struct {
	suffix string
	factor int64
}{ // longest suffix first
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40}, {"B", 1},
}

// ParseSize reads a size such as 8MiB, 512KiB, 2GiB, 1MB or a plain number of bytes.
func ParseSize(s string) (int64, error) {
	number, factor := strings.TrimSpace(s), int64(1)
	for _, u := range sizeUnits {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, factor = strings.TrimSpace(n), u.factor
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 {
		return 0, errors.New("want a size such as 8MiB, 500KB or 4096")
	}
	if n > math.MaxInt64/factor {
		return 0, errors.New("size is too large")
	}
	return n * factor, nil
}

// FormatSize writes a size in the largest binary unit that divides it.
func FormatSize(n int64) string {
	for i := 2; i >= 0; i-- { // GiB, MiB, KiB
		if u := sizeUnits[i]; n != 0 && n%u.factor == 0 {
			return fmt.Sprintf("%d%s", n/u.factor, u.suffix)
		}
	}
	return strconv.FormatInt(n, 10)
}

// expand replaces ${NAME} by the environment variable NAME; $${ stands for ${ itself. secret says that nothing but variables gave the text.
func expand(s string) (text string, vars []variable, secret bool, err error) {
	var b strings.Builder
	literal := false
	for rest := s; ; {
		i := strings.Index(rest, "${")
		if i < 0 {
			b.WriteString(rest)
			return b.String(), vars, !literal && rest == "" && s != "", nil
		}
		if i > 0 && rest[i-1] == '$' {
			b.WriteString(rest[:i-1] + "${")
			rest, literal = rest[i+2:], true
			continue
		}
		literal = literal || i > 0
		b.WriteString(rest[:i])
		name, after, ok := strings.Cut(rest[i+2:], "}")
		if !ok || !variableName(name) {
			return "", nil, false, errors.New("${ begins the name of an environment variable and needs its }; a literal ${ is written $${")
		}
		v, ok := os.LookupEnv(name)
		if !ok {
			return "", nil, false, fmt.Errorf("the environment variable %s is not set", name)
		}
		b.WriteString(v)
		vars = append(vars, variable{name, v, len(s) - len(rest) + i})
		rest = after
	}
}

func variableName(s string) bool {
	for i, c := range []byte(s) {
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 128
}
