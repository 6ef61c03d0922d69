package main

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cfpipe/cfpipe/pipeline/bench"
)

func newBenchCommand(o *globalOptions) *cobra.Command {
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine",
		Long: "Measures throughput, latency and CPU use on this machine, each figure against a reference that is\n" +
			"timed in the same run (plain memory copies, bare futex wake-ups), by helper processes of its own.",
		Args: noArgs,
	}
	c.AddCommand(newBenchPacketsCommand(o), newBenchFramesCommand(o), newBenchNNRPCommand(o), &cobra.Command{
		Use: "helper", Hidden: true, DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, a []string) error { return bench.Helper(a) },
	})
	return c
}

// benchResult prints what a benchmark has found: text, or JSON with --json.
type benchResult struct{ json bool }

func (b *benchResult) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&b.json, "json", false, "print the result as one line of JSON")
}

func (b *benchResult) print(out io.Writer, r interface{ Write(io.Writer) error }) error {
	if !b.json {
		return r.Write(out)
	}
	return json.NewEncoder(out).Encode(r)
}

// benchError makes what cannot be measured wrong usage.
func benchError(err error) error {
	if errors.Is(err, bench.ErrOptions) {
		return usageError{err}
	}
	return err
}

// measuring tells the user what a benchmark does now.
func (o *globalOptions) measuring(what string) { o.Logger.Info("measuring", "what", what) }

func newBenchPacketsCommand(o *globalOptions) *cobra.Command {
	var b bench.Packets
	var result benchResult
	c := &cobra.Command{
		Use:   "packets",
		Short: "Measure the packet ring",
		Long: "Measures the packet ring between processes:\n" +
			"  wake-up   from before the publish to the return of the read in a process that slept in between,\n" +
			"            against a bare futex wake-up between two processes, timed in turn with it\n" +
			"  busy-poll the same for a reader that spins\n" +
			"  stream    64 KiB packets to all readers without loss: what reaches the readers, against one process that\n" +
			"            copies alone; all that is copied, against as many processes that do not wait for each other;\n" +
			"            and heap allocations per packet\n" +
			"  CPU       of an idle publisher and idle readers, and of those of a 4 Mbit/s camera\n\n" +
			"A busy machine makes every figure worse; the load average is printed with the result. The whole takes\n" +
			"about ten times --duration. The exit status is 0 whether the goals are met or not.",
		Example: "  cfpipe bench packets\n  cfpipe bench packets --duration 10s --rate 25 --json | jq .goals\n" + exitStatusHelp,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b.Progress = o.measuring
			r, err := bench.RunPackets(cmd.Context(), b)
			if err != nil {
				return benchError(err)
			}
			return result.print(cmd.OutOrStdout(), r)
		},
	}
	f := c.Flags()
	f.DurationVar(&b.Duration, "duration", 3*time.Second, "of each measurement")
	f.IntSliceVar(&b.Rates, "rate", []int{100, 1000}, "packets a second of the wake-up measurements")
	f.IntVar(&b.Size, "size", 4096, "payload bytes of the wake-up measurements")
	f.IntVar(&b.Readers, "readers", 4, "reader processes of the stream")
	f.StringSliceVar(&b.Only, "only", nil, "measure these alone: "+strings.Join(bench.Parts, ", "))
	result.addFlags(f)
	return c
}
