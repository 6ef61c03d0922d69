package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

// exportFlags are those of recordings export.
type exportFlags struct {
	libraryFlags
	spanFlags
	out, format   string
	force, asJSON bool
	mute          bool
}

func newRecordingsExportCommand(o *globalOptions) *cobra.Command {
	var x exportFlags
	c := &cobra.Command{
		Use:   "export KEY --from TIME --to TIME -o FILE",
		Short: "Join what is recorded between two times into one file",
		Long: `Export joins what KEY has recorded between --from and --to into one file. Nothing is decoded or encoded again: it is as good as the recording, and
takes as long as reading it does.

It begins with the last keyframe at or before --from, or with the first one after it where nothing is recorded at that time, and ends at --to (now
when it is left out). Where files overlap, as those of a recorder that was restarted, every access unit is taken once. Time is that of the
recording: a gap stays one in the file, and is told of. Sound is taken along. The file says when it begins (creation_time, date).

Where the codec or the size of the pictures changes, one file cannot hold both: the command fails and says at which time, so that the two
parts can be exported each by itself.

FILE's extension says the format: .mp4 is fmp4, .mkv, .ts; with --format mp4 an ordinary MP4. FILE appears when it is complete; until then it is
FILE.RANDOM.part, which goes away when the command fails or is stopped (status 1). A file that exists is kept unless --force is given. With -o -
it goes to standard output (fmp4, mkv or ts).` + "\n" + timesHelp + exitStatusHelp,
		Example: `  cfpipe recordings export door --from 12:00 --to 12:05 -o door.mp4
  cfpipe recordings export door --site /etc/cfpipe/site.yaml --from "2026-11-30 23:50" --to 2026-12-01 -o door.mkv
  cfpipe recordings export door --from -5m -o - --format ts | ffplay -`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, a []string) error { return x.run(cmd, o, a[0]) },
	}
	x.libraryFlags.addFlags(c)
	x.spanFlags.addFlags(c)
	f := c.Flags()
	f.StringVarP(&x.out, "out", "o", "", "file to write; - = standard output")
	f.StringVarP(&x.format, "format", "f", "", "fmp4, mkv, ts or mp4; without it the extension of --out says; to standard output fmp4")
	f.BoolVar(&x.force, "force", false, "replace a file that exists")
	f.BoolVar(&x.mute, "no-audio", false, "leave the sound out")
	f.BoolVar(&x.asJSON, "json", false, "print what was written as JSON (to standard error with -o -)")
	return c
}

func (x *exportFlags) run(cmd *cobra.Command, o *globalOptions, key string) error {
	from, to, err := x.span()
	if err != nil {
		return err
	}
	if from.IsZero() {
		return usageError{errors.New("--from is missing: want a time such as 12:00, -1h or \"2026-11-30 12:00\"")}
	}
	if to.IsZero() {
		to = time.Now()
	}
	if !from.Before(to) {
		return usageError{fmt.Errorf("--from %s is not before --to %s", from.Format(time.RFC3339), to.Format(time.RFC3339))}
	}
	format, err := x.outFormat()
	if err != nil {
		return usageError{err}
	}
	out := cmd.OutOrStdout()
	toStdout := x.out == "-"
	if toStdout && isTerminal(out) {
		return usageError{errors.New("-o - is for a pipe: a terminal cannot show it")}
	}
	av.SetLogger(o.Logger)
	lib, err := x.library()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	status := newStatusLine(os.Stderr)
	defer status.clear()
	files, err := lib.List(ctx, recordings.Query{Keys: []string{key}, From: from, To: to}, o.Logger, scanning(status))
	if err != nil {
		return err
	}
	options := recordings.ExportOptions{
		Files: files, From: from, To: to, Format: format, NoAudio: x.mute, Out: out, Logger: o.Logger,
	}
	if status.on {
		options.Progress = progressBar(status, key)
	}
	var done recordings.Exported
	if toStdout {
		done, err = exportToPipe(ctx, options)
	} else {
		done, err = recordings.ExportFile(ctx, x.out, x.force, options)
	}
	status.clear()
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("export %s: it was stopped; there is no file", key) // status 1: what was asked for is not there
	case errors.Is(err, recordings.ErrNothing):
		spans, serr := lib.Spans(ctx, scanning(status))
		status.clear()
		if serr == nil {
			err = &nothingError{[]string{key}, spans}
		}
		return fmt.Errorf("export %s between %s and %s: %w", key, from.Local().Format(time.DateTime), to.Local().Format(time.DateTime), err)
	case err != nil:
		return fmt.Errorf("export %s: %w", key, err)
	}
	return x.tell(cmd, o.Logger, done)
}

