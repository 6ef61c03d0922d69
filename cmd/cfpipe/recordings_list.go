package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

func newRecordingsListCommand(o *globalOptions) *cobra.Command {
	var l libraryFlags
	var s spanFlags
	var asJSON bool
	c := &cobra.Command{
		Use:     "list [KEY…]",
		Aliases: []string{"ls"},
		Short:   "List recorded files, and the gaps between them",
		Long: `Lists the files that have something between --from and --to, of all cameras or those named, by camera and time. Times are
local; where nothing is recorded between two files, a line says for how long. A key of which there are no recordings at all is
status 3.

STATE is finished, recording (it is being written now), cut (its recorder was killed: it plays up to there), or nothing for a gap.
RECORDING is continuous, or "event:" and the event's reason. UNITS are access units; a dash stands for what only the recorder knew
and the file does not say.` + "\n" + timesHelp + exitStatusHelp,
		Example: `  cfpipe recordings list --site site.yaml door --from 12:00
  cfpipe recordings list --dir /mnt/disk --json | jq -r 'select(.lost > 0) | .path'`,
		Args: func(_ *cobra.Command, a []string) error { return checkKeys(a...) },
		RunE: func(cmd *cobra.Command, a []string) error {
			from, to, err := s.span()
			if err != nil {
				return err
			}
			av.SetLogger(o.Logger)
			lib, err := l.library()
			if err != nil {
				return err
			}
			status := newStatusLine(os.Stderr)
			files, err := lib.List(cmd.Context(), recordings.Query{Keys: a, From: from, To: to}, o.Logger, scanning(status))
			status.clear()
			if err != nil {
				return stopped(cmd.Context(), err)
			}
			out := cmd.OutOrStdout()
			if len(files) > 0 {
				if err := show(out, files, asJSON); err != nil {
					return err
				}
			}
			var missing []string
			for _, key := range a {
				if !slices.ContainsFunc(files, func(f recordings.File) bool { return f.Key == key }) {
					missing = append(missing, key)
				}
			}
			if len(files) > 0 && len(missing) == 0 {
				return nil
			}
			spans, err := lib.Spans(cmd.Context(), scanning(status))
			status.clear()
			if err != nil {
				return stopped(cmd.Context(), err)
			}
			nothing := &nothingError{missing, spans}
			if len(nothing.unknown()) > 0 {
				return nothing
			}
			o.Logger.Info(nothing.Error())
			return nil
		},
	}
	l.addFlags(c)
	s.addFlags(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print a JSON line for each file")
	return c
}

// show prints files as a table, or as JSON.
func show(out io.Writer, files []recordings.File, asJSON bool) error {
	if !asJSON {
		return printRecordings(out, files)
	}
	e := json.NewEncoder(out)
	for _, f := range files {
		if err := e.Encode(f); err != nil {
			return err
		}
	}
	return nil
}

// nothingError says that nothing was found, and what there is in its place. It Is recordings.ErrNothing.
type nothingError struct {
	keys  []string // asked for; none = all
	spans []recordings.Span
}

func (e *nothingError) Unwrap() error { return recordings.ErrNothing }

// unknown returns the keys of which there is nothing at any time.
func (e *nothingError) unknown() (keys []string) {
	for _, k := range e.keys {
		if !slices.ContainsFunc(e.spans, func(s recordings.Span) bool { return s.Key == k }) {
			keys = append(keys, k)
		}
	}
	return keys
}

func (e *nothingError) Error() string {
	const most = 20 // names in a message
	if len(e.spans) == 0 {
		return "nothing is recorded there at all"
	}
	if unknown := e.unknown(); len(unknown) > 0 {
		var there []string
		for _, s := range e.spans {
			there = append(there, s.Key)
		}
		more := ""
		if len(there) > most {
			there, more = there[:most], fmt.Sprintf(" and %d more", len(there)-most)
		}
		return fmt.Sprintf("no recordings of %s; there are %s%s", strings.Join(unknown, ", "), strings.Join(there, ", "), more)
	}
	var has []string
	for _, s := range e.spans {
		if (len(e.keys) == 0 || slices.Contains(e.keys, s.Key)) && len(has) < most {
			has = append(has, fmt.Sprintf("%s has recordings from %s to %s", s.Key, s.From.Local().Format(time.DateTime), s.To.Local().Format(time.DateTime)))
		}
	}
	return "nothing is recorded then: " + strings.Join(has, "; ")
}

// printRecordings prints the table, with a line for each gap.
func printRecordings(out io.Writer, files []recordings.File) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tSTART\tLENGTH\tSIZE\tUNITS\tLOST\tCODECS\tSTATE\tRECORDING\tFILE")
	for len(files) > 0 {
		n := 1
		for n < len(files) && files[n].Key == files[0].Key {
			n++
		}
		gaps := recordings.Gaps(files[:n])
		for _, f := range files[:n] {
			if len(gaps) > 0 && gaps[0].To.Equal(f.Start) {
				fmt.Fprintf(t, "%s\t%s\t%s\t-\t-\t-\t-\tnothing\t-\t-\n", printable(f.Key), moment(gaps[0].From), length(gaps[0].To.Sub(gaps[0].From)))
				gaps = gaps[1:]
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cell(f.Key), moment(f.Start), length(f.End.Sub(f.Start)), bytesText(f.Bytes),
				count(f.Packets), count(f.Lost), orDash(f.Codecs()), f.State(), cell(f.Cause), cell(f.Path))
		}
		files = files[n:]
	}
	return t.Flush()
}

func moment(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05.000") }

func length(d time.Duration) string { return d.Round(10 * time.Millisecond).String() }

func count(n int64) string {
	if n < 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// bytesText is a size as people read it: 29.4 MB.
func bytesText(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"kB", "MB", "GB", "TB"} {
		if v < 1000 {
			break
		}
		v, unit = v/1000, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
