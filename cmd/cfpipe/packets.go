package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline"
)

// errBinary keeps a terminal from being written full of video.
var errBinary = errors.New("standard output is a terminal and the output is binary: pipe it, e.g. \"| ffplay -\", or redirect it to a file")

func newPacketsCommand(o *globalOptions) *cobra.Command {
	e := pipeline.ExportOptions{}
	var format, from string
	c := &cobra.Command{
		Use:   "packets KEY",
		Short: "Write a camera's packets to standard output",
		Long: `Packets writes the access units of KEY to standard output as they come, beginning with the newest keyframe in the ring.
The containers carry KEY-audio as a second track where there is one and the format can hold it.

annexb is the bare byte stream of the video (Annex B; OBUs of AV1; JPEGs one after another). nut holds every codec at
its exact times and is the best choice for a pipe into ffmpeg.

It ends with the publication (see --follow), and quietly when whoever reads the pipe has seen enough.` + "\n" + waitStatusHelp,
		Example: `  cfpipe packets cam1 -f nut | ffmpeg -i - -c:v copy out.mp4
  cfpipe packets cam1 -f mpegts | vlc -
  cfpipe packets cam1 --count 1 > keyframe.h264`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, a []string) error {
			var err error
			if e.Format, err = mux.ParseFormat(format); err != nil {
				return usageError{err}
			}
			if e.Format == mux.MP4 {
				return usageError{errors.New("--format mp4: a pipe cannot be patched; use fmp4")}
			}
			switch from {
			case "live":
				e.Start = pipeline.StartLive
			case "oldest":
				e.Start = pipeline.StartOldest
			default:
				return usageError{fmt.Errorf("--from %q: want live or oldest", from)}
			}
			if e.Duration < 0 {
				return usageError{errors.New("--duration is negative")}
			}
			e.Out = cmd.OutOrStdout()
			if isTerminal(e.Out) {
				return usageError{errBinary}
			}
			av.SetLogger(o.Logger)
			tuneForPackets()
			e.RuntimeDir, e.Key, e.Logger = o.RuntimeDir, a[0], o.Logger
			return stopped(cmd.Context(), pipeline.Export(cmd.Context(), e))
		},
	}
	f := c.Flags()
	f.StringVarP(&format, "format", "f", string(mux.AnnexB), "annexb, mpegts, nut, fmp4 or mkv")
	f.DurationVar(&e.Duration, "duration", 0, "stop after so much; 0 = when stopped")
	f.Uint64Var(&e.Count, "count", 0, "stop after so many access units; 0 = when stopped")
	f.StringVar(&from, "from", "live", "where to begin: live (newest keyframe) or oldest (all that the ring holds)")
	waitFlag(f, &e.WaitForKey, 0, "KEY to be published")
	f.BoolVar(&e.Follow, "follow", false, "go on with the next publisher when this one has ended")
	f.BoolVar(&e.NoAudio, "no-audio", false, "leave KEY-audio out")
	return c
}
