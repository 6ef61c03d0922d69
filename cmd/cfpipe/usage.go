package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/nearest"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/bench"
)

// usageError marks an error in how the command was called.
type usageError struct{ err error }

// Error leaves out the kind of error at the end: the text says it already.
func (e usageError) Error() string {
	s := e.err.Error()
	for _, kind := range []error{framering.ErrInvalidArg, media.ErrUnsupported, bench.ErrOptions} {
		s = strings.TrimSuffix(s, ": "+kind.Error())
	}
	return s
}
func (e usageError) Unwrap() error { return e.err }

// noArgs checks the arguments of commands that take none.
func noArgs(c *cobra.Command, a []string) error {
	if len(a) == 0 {
		return nil
	}
	return usageError{fmt.Errorf("%s takes flags alone, not %.80q (see %s --help)", c.CommandPath(), a[0], c.CommandPath())}
}

// oneFile checks the arguments of commands that take one FILE.
func oneFile(c *cobra.Command, a []string) error {
	switch len(a) {
	case 0:
		return missing(c, "FILE")
	case 1:
		return nil
	}
	return usageError{fmt.Errorf("%s takes one FILE; put a name with spaces in quotes", c.CommandPath())}
}

// missing is the error of a command without its argument: it says how the command is called.
func missing(c *cobra.Command, what string) error {
	return usageError{fmt.Errorf("%s is missing: %s %s (see %s --help)", what, c.Parent().CommandPath(), c.Use, c.CommandPath())}
}

// notNegative checks durations.
func notNegative(c *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if d, err := c.Flags().GetDuration(name); err != nil || d < 0 {
			return usageError{fmt.Errorf("--%s %v: a duration is not negative", name, d)}
		}
	}
	return nil
}

// oneOf checks flags of which one may be set.
func oneOf(c *cobra.Command, flags ...string) error {
	var set []string
	for _, name := range flags {
		if c.Flags().Changed(name) {
			set = append(set, "--"+name)
		}
	}
	if len(set) < 2 {
		return nil
	}
	return usageError{fmt.Errorf("%s: want one of them", strings.Join(set, " and "))}
}

// oneKey checks the arguments of commands that take one KEY.
func oneKey(c *cobra.Command, a []string) error {
	switch len(a) {
	case 0:
		return missing(c, "KEY")
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

// waitHint adds to the error of a command that found no publisher how it would wait for one.
func waitHint(c *cobra.Command, err error) error {
	var absent *pipeline.NoKeyError
	if errors.As(err, &absent) && absent.Waited == 0 && c.Flags().Lookup("wait") != nil {
		return fmt.Errorf("%w; --wait 30s waits for it", err)
	}
	return err
}

// wanted says what a flag takes; "" where its own error says that.
func wanted(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "duration":
		return "a duration, for example 10s, 5m or 1h30m"
	case "int", "intSlice":
		return "a whole number"
	case "uint16", "uint32", "uint64":
		return "a whole number, 0 or more"
	case "float64":
		return "a number"
	}
	return ""
}

// flagError turns an error of the flag parser into one of usage that says what would be right.
func flagError(c *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var value *pflag.InvalidValueError
	switch {
	case errors.As(err, &value) && strings.Contains(err.Error(), "missing unit in duration"):
		err = fmt.Errorf("--%s %s: add a unit, for example %ss or 1m", value.GetFlag().Name, value.GetValue(), value.GetValue())
	case errors.As(err, &value) && wanted(value.GetFlag()) != "":
		err = fmt.Errorf("--%s %q: want %s", value.GetFlag().Name, value.GetValue(), wanted(value.GetFlag()))
	case errors.As(err, &unknown):
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest.Name(unknown.GetSpecifiedName(), names); near != "" && len(unknown.GetSpecifiedName()) > 1 {
			err = fmt.Errorf("%w; did you mean --%s?", err, near)
		}
	}
	return usageError{fmt.Errorf("%w (see %s --help)", err, c.CommandPath())}
}

// checkCommand finds a command that does not exist, with --help behind it or without: cobra would show the help of the command
// above it and call that a success.
func checkCommand(root *cobra.Command, line []string) error {
	c, rest, err := root.Find(line)
	if err != nil {
		return nil // cobra tells
	}
	if !c.HasAvailableSubCommands() {
		return checkDashes(c, rest)
	}
	for i := 0; i < len(rest); i++ {
		name, isFlag := strings.CutPrefix(rest[i], "-")
		if !isFlag {
			if c == root && strings.HasPrefix(name, "__complete") {
				return nil
			}
			if c == root && name == "help" {
				if c, rest, err = root.Find(rest[i+1:]); err != nil || len(rest) == 0 || !c.HasAvailableSubCommands() {
					return nil
				}
				name = rest[0]
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

// checkDashes finds a long option with one dash, -out, which would be taken for -o with a value and so for something else.
func checkDashes(c *cobra.Command, line []string) error {
	if c.DisableFlagParsing {
		return nil
	}
	find := func(name string) *pflag.Flag {
		if f := c.LocalFlags().Lookup(name); f != nil {
			return f
		}
		return c.InheritedFlags().Lookup(name)
	}
	for i := 0; i < len(line) && line[i] != "--"; i++ {
		var f *pflag.Flag // whose value is the next word
		word, valued := line[i], strings.Contains(line[i], "=")
		switch name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "="); {
		case strings.HasPrefix(word, "--"):
			f = find(name)
		case !strings.HasPrefix(word, "-"):
		case len(name) == 1:
			f = c.Flags().ShorthandLookup(name)
		case find(name) != nil:
			return usageError{fmt.Errorf("-%s: the option is --%s, with two dashes (see %s --help)", name, name, c.CommandPath())}
		}
		if f != nil && f.NoOptDefVal == "" && !valued {
			i++
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
	if near := nearest.Name(name, names); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", parent.CommandPath()+" "+near)
	}
	return usageError{fmt.Errorf("unknown command %q%s (see %s --help)", name, hint, parent.CommandPath())}
}
