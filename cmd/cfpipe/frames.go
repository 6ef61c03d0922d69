package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/pipeline"
)

func newFramesCommand(o *globalOptions) *cobra.Command {
	e := pipeline.ExportFramesOptions{}
	var format string
	var meta bool
	c := &cobra.Command{
		Use:   "frames KEY",
		Short: "Write a camera's decoded pictures to standard output",
		Long: `Frames writes the pictures of KEY's frame ring to standard output as they come: all in order, or always the newest (--latest).
The key needs frames: ingest --decode, or decode.

y4m is planar YUV that every tool reads; it holds one size and ends with an error when the camera's changes. raw is the pixels as they
stand in the ring (NV12 or P010), plane after plane, without the padding of lines.` + "\n" + waitStatusHelp,
		Example: `  cfpipe frames cam1 | ffplay -
  cfpipe frames cam1 --format raw --json 2>meta.jsonl | detector
  cfpipe frames cam1 --latest --count 1 > picture.y4m`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, a []string) error {
			switch e.Format = pipeline.FrameFormat(format); e.Format {
			case pipeline.Y4M, pipeline.Raw:
			default:
				return usageError{fmt.Errorf("--format %q: want y4m or raw", format)}
			}
			if e.Duration < 0 {
				return usageError{errors.New("--duration is negative")}
			}
			e.Out = cmd.OutOrStdout()
			if isTerminal(e.Out) {
				return usageError{errBinary}
			}
			if meta {
				e.Meta = os.Stderr
			}
			av.SetLogger(o.Logger)
			tuneForPackets()
			e.RuntimeDir, e.Key, e.Logger = o.RuntimeDir, a[0], o.Logger
			return pipeline.ExportFrames(cmd.Context(), e)
		},
	}
	f := c.Flags()
	f.StringVarP(&format, "format", "f", string(pipeline.Y4M), "y4m or raw")
	f.BoolVar(&e.Latest, "latest", false, "always the newest picture; those in between are passed over")
	f.BoolVar(&e.Current, "current", false, "begin with the newest picture that is there, not with the next one")
	f.Uint64Var(&e.Count, "count", 0, "stop after so many pictures; 0 = when stopped")
	f.DurationVar(&e.Duration, "duration", 0, "stop after so much; 0 = when stopped")
	f.BoolVar(&meta, "json", false, "write a line of JSON for each picture to standard error")
	waitFlag(f, &e.WaitForKey, 0, "KEY's frames")
	f.BoolVar(&e.Follow, "follow", false, "go on with the next publisher when this one has ended")
	f.IntVar(&e.Device, "device", 0, "GPU on which frames in GPU memory are read")
	return c
}
