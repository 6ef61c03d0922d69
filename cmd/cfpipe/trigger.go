package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

func newTriggerCommand(o *globalOptions) *cobra.Command {
	var r trigger.Request
	var start, stop, asJSON bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "trigger KEY",
		Short: "Start, prolong or stop the recording of an event",
		Long: `Tells all recorders that wait for events of KEY (cfpipe record KEY --on-event, or a site file) that something happens now. Each records
from its --pre before now until its --post after now; --for adds to that, --start lasts until --stop. A trigger while an event is recorded
prolongs it. It returns at once, with a line for each recorder that took it: started, prolonged, stopping, or idle when there was nothing to
stop. Whoever may open the sockets of the recorders may trigger: their user, or the group of their --group.` + "\n" + `
EXIT STATUS
  0  all recorders of KEY took it
  1  failed, or a recorder refused it
  2  wrong usage
  3  nobody records KEY on events
  4  timed out: a recorder did not answer; those that did are printed
`,
		Example: `  cfpipe trigger door --reason 'bell rung'
  cfpipe trigger yard --for 30s --json | jq -r .event.id
  cfpipe trigger gate --start --reason 'lorry'; sleep 60; cfpipe trigger gate --stop`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := oneOf(cmd, "start", "stop"); err != nil {
				return err
			}
			switch {
			case start:
				r.Action = trigger.Start
			case stop:
				r.Action = trigger.Stop
			default:
				r.Action = trigger.Momentary
			}
			if err := r.Check(); err != nil {
				return usageError{err}
			}
			if timeout <= 0 {
				return usageError{fmt.Errorf("--timeout %v: want more than nothing", timeout)}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			took, err := trigger.Send(ctx, o.RuntimeDir, a[0], r)
			for _, t := range took {
				var perr error
				if asJSON {
					perr = json.NewEncoder(cmd.OutOrStdout()).Encode(t)
				} else {
					_, perr = fmt.Fprintln(cmd.OutOrStdout(), triggerLine(t))
				}
				err = errors.Join(err, perr)
			}
			return err
		},
	}
	f := c.Flags()
	f.BoolVar(&start, "start", false, "begin an event that lasts until --stop, or as long as the recorder's --longest")
	f.BoolVar(&stop, "stop", false, "end the event")
	f.DurationVar(&r.For, "for", 0, "how long it goes on from now")
	f.StringVar(&r.Reason, "reason", "", "text that goes with the event")
	f.DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the recorders' answers")
	f.BoolVar(&asJSON, "json", false, "print a JSON line for each recorder")
	return c
}

// triggerLine is what a recorder has said, who may be anybody that may open a socket there.
func triggerLine(a trigger.Answer) string {
	s := fmt.Sprintf("%s  recorder %d  %s", cell(a.Key), a.PID, cell(string(a.State)))
	if e := a.Event; e != nil {
		s += "  event " + cell(e.ID)
		if e.End != nil {
			s += "  until " + e.End.Local().Format("15:04:05")
		} else {
			s += "  until it is stopped"
		}
	}
	if a.Note != "" {
		s += "  note: " + cell(a.Note)
	}
	return s
}
