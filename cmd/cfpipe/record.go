package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

func newRecordCommand(o *globalOptions) *cobra.Command {
	r := pipeline.RecordOptions{}
	var format, fsync string
	var asJSON, mute, onEvent bool
	var index string
	event := pipeline.EventOptions{}
	c := &cobra.Command{
		Use:   "record KEY --out PATTERN",
		Short: "Record a camera into files",
		Long: `Record writes the packets of KEY, and of KEY-audio where there is one, into files: nothing is decoded.

PATTERN is the name of a file with strftime conversions (local time of the first picture; %f is milliseconds, %s Unix
seconds) and %{key}. Missing folders are made, and a file that exists is never overwritten: the new one gets a number
("-2") in front of its extension. The file that is being written has its final name, is locked (fcntl's F_OFD_SETLK) and can be played;
it is complete when it is reported.

A file begins at a keyframe. The next one begins at the first keyframe after --segment, after a gap, and when the size or the
codec of the pictures changes. The times at which segments end are a grid that begins with the first file, and with the file
after each gap: they do not drift. Ctrl-C or SIGTERM finishes the file. The recording stays when the publisher or the disk goes
away, and goes on when it is back.

fmp4 and mkv can be played at any moment and lose at most the second in flight when the power fails or the process is killed;
so does ts. mp4 is fragmented as well while it is written, and gets an ordinary index at its end. G.711 and L16 in MP4 are
stored as they are, in MP4's QuickTime flavour. Audio that the format cannot hold is left out, with a warning.

With --on-event it records around events alone: it waits for cfpipe trigger KEY, reads nothing meanwhile, and then records from the
keyframe at or before the trigger less --pre until --post after it. A trigger while an event is recorded prolongs it. The time before
the trigger comes from the packet ring: how far that reaches back is logged, with a warning when --pre is longer. --longest ends an event
that nobody stops; what other triggers ask for beyond it is the next event, without a gap. --segment cuts a long event into files. A recorder
that is started again in an event, after it was killed or upgraded, goes on with it.

--fsync says when data is forced to the disk: with "fragment" a loss of power costs the second in flight; "segment" does it
when a file is finished; with "never" (the default) the kernel writes within about 30 s. A killed process costs the
second in flight in all three.` + "\n" + waitStatusHelp,
		Example: `  cfpipe record cam1 --out '/video/%{key}/%Y-%m-%d/%H-%M-%S.mp4' --segment 60s
  cfpipe record cam1 --out event.mp4 --segment 0 --pre 10s --duration 30s
  cfpipe record cam1 --out 'events/%{key}/%Y-%m-%d/%H-%M-%S.mp4' --on-event --pre 10s --post 10s
  cfpipe record cam1 --out '%{key}-%s.mkv' --format mkv --json | jq .path`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, a []string) error {
			switch r.Fsync = mux.Fsync(fsync); r.Fsync {
			case mux.FsyncFragment, mux.FsyncSegment, mux.FsyncNever:
			default:
				return usageError{fmt.Errorf("--fsync %q: want fragment, segment or never", fsync)}
			}
			if r.Out == "" {
				return usageError{fmt.Errorf("--out is missing (see %s --help)", cmd.CommandPath())}
			}
			if _, err := mux.ParsePattern(r.Out, a[0]); err != nil {
				return usageError{fmt.Errorf("--out: %w", err)}
			}
			var err error
			if r.Format, err = recordFormat(format, r.Out); err != nil {
				return usageError{err}
			}
			if err := notNegative(cmd, "segment", "pre", "duration", "post", "longest"); err != nil {
				return err
			}
			if err := eventFlags(cmd, &r, event, onEvent); err != nil {
				return err
			}
			r.RuntimeDir, r.Key, r.Logger = o.RuntimeDir, a[0], o.Logger
			av.SetLogger(o.Logger)
			tuneForPackets()
			status := newStatusLine(os.Stderr)
			r.Progress = func(p pipeline.RecordProgress) {
				status.show(fmt.Sprintf("%s  %s  %d access units  %.1f MB  %d lost", r.Key, p.Recorded.Round(time.Second), p.Packets,
					float64(p.Bytes)/1e6, p.Lost))
			}
			if !status.on {
				r.Progress = nil
			}
			r.Done = func(f pipeline.Recorded) {
				status.clear()
				var err error
				if asJSON {
					err = json.NewEncoder(cmd.OutOrStdout()).Encode(newSegmentLine(f))
				} else {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), segmentText(f))
				}
				if err != nil && !mute {
					mute = true
					o.Logger.Warn("finished files cannot be reported; the recording goes on", "key", r.Key, "error", err)
				}
			}
			if r.OnEvent != nil {
				r.OnEvent.Group = o.Group
			}
			if index != "" {
				stop, err := withIndex(&r, index)
				if err != nil {
					return err
				}
				defer stop()
			}
			err = outwaited(cmd.Context(), "record "+r.Key, func() error { return pipeline.Record(cmd.Context(), r) })
			status.clear()
			return stopped(cmd.Context(), err)
		},
	}
	f := c.Flags()
	f.StringVarP(&r.Out, "out", "o", "", "name of the files: strftime conversions and %{key}")
	f.StringVarP(&format, "format", "f", "", "fmp4, mkv, ts or mp4; without it the extension of --out says: .mp4 is fmp4, .mkv, .ts")
	f.DurationVar(&r.Segment, "segment", time.Minute, "length of a file; 0 = one file")
	f.DurationVar(&r.Pre, "pre", 0,
		"begin so far in the past, as far as the ring still holds it; with --on-event so far before the trigger (default 10s then)")
	f.BoolVar(&onEvent, "on-event", false, "record around events alone, see cfpipe trigger")
	f.DurationVar(&event.Post, "post", 10*time.Second, "with --on-event: go on for so long after the trigger, or its end")
	f.DurationVar(&event.Longest, "longest", 10*time.Minute, "with --on-event: bound of an event, --pre and --post included; 0 = none")
	f.DurationVar(&r.Duration, "duration", 0, "stop after so much is recorded, what --pre brings included; 0 = when stopped")
	waitFlag(f, &r.WaitForKey, 0, "KEY to be published")
	f.StringVar(&fsync, "fsync", string(mux.FsyncNever), "fragment, segment or never")
	f.BoolVar(&r.NoAudio, "no-audio", false, "leave KEY-audio out")
	f.BoolVar(&asJSON, "json", false, "print a JSON line for each finished file")
	f.StringVar(&index, "index", "", "keep an index of the files here, for cfpipe recordings; several recorders may share it")
	return c
}

