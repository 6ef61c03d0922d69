package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/pipeline"
)

func newLsCommand(o *globalOptions) *cobra.Command {
	var w watchOptions
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the publishers of this host",
		Long: "Lists the keys whose publisher is alive, with what their rings show: codec, picture size, packets and kilobits a second,\n" +
			"age of the newest packet, distance of the keyframes, number of readers, process id.\n" +
			"It reads shared memory and disturbs nobody. A rate of 0 with a growing age is a camera that has gone silent.\n" + exitStatusHelp,
		Example: "  cfpipe ls\n  cfpipe ls --watch\n  cfpipe ls --json | jq -r '.[] | select(.age_seconds > 10) | .key'",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return w.run(c.Context(), c.OutOrStdout(), func(out io.Writer) (any, error) {
				keys, err := listKeys(o.RuntimeDir)
				if err != nil {
					return nil, err
				}
				if w.JSON {
					for i := range keys { // inspect has the slots
						if p := keys[i].Packets; p != nil {
							p.Packets = nil
						}
						if f := keys[i].Frames; f != nil {
							f.Slots = nil
						}
					}
					return keys, nil
				}
				if len(keys) == 0 && !w.Watch {
					if _, err := os.Stat(o.RuntimeDir); errors.Is(err, os.ErrNotExist) {
						o.Logger.Info("no publishers: the runtime folder does not exist; the first publisher makes it", "runtime_dir", o.RuntimeDir)
					} else {
						o.Logger.Info("no publishers", "runtime_dir", o.RuntimeDir)
					}
				}
				return nil, printKeys(out, keys)
			})
		},
	}
	w.addFlags(c)
	return c
}

// listKeys are the keys that this process can read, and those whose memory is not in its /dev/shm, sorted.
func listKeys(runtimeDir string) ([]pipeline.KeyStatus, error) {
	keys, err := pipeline.ListKeys(runtimeDir)
	if err != nil {
		return nil, err
	}
	elsewhere, err := pipeline.ListElsewhere(runtimeDir)
	keys = append(keys, elsewhere...)
	slices.SortFunc(keys, func(a, b pipeline.KeyStatus) int { return strings.Compare(a.Key, b.Key) })
	return keys, err
}

// printKeys prints the table of ls.
func printKeys(out io.Writer, keys []pipeline.KeyStatus) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tCODEC\tSIZE\tPACKETS/S\tKBIT/S\tAGE\tGOP\tREADERS\tPID")
	var notes []string
	denied, elsewhere := 0, 0
	for _, k := range keys {
		if k.NoAccess {
			denied++
			fmt.Fprintf(t, "%s\tno access\n", k.Key)
			continue
		}
		if k.Elsewhere {
			elsewhere++
			fmt.Fprintf(t, "%s\tnot in this /dev/shm\n", k.Key)
			continue
		}
		rate, kbit := "-", "-"
		if k.Packets != nil {
			rate, kbit = fmt.Sprintf("%.1f", k.PacketsPerSecond), fmt.Sprintf("%.0f", k.KbitPerSecond)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\n",
			k.Key, orDash(k.Codec), orDash(k.Size()), rate, kbit, age(k.AgeSeconds), gop(k), len(k.Readers), k.PID)
		if k.Error != "" {
			notes = append(notes, k.Key+": "+k.Error)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if denied > 0 {
		notes = append(notes, noAccess(denied))
	}
	if elsewhere > 0 {
		notes = append(notes, pipeline.ElsewhereText(elsewhere))
	}
	for _, n := range notes {
		if _, err := fmt.Fprintln(out, n); err != nil {
			return err
		}
	}
	return nil
}

func noAccess(keys int) string {
	return fmt.Sprintf("no access: uid %d may not read %d of the keys; run as the user of their publishers, or start those with --group",
		os.Getuid(), keys)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// age prints seconds as an operator reads them: 40ms, 3.2s, 12m, 3h.
func age(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	d := time.Duration(*seconds * float64(time.Second))
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%.0fm", math.Floor(d.Minutes()))
	default:
		return fmt.Sprintf("%.0fh", math.Floor(d.Hours()))
	}
}

func gop(k pipeline.KeyStatus) string {
	switch {
	case k.GOPPackets == 0:
		return "-"
	case k.GOPSeconds == 0:
		return strconv.Itoa(k.GOPPackets)
	}
	return fmt.Sprintf("%d (%.1fs)", k.GOPPackets, k.GOPSeconds)
}

// watchOptions are the flags --json, --watch and --interval of commands that show what is there now.
type watchOptions struct {
	JSON     bool
	Watch    bool
	Interval time.Duration
}

func (w *watchOptions) addFlags(c *cobra.Command) {
	c.Flags().BoolVar(&w.JSON, "json", false, "print JSON, one line; with --watch one each time")
	c.Flags().BoolVarP(&w.Watch, "watch", "w", false, "print again and again until stopped")
	c.Flags().DurationVar(&w.Interval, "interval", time.Second, "pause between two prints of --watch")
}

// run calls show once, or again and again. show prints text, or returns the value to print as JSON; with an error as well that
// is printed and ends it.
func (w *watchOptions) run(ctx context.Context, out io.Writer, show func(out io.Writer) (any, error)) error {
	if w.Interval < 50*time.Millisecond {
		return usageError{fmt.Errorf("--interval %v: want 50ms or more", w.Interval)}
	}
	screen := w.Watch && !w.JSON && isTerminal(out) && os.Getenv("TERM") != "dumb"
	for first := true; ; first = false {
		var b strings.Builder
		value, err := show(&b)
		switch {
		case err != nil && value == nil && b.Len() == 0:
			return err
		case w.JSON:
			if eerr := json.NewEncoder(&b).Encode(value); eerr != nil {
				return eerr
			}
		case screen:
			// Home, each line cleared to its end, the rest of the screen cleared: no flicker.
			text := "\x1b[H" + strings.ReplaceAll(b.String(), "\n", "\x1b[K\n") + "\x1b[J"
			b.Reset()
			b.WriteString(text)
		case !first:
			text := "\n" + b.String()
			b.Reset()
			b.WriteString(text)
		}
		if _, werr := io.WriteString(out, b.String()); werr != nil {
			return werr
		}
		if err != nil || !w.Watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(w.Interval):
		}
	}
}
