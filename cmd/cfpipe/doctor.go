package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/pipeline"
)

func newDoctorCommand(o *globalOptions) *cobra.Command {
	var asJSON, clean bool
	c := &cobra.Command{
		Use:   "doctor [--clean [KEY…]]",
		Short: "Say what this machine can do, and what to change",
		Long: "Looks at FFmpeg, the GPU, shared memory, limits and permissions, and names a remedy for each finding.\n" +
			"Changes nothing without --clean: that removes what killed publishers have left in /dev/shm and names it, all of it that this user\n" +
			"may remove, or what belongs to the KEYs named and to their sound; their sockets in --runtime-dir go with it. A KEY of which\n" +
			"nothing is left is named, with status 3. Without --clean what is left is named alone.\n" +
			"Exits 1 when something that cfpipe needs does not work.\n" + exitStatusHelp,
		Example: "  cfpipe doctor\n  cfpipe doctor --clean cam1\n  cfpipe doctor --json | jq '.[] | select(.status != \"ok\")'",
		Args: func(_ *cobra.Command, keys []string) error {
			if len(keys) > 0 && !clean {
				return usageError{errors.New("doctor takes a KEY with --clean alone; cfpipe inspect KEY shows one")}
			}
			return checkKeys(keys...)
		},
		RunE: func(c *cobra.Command, keys []string) error {
			if clean {
				removed, err := pipeline.CleanOrphans(o.RuntimeDir, keys...)
				for _, r := range removed {
					fmt.Fprintf(c.ErrOrStderr(), "removed /dev/shm/%s (%d KiB)\n", printable(r.Name), r.Bytes>>10)
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
	c.Flags().BoolVar(&asJSON, "json", false, "print the findings as a JSON array of {name, status, detail, remedy, orphans}, in one line")
	c.Flags().BoolVar(&clean, "clean", false, "first remove the rings that killed publishers have left in /dev/shm: those of the KEYs named, or all")
	return c
}

func printFindings(w io.Writer, findings []pipeline.Finding, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(findings)
	}
	for _, f := range findings {
		if _, err := fmt.Fprintf(w, "%-4s  %-15s %s\n", f.Status, f.Name, f.Detail); err != nil {
			return err
		}
		if err := printOrphans(w, f.Orphans); err != nil {
			return err
		}
		if f.Remedy != "" {
			fmt.Fprintf(w, "      %-15s → %s\n", "", f.Remedy)
		}
	}
	return nil
}

// orphansShown are named at the most: a screenful, with the rest of what doctor says.
const orphansShown = 16

// printOrphans prints a line for each ring that a killed publisher has left, the newest first.
func printOrphans(w io.Writer, list []pipeline.OrphanFinding) error {
	list = slices.SortedStableFunc(slices.Values(list), func(a, b pipeline.OrphanFinding) int { return cmp.Compare(a.AgeSeconds, b.AgeSeconds) })
	more := len(list) - orphansShown
	list = list[:min(len(list), orphansShown)]
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, o := range list {
		owner := fmt.Sprintf("uid %d", o.UID)
		if o.PID != 0 {
			owner = fmt.Sprintf("pid %d, %s", o.PID, owner)
		}
		clean := "--clean removes it"
		if !o.Removable {
			clean = fmt.Sprintf("--clean cannot remove it: run it as uid %d", o.UID)
		}
		fmt.Fprintf(t, "%22s%s\t%s\t%s old\t%s\t%s\n", "", printable(o.File), bytesText(o.Bytes), age(&o.AgeSeconds), owner, clean)
	}
	if err := t.Flush(); err != nil || more <= 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "%22sand %d more; --json names all\n", "", more)
	return err
}
