package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/pipeline/bench"
)

func newBenchNNRPCommand(o *globalOptions) *cobra.Command {
	var b bench.NNRP
	var result benchResult
	c := &cobra.Command{
		Use:   "nnrp",
		Short: "Measure NNRP against gRPC and bare QUIC streams",
		Long: "Measures over the loopback interface, in one process, taking turns:\n" +
			"  full tensors   submit → result, one at a time, against a bidirectional gRPC stream over TLS 1.3 with the same bytes\n" +
			"  changed tiles  the same picture when 6 % of it changes from frame to frame\n" +
			"  throughput     eight at a time, against bare QUIC streams of the same size\n" +
			"  codec          encoding and decoding beside the payload\n" +
			"  lossy paths    50 ms round trip, 2 % loss, 100 Mbit/s: 8 KiB tensors, 12 a second; then the picture one at a time, as\n" +
			"                 full tensors and as changed tiles, against gRPC with CUBIC, TCP's usual congestion control; then gRPC\n" +
			"                 with BBR. 16 paths of each kind at the same time, three times over, between network namespaces; left out\n" +
			"                 where this process may not make those\n\n" +
			"It takes about two and a half minutes. CPU is that of client and server together. The exit status is 0 whether the goals are met or not.",
		Example: "  cfpipe bench nnrp\n  cfpipe bench nnrp --duration 10s --json | jq .goals\n" + exitStatusHelp,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			quietQUIC()
			b.Progress = o.measuring
			r, err := bench.RunNNRP(cmd.Context(), b)
			if err != nil {
				return benchError(err)
			}
			return result.print(cmd.OutOrStdout(), r)
		},
	}
	f := c.Flags()
	f.DurationVar(&b.Duration, "duration", 3*time.Second, "of each measurement")
	f.DurationVar(&b.Lossy, "lossy", 45*time.Second, "of each measurement over lossy paths; negative = none")
	f.IntVar(&b.Side, "side", 640, "width and height of the picture")
	f.IntVar(&b.Tile, "tile", 32, "side of the tiles")
	result.addFlags(f)
	return c
}
