package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/pipeline"
)

func newBridgeCommand(o *globalOptions) *cobra.Command {
	b := pipeline.BridgeOptions{}
	var policy string
	c := &cobra.Command{
		Use:   "bridge KEY --key NEWKEY",
		Short: "Publish a camera again in another version of the protocol",
		Long: `Bridge reads KEY, whatever version its publisher speaks, and publishes the same as NEWKEY in --protocol: packets byte for byte
with their times, frames by one copy within the GPU. So publishers and readers of a site need not move at the same time.

Protocol 4 shares frames in GPU memory or host memory, across containers. Protocol 2 shares them by CUDA IPC handles, which needs a
GPU and one PID namespace for all. Protocol 1 is protocol 2 without packets.` + "\n" + waitStatusHelp,
		Example: `  cfpipe bridge old-cam --key cam1
  cfpipe bridge cam1 --key cam1-v2 --protocol 2`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, a []string) error {
			switch b.Protocol {
			case 1, 2, 4:
			default:
				return usageError{fmt.Errorf("--protocol %d: want 4, 2 or 1", b.Protocol)}
			}
			if b.NewKey == "" {
				return usageError{fmt.Errorf("--key is missing (see %s --help)", cmd.CommandPath())}
			}
			switch policy {
			case framering.DropOldest.String():
			case framering.StrictWait.String():
				b.Policy = framering.StrictWait
			default:
				return usageError{fmt.Errorf("--policy %q: want drop-oldest or strict-wait", policy)}
			}
			if b.FrameSlots < 0 || b.FrameSlots > framering.MaxRingSize {
				return usageError{fmt.Errorf("--frame-slots %d: want 1 to %d", b.FrameSlots, framering.MaxRingSize)}
			}
			b.RuntimeDir, b.Key, b.Group, b.Logger = o.RuntimeDir, a[0], o.Group, o.Logger
			tuneForPackets()
			err := pipeline.Bridge(cmd.Context(), b)
			if errors.Is(err, framering.ErrInvalidArg) {
				err = usageError{err}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&b.NewKey, "key", "", "name to publish under")
	f.Uint32Var(&b.Protocol, "protocol", 4, "version of the protocol that NEWKEY speaks: 4, 2 or 1")
	f.IntVar(&b.FrameSlots, "frame-slots", 0, "pictures that NEWKEY's frame ring holds, 1 to 16; 0 = as many as KEY's")
	f.StringVar(&policy, "policy", framering.DropOldest.String(), "towards slow readers of NEWKEY's frames: drop-oldest or strict-wait")
	f.DurationVar(&b.AckTimeout, "ack-timeout", framering.DefaultAckTimeout, "strict-wait: drop a reader that owes an acknowledgement for so long")
	f.IntVar(&b.Device, "device", 0, "GPU on which frames are copied")
	waitFlag(f, &b.WaitForKey, 10*time.Second, "KEY, and for frames where it publishes those alone, which come after it")
	f.BoolVar(&b.NoFollow, "no-follow", false, "end with the publisher of KEY")
	return c
}
