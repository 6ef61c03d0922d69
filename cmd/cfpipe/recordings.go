package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
	sites "github.com/cfpipe/cfpipe/pipeline/site"
)

func newRecordingsCommand(o *globalOptions) *cobra.Command {
	c := &cobra.Command{
		Use:   "recordings",
		Short: "Find what is recorded, and take a part of it as one file",
		Long: `Lists recorded files by camera and time, and joins what lies between two times into one file without encoding anything again.

Where the recordings lie is said by one of
  --site FILE    what cfpipe run runs: its index, or the files themselves where there is none yet
  --index FILE   the index of a cfpipe record --index
  --dir DIR      the files below a folder, each of which is read: for a disk from somewhere else
Without any it is $CFPIPE_SITE, or site.yaml in this folder.`,
		Args: noArgs,
	}
	c.AddCommand(newRecordingsListCommand(o), newRecordingsExportCommand(o), newRecordingsRebuildCommand(o))
	return c
}

// timesHelp says how --from and --to are written.
const timesHelp = `
TIMES
  2026-11-30T12:00:00Z   with a zone (RFC 3339)
  "2026-11-30 12:00"     local time, with seconds or without; 2026-11-30 alone is its beginning
  12:00                  today; 24:00 is its end
  -90s, -1h, -2d, -1w    before now (units s, m, h, d, w); now itself
`

// libraryFlags say where the recordings are.
type libraryFlags struct{ site, index, dir string }

func (l *libraryFlags) addFlags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&l.site, "site", "", "site file whose recordings are meant (or $CFPIPE_SITE; default site.yaml where there is one)")
	f.StringVar(&l.index, "index", "", "index of recordings")
	f.StringVar(&l.dir, "dir", "", "folder whose recordings are meant, without an index")
}

// library finds the recordings that the flags mean.
func (l *libraryFlags) library() (recordings.Library, error) {
	if l.site == "" && l.index == "" && l.dir == "" {
		l.site = os.Getenv("CFPIPE_SITE")
		if _, err := os.Stat("site.yaml"); err == nil && l.site == "" {
			l.site = "site.yaml"
		}
	}
	switch {
	case l.site != "" && (l.index != "" || l.dir != ""):
		return recordings.Library{}, usageError{errors.New("--site says it all: leave out --index and --dir")}
	case l.site != "":
		lib, err := sites.LoadRecordings(l.site)
		if err != nil {
			return lib, siteError(err)
		}
		return lib, nil
	case l.index == "" && l.dir == "":
		return recordings.Library{}, usageError{errors.New("where are the recordings? Say --site site.yaml, --index FILE or --dir DIR")}
	}
	lib := recordings.Library{Index: l.index}
	if l.dir != "" {
		if st, err := os.Stat(l.dir); err != nil {
			return lib, fmt.Errorf("--dir: %w", err)
		} else if !st.IsDir() {
			return lib, usageError{fmt.Errorf("--dir %s is no folder", l.dir)}
		}
		p, err := recordings.Folder(l.dir)
		if err != nil {
			return lib, err
		}
		lib.Places = []recordings.Place{p}
	}
	return lib, nil
}

// spanFlags are --from and --to.
type spanFlags struct{ from, to string }

func (s *spanFlags) addFlags(c *cobra.Command) {
	c.Flags().StringVar(&s.from, "from", "", "from this time on")
	c.Flags().StringVar(&s.to, "to", "", "until this time")
}

func (s *spanFlags) span() (from, to time.Time, err error) {
	now := time.Now()
	if from, err = recordings.ParseTime(s.from, now); err != nil {
		return from, to, usageError{fmt.Errorf("--from: %w", err)}
	}
	if to, err = recordings.ParseTime(s.to, now); err != nil {
		return from, to, usageError{fmt.Errorf("--to: %w", err)}
	}
	return from, to, s.check(from, to, now)
}

// check finds a span that has nothing in it. to may be zero.
func (s *spanFlags) check(from, to, now time.Time) error {
	hint := ""
	if recordings.IsTimeOfDay(s.from) && from.After(now) {
		hint = fmt.Sprintf(": a time without a day is today's, which is still to come; yesterday's is \"%s\"", from.AddDate(0, 0, -1).Format("2006-01-02 15:04:05"))
	}
	switch {
	case !to.IsZero() && !from.Before(to):
		return usageError{fmt.Errorf("--from %s is not before --to %s%s", from.Format(time.RFC3339), to.Format(time.RFC3339), hint)}
	case hint != "":
		return usageError{fmt.Errorf("--from %s%s", s.from, hint)}
	}
	return nil
}

// scanning shows how many files were read.
func scanning(s *statusLine) func(int) {
	var last time.Time
	return func(files int) {
		if time.Since(last) > 200*time.Millisecond {
			last = time.Now()
			s.show(fmt.Sprintf("reading files: %d", files))
		}
	}
}

func newRecordingsRebuildCommand(o *globalOptions) *cobra.Command {
	var l libraryFlags
	c := &cobra.Command{
		Use:   "rebuild",
		Short: "Make the index anew from the files",
		Long: `Compares the index with the files: those that are new or have changed are read, as little of each as possible, and rows of
files that are gone are removed. A running site does the same when it starts and once an hour. An index that is damaged is moved
aside and made anew.

Finished files say how many access units and keyframes they have and how many were lost. Of files that were cut off, or are by an
older version, lost is not known, nor are the counts of MKV and TS.

With --dir the index is DIR/` + recordings.IndexName + `, or what --index says.` + "\n" + exitStatusHelp,
		Example: "  cfpipe recordings rebuild --site site.yaml\n  cfpipe recordings rebuild --dir /mnt/old-disk --index /tmp/old-disk.db",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			av.SetLogger(o.Logger)
			lib, err := l.library()
			if err != nil {
				return err
			}
			if len(lib.Places) == 0 {
				return usageError{errors.New("--index alone does not say where the recordings are: add --dir DIR, or use --site")}
			}
			if lib.Index == "" && l.dir != "" {
				lib.Index = filepath.Join(l.dir, recordings.IndexName)
			}
			if lib.Index == "" {
				return usageError{errors.New("this site has no index (index: off)")}
			}
			status := newStatusLine(os.Stderr)
			show := scanning(status)
			st, err := recordings.Rebuild(cmd.Context(), lib.Index, lib.Places, o.Logger, func(r recordings.Reconciled) { show(r.Files) })
			status.clear()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d recordings, %d of them read; %d rows of files that are gone removed; %d other files left out\n", lib.Index,
				st.Files, st.Read, st.Gone, st.Other)
			if st.Unread > 0 {
				err = cmp.Or(err, fmt.Errorf("%d files or folders cannot be read, and what the index knows of them stays: %w", st.Unread, st.Why))
			}
			return err
		},
	}
	l.addFlags(c)
	return c
}
