package main

import (
	"github.com/spf13/cobra"
)

func newNNRPCommand(o *globalOptions) *cobra.Command {
	c := &cobra.Command{
		Use:   "nnrp",
		Short: "Serve tensors to other hosts, and look at captured NNRP bytes",
		Long: "NNRP/1-preview1 carries tensors to an inference runtime on another host over QUIC.\n" +
			"`cfpipe infer` is its client, `cfpipe nnrp serve` its runtime.",
		Args: noArgs,
	}
	c.AddCommand(newNNRPServeCommand(o), newNNRPDumpCommand(o))
	return c
}
