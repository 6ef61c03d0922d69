package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/pipeline/bench"
)

func newBenchFramesCommand(o *globalOptions) *cobra.Command {
	var b bench.Frames
	var result benchResult
	c := &cobra.Command{
		Use:   "frames",
		Short: "Measure the frame ring",
		Long: "Measures the frame ring between processes, in host memory:\n" +
			"  wake-up   from before the publish to the return of the read in a process that slept in between,\n" +
			"            against a bare futex wake-up between two processes, timed in turn with it\n" +
			"  stream    frames to all readers without loss (strict-wait), each of which copies them out: what reaches\n" +
			"            the readers, against one process that copies alone; all that is copied, against as many\n" +
			"            processes that do not wait for each other; then again with readers that look at every byte\n" +
			"            where it lies\n\n" +
			"and, where there is an NVIDIA GPU, in its memory, where readers copy on the GPU:\n" +
			"  publish   slot, copy of a picture on the GPU and ring, against the same copy and the wait for it\n" +
			"  wake-up   as above, with the copy that decode announces; and of a reader that spins\n" +
			"  stream    as above, against plain copies within the GPU. Processes take turns on a GPU: what they copy together\n" +
			"            has a goal, what one alone would copy is shown beside it\n\n" +
			"A busy machine makes every figure worse; the load average is printed with the result.\n" + exitStatusHelp,
		Example: "  cfpipe bench frames\n  cfpipe bench frames --width 3840 --height 2160 --json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b.Progress = o.measuring
			r, err := bench.RunFrames(cmd.Context(), b)
			if err != nil {
				return benchError(err)
			}
			return result.print(cmd.OutOrStdout(), r)
		},
	}
	f := c.Flags()
	f.DurationVar(&b.Duration, "duration", 3*time.Second, "of each measurement")
	f.IntSliceVar(&b.Rates, "rate", []int{25, 1000}, "frames a second of the wake-up measurements")
	f.IntVar(&b.Width, "width", 1920, "of the frames")
	f.IntVar(&b.Height, "height", 1080, "of the frames")
	f.IntVar(&b.Readers, "readers", 4, "reader processes of the stream")
	f.IntVar(&b.Device, "device", 0, "GPU whose memory is measured")
	result.addFlags(f)
	return c
}