// outwaited runs f, which ends when ctx does. One that a disk holds up is left behind: what the disk took is there, and plays.
func outwaited(ctx context.Context, what string, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(pipeline.StopTimeout):
		return fmt.Errorf("%s does not stop within %v: the disk does not answer, and what it has not taken is in no file", what, pipeline.StopTimeout)
	}
}

// withIndex lets a recording tell an index of its files. The recorder never waits for it. stop writes what was told until then.
func withIndex(r *pipeline.RecordOptions, path string) (stop func(), err error) {
	place, err := recordings.PlaceOf(r.Key, r.Out)
	if err != nil {
		return nil, err
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	w := recordings.NewWriter(recordings.WriterOptions{Path: path, Places: []recordings.Place{place}, Logger: r.Logger})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	key, done, cause := r.Key, r.Done, mux.CauseContinuous
	if r.OnEvent != nil {
		cause = mux.CauseEvent
	}
	r.Started = func(path string, start time.Time) { w.Started(key, path, start, cause) }
	r.Done = func(f pipeline.Recorded) {
		w.Finished(recordings.FileOf(f.Key, f.Segment))
		done(f)
	}
	return func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(pipeline.StopTimeout):
			r.Logger.Error("the index of recordings does not stop and is left behind")
		}
	}, nil
}

// eventFlags sets what --on-event asks for.
func eventFlags(cmd *cobra.Command, r *pipeline.RecordOptions, e pipeline.EventOptions, on bool) error {
	if !on {
		for _, name := range []string{"post", "longest"} {
			if cmd.Flags().Changed(name) {
				return usageError{fmt.Errorf("--%s goes with --on-event alone", name)}
			}
		}
		return nil
	}
	if !cmd.Flags().Changed("pre") {
		r.Pre = 10 * time.Second
	}
	if err := e.Check(r.Pre); err != nil {
		return usageError{err}
	}
	r.OnEvent = &e
	return nil
}

// recordFormat takes the container from --format and the extension of --out, which must agree.
func recordFormat(format, out string) (mux.Format, error) {
	if st, err := os.Stat(out); err == nil && st.IsDir() {
		return "", fmt.Errorf("--out %s is a folder: name the files in it, for example %s", out, filepath.Join(out, "%{key}-%Y%m%d-%H%M%S.mp4"))
	}
	f, err := mux.FileFormat(format, out)
	if err != nil {
		return "", fmt.Errorf("--out %s: %w", out, err)
	}
	return f, nil
}

// stopped turns the end by a signal into no error: there is nothing to tell.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
