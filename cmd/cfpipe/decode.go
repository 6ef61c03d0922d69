package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/pipeline"
)

// decodeFlags are the flags of decoding that decode and ingest share.
type decodeFlags struct {
	mode, memory, policy string
	options              pipeline.DecodeOptions
}

func (d *decodeFlags) add(f *pflag.FlagSet) {
	f.IntVar(&d.options.Slots, "frame-slots", framering.DefaultRingSize, "pictures that the frame ring holds, 1 to 16")
	f.StringVar(&d.policy, "policy", "drop-oldest",
		"towards slow readers of frames: drop-oldest, or strict-wait (decoding waits for their acknowledgements)")
	f.DurationVar(&d.options.AckTimeout, "ack-timeout", framering.DefaultAckTimeout,
		"strict-wait: drop a reader that owes an acknowledgement for so long")
	f.IntVar(&d.options.Device, "device", 0, "GPU to decode on")
	f.StringVar(&d.memory, "frame-memory", "auto", "where frames lie: auto (where they are decoded), host or cuda")
	f.IntVar(&d.options.Threads, "decode-threads", 0,
		"pictures decoded in parallel, each held back by the others; 0 = one, on the CPU its slices in parallel; NVDEC gains up to a tenth by 3")
}

// parse completes the options; an error is one of usage.
func (d *decodeFlags) parse() (err error) {
	if d.options.Mode, err = decode.ParseMode(d.mode); err != nil {
		return usageError{fmt.Errorf("--decode %w", err)}
	}
	if d.options.Memory, err = pipeline.ParseFrameMemory(d.memory); err != nil {
		return usageError{err}
	}
	switch d.policy {
	case "drop-oldest":
		d.options.Policy = framering.DropOldest
	case "strict-wait":
		d.options.Policy = framering.StrictWait
	default:
		return usageError{fmt.Errorf("--policy %q: want drop-oldest or strict-wait", d.policy)}
	}
	if d.options.Slots < 1 || d.options.Slots > framering.MaxRingSize {
		return usageError{fmt.Errorf("--frame-slots %d: want 1 to %d", d.options.Slots, framering.MaxRingSize)}
	}
	if d.options.AckTimeout <= 0 || d.options.Threads < 0 || d.options.Device < 0 {
		return usageError{errors.New("--ack-timeout, --decode-threads or --device is out of range")}
	}
	return nil
}

func newDecodeCommand(o *globalOptions) *cobra.Command {
	var d decodeFlags
	c := &cobra.Command{
		Use:   "decode KEY --key NEWKEY",
		Short: "Decode a camera's packets into a frame ring",
		Long: `Decode reads the packets of KEY as any reader does and publishes the pictures as the frames of NEWKEY: on the GPU's
decoder (NVDEC) into GPU memory, or on the CPU into host memory. It holds up neither the camera nor other readers. Damage is
passed over up to the next keyframe; a new size or format begins a new generation, which readers follow by themselves.

It goes on with the next publisher of KEY when one has ended (see --no-follow).` + "\n" + waitStatusHelp,
		Example: `  cfpipe decode cam1 --key cam1-frames
  cfpipe decode cam1 --key cam1-frames --wait -1s
  cfpipe decode cam1 --key cam1-frames --decode cuda --frame-slots 8 --policy strict-wait`,
		Args: oneKey,
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := d.parse(); err != nil {
				return err
			}
			if d.options.NewKey == "" {
				return usageError{fmt.Errorf("--key is missing (see %s --help)", cmd.CommandPath())}
			}
			if err := errors.Join(framering.CheckKey(a[0]), framering.CheckKey(d.options.NewKey)); err != nil {
				return usageError{err}
			}
			if d.options.NewKey == a[0] {
				return usageError{errors.New("--key is KEY itself: a camera's own frames come from ingest --decode")}
			}
			av.SetLogger(o.Logger)
			tuneForPackets()
			d.options.RuntimeDir, d.options.Key, d.options.Group, d.options.Logger = o.RuntimeDir, a[0], o.Group, o.Logger
			return pipeline.Decode(cmd.Context(), d.options, nil)
		},
	}
	f := c.Flags()
	f.StringVar(&d.options.NewKey, "key", "", "name to publish the frames under")
	f.StringVar(&d.mode, "decode", "auto", "auto (NVDEC where it can, else the CPU), cuda or cpu")
	d.add(f)
	f.Uint32Var(&d.options.Protocol, "protocol", 4, "dialect of the control socket: 4, 2 or 1")
	waitFlag(f, &d.options.WaitForKey, 0, "KEY to be published")
	f.BoolVar(&d.options.NoFollow, "no-follow", false, "end with the publisher of KEY")
	return c
}