// pipeStall is how long a stopped export waits for a reader that takes nothing.
const pipeStall = time.Second

// exportToPipe is Export, but for a pipe that nobody reads: a write into it cannot be given up, the process can.
func exportToPipe(ctx context.Context, o recordings.ExportOptions) (done recordings.Exported, err error) {
	ended := make(chan struct{})
	var x recordings.Exported
	var xerr error
	go func() {
		defer close(ended)
		x, xerr = recordings.Export(ctx, o)
	}()
	select {
	case <-ended:
		return x, xerr
	case <-ctx.Done():
	}
	select {
	case <-ended:
		return x, xerr
	case <-time.After(pipeStall):
		return done, ctx.Err()
	}
}

// tell says what was written.
func (x *exportFlags) tell(cmd *cobra.Command, log *slog.Logger, done recordings.Exported) error {
	out := cmd.OutOrStdout()
	if x.out == "-" {
		out = cmd.ErrOrStderr()
	}
	if x.asJSON {
		return json.NewEncoder(out).Encode(struct {
			Path string `json:"path"`
			recordings.Exported
		}{x.out, done})
	}
	for _, g := range done.Gaps {
		from, to := g.From.Local().Format(time.RFC3339Nano), g.To.Local().Format(time.RFC3339Nano)
		log := log.With("for", g.To.Sub(g.From).Round(time.Millisecond))
		switch {
		case g.LeftOut:
			log.Warn("what is recorded there is left out: it cannot be joined to what is in front of it, or cannot be read", "from", from, "to", to)
		case !g.To.After(done.Start):
			log.Warn("nothing is recorded before: the file begins later than asked", "asked", from, "begins", to)
		case !g.From.Before(done.End):
			log.Warn("nothing is recorded after: the file ends earlier than asked", "ends", from, "asked", to)
		default:
			log.Warn("nothing is recorded there: the file has a gap", "from", from)
		}
	}
	if x.out == "-" {
		return nil
	}
	_, err := fmt.Fprintf(out, "%s  %s  %s  %d access units of %d files\n", x.out, moment(done.Start), length(done.End.Sub(done.Start)), done.Packets, done.Files)
	return err
}

// outFormat takes the container from --format and the extension of --out.
func (x *exportFlags) outFormat() (mux.Format, error) {
	switch {
	case x.out == "":
		return "", errors.New("--out is missing: want -o FILE, or -o - for a pipe")
	case x.out != "-":
		return recordFormat(x.format, x.out)
	case x.format == "":
		return mux.FMP4, nil
	}
	f, err := mux.ParseFormat(x.format)
	if err != nil || f != mux.FMP4 && f != mux.MKV && f != mux.TS {
		return "", fmt.Errorf("--format %s: to standard output it is fmp4, mkv or ts", x.format)
	}
	return f, nil
}

// progressBar shows how far an export is, a few times a second.
func progressBar(s *statusLine, what string) func(float64) {
	const width = 40
	var last time.Time
	begun := time.Now()
	return func(done float64) {
		if time.Since(last) < 100*time.Millisecond {
			return
		}
		last = time.Now()
		n := int(done * width)
		left := ""
		if spent := time.Since(begun); done > 0.02 && spent > time.Second {
			left = fmt.Sprintf("  %s left", time.Duration(float64(spent)*(1-done)/done).Round(time.Second))
		}
		s.show(fmt.Sprintf("%s  [%s%s] %3.0f%%%s", what, strings.Repeat("#", n), strings.Repeat("-", width-n), done*100, left))
	}
}
