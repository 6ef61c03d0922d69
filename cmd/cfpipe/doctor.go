package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/pipeline"
)

func newDoctorCommand(o *globalOptions) *cobra.Command {
	var asJSON, clean bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this machine can do, and what to change",
		Long: "Looks at FFmpeg, the GPU, shared memory, limits and permissions, and names a remedy for each finding.\n" +
			"Changes nothing without --clean. Exits 1 when something that cfpipe needs does not work.\n" + exitStatusHelp,
		Example: "  cfpipe doctor\n  cfpipe doctor --json | jq '.[] | select(.status != \"ok\")'",
		Args:    args(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) error {
			if clean {
				n, bytes, err := pipeline.CleanOrphans()
				if n > 0 {
					o.Logger.Info("removed rings of killed publishers", "rings", n, "bytes", bytes)
				}
				if err != nil {
					return err
				}
			}
			findings := pipeline.Doctor(pipeline.DoctorOptions{RuntimeDir: o.RuntimeDir})
			if err := printFindings(c.OutOrStdout(), findings, asJSON); err != nil {
				return err
			}
			for _, f := range findings {
				if f.Status == pipeline.FindingFail {
					return errors.New("doctor: this machine needs the changes named above")
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print the findings as a JSON array of {name, status, detail, remedy}")
	c.Flags().BoolVar(&clean, "clean", false, "first remove the rings that killed publishers have left in /dev/shm")
	return c
}

func printFindings(w io.Writer, findings []pipeline.Finding, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(findings)
	}
	for _, f := range findings {
		if _, err := fmt.Fprintf(w, "%-4s  %-15s %s\n", f.Status, f.Name, f.Detail); err != nil {
			return err
		}
		if f.Remedy != "" {
			fmt.Fprintf(w, "      %-15s → %s\n", "", f.Remedy)
		}
	}
	return nil
}
