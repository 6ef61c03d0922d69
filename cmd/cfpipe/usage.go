package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cfpipe/cfpipe/framering"
)

// usageError marks an error in how the command was called.
type usageError struct{ err error }

// Error leaves out the wire's name for what the text says already.
func (e usageError) Error() string {
	return strings.TrimSuffix(e.err.Error(), ": "+framering.ErrInvalidArg.Error())
}
func (e usageError) Unwrap() error { return e.err }

// args wraps a cobra argument check so that a failure counts as wrong usage.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, a []string) error {
		if err := check(c, a); err != nil {
			return usageError{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
		}
		return nil
	}
}

// oneKey checks the arguments of commands that take one KEY.
func oneKey(c *cobra.Command, a []string) error {
	switch len(a) {
	case 0:
		return usageError{fmt.Errorf("KEY is missing: cfpipe %s (see %s --help)", c.Use, c.CommandPath())}
	case 1:
		return checkKeys(a...)
	}
	return usageError{fmt.Errorf("%s takes one KEY; start one %s for each camera", c.Name(), c.Name())}
}

// oneSource checks the arguments of ingest.
func oneSource(c *cobra.Command, a []string) error {
	switch len(a) {
	case 0:
		return usageError{fmt.Errorf("SOURCE is missing: cfpipe ingest rtsp://… --key KEY (see %s --help)", c.CommandPath())}
	case 1:
		return nil
	}
	return usageError{errors.New("ingest takes one SOURCE; start one ingest for each camera, and put a name with spaces in quotes")}
}

// flagError turns an error of the flag parser into one of usage that says what would be right.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var value *pflag.InvalidValueError
	switch {
	case errors.As(err, &value) && strings.Contains(err.Error(), "missing unit in duration"):
		err = fmt.Errorf("--%s %s: add a unit, for example %ss or 1m", value.GetFlag().Name, value.GetValue(), value.GetValue())
	case errors.As(err, &unknown):
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest(unknown.GetSpecifiedName(), names); near != "" && len(unknown.GetSpecifiedName()) > 1 {
			err = fmt.Errorf("%w; did you mean --%s?", err, near)
		}
	}
	return usageError{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
}

// checkCommand finds a command that does not exist, with --help behind it or without: cobra would show the help of the command
// above it and call that a success.
func checkCommand(root *cobra.Command, line []string) error {
	c, rest, err := root.Find(line)
	if err != nil || !c.HasAvailableSubCommands() {
		return nil // cobra tells
	}
	for i := 0; i < len(rest); i++ {
		name, isFlag := strings.CutPrefix(rest[i], "-")
		if !isFlag {
			if c == root && (name == "help" || strings.HasPrefix(name, "__complete") || name == "completion") {
				return nil
			}
			return unknownCommand(c, name)
		}
		name = strings.TrimPrefix(name, "-")
		if name == "" {
			return nil
		}
		if f := root.PersistentFlags().Lookup(name); f != nil && f.NoOptDefVal == "" {
			i++ // its value
		}
	}
	return nil
}

func unknownCommand(parent *cobra.Command, name string) error {
	var names []string
	for _, c := range parent.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	hint := ""
	if near := nearest(name, names); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", parent.CommandPath()+" "+near)
	}
	return usageError{fmt.Errorf("unknown command %q%s (see %s --help)", name, hint, parent.CommandPath())}
}

// nearest returns the name that was probably meant, "" when none is near.
func nearest(given string, names []string) string {
	best, least := "", max(len(given)/3, 1)+1
	for _, n := range names {
		if len(given) > 2 && strings.HasPrefix(n, given) {
			return n
		}
		if d := distance(given, n); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance is the number of letters to insert, remove, replace or swap with their neighbour (optimal string alignment).
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
