package main

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/pipeline"
)

type inferOptions struct {
	pipeline.InferOptions
	Size, DType, Layout, TokenFile, Tensors string
}

func newInferCommand(o *globalOptions) *cobra.Command {
	i := inferOptions{}
	c := &cobra.Command{
		Use:   "infer KEY --to nnrps://HOST:PORT",
		Short: "Send a camera's newest pictures to an NNRP runtime",
		Long: "Takes the newest pictures of KEY's frame ring, scales and converts them to the tensor that the runtime's model takes, and writes\n" +
			"each result as a line of JSON: seq and pts (Unix ns) of the picture, the tensors by role_id, and the runtime's three times.\n" +
			"Pictures are never queued: when camera and runtime differ in speed, those in between are passed over. With --tile only the\n" +
			"parts of the picture that have changed travel, for cameras that stand still. It outlives cameras, connections and runtimes.\n\n" +
			"The runtime's certificate is checked against --ca, the pinned --fingerprint that `cfpipe nnrp serve` prints, or the system's CAs;\n" +
			"one that is not trusted at the first connection ends the command, and its fingerprint is shown.\n" +
			"KEY needs frames: ingest --decode, or decode.\n" + waitStatusHelp,
		Example: "  cfpipe infer cam1 --to nnrps://gpu1:4433 --fingerprint 00b1f01a…\n" +
			"  cfpipe infer cam1 --to nnrps://gpu1 --ca ca.pem --token-file token --model yolo --fps 10 | jq .tensors\n" +
			"  cfpipe infer cam1 --to nnrps://gpu1 --ca ca.pem --tile 32 --threshold 4",
		Args: oneKey,
		RunE: func(cmd *cobra.Command, a []string) error {
			if err := i.resolve(); err != nil {
				return err
			}
			quietQUIC()
			i.RuntimeDir, i.Key, i.Logger, i.Out = o.RuntimeDir, a[0], o.Logger, cmd.OutOrStdout()
			if i.TokenFile != "" {
				var err error
				if i.Token, err = quictransport.LoadToken(i.TokenFile); err != nil {
					return err
				}
			}
			s, err := pipeline.Infer(cmd.Context(), i.InferOptions)
			if s.Sent+s.Unchanged > 0 {
				o.Logger.Info("inferred", "sent", s.Sent, "results", s.Results, "dropped", s.Dropped, "expired", s.Expired, "refused", s.Refused,
					"unchanged", s.Unchanged, "sessions", s.Sessions, "tiles_sent", s.TilesSent, "tiles", s.TilesAll)
			}
			if errors.Is(err, syscall.EPIPE) { // whoever read has seen enough
				return nil
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&i.To, "to", "", "the runtime, nnrps://host:port (port 4433 when none is named)")
	f.StringVar(&i.Model, "model", "", "the model that the runtime must have")
	f.StringVar(&i.Size, "size", "", "WxH of the tensor (default: what the model takes, else the camera's)")
	f.StringVar(&i.DType, "dtype", "", "uint8, int8, uint16, fp16 or fp32; floats are 0 to 1 (default: what the model takes)")
	f.StringVar(&i.Layout, "layout", "", "nhwc or nchw (default: what the model takes)")
	f.IntVar(&i.Format.Channels, "channels", 0, "1 for luma, 3 for RGB (default: what the model takes, else 3)")
	f.Float64Var(&i.FPS, "fps", 0, "at most so many pictures a second (default: as fast as results come)")
	f.IntVar(&i.InFlight, "in-flight", 2, "pictures under way at a time")
	f.DurationVar(&i.Latency, "latency", time.Second, "budget of a picture; a later result is not waited for")
	f.IntVar(&i.Tile, "tile", 0, "send only what has changed, in tiles of so many pixels a side; 0 = whole pictures")
	f.IntVar(&i.Threshold, "threshold", 2, "with --tile: mean difference from which a tile counts as changed")
	f.BoolVar(&i.Raw, "raw", false, "do not compress")
	f.StringVar(&i.TokenFile, "token-file", "", "file with the token for the runtime")
	f.StringVar(&i.Trust.CAFile, "ca", "", "PEM file with the CA of the runtime's certificate, or the certificate itself")
	f.StringVar(&i.Trust.Fingerprint, "fingerprint", "", "SHA-256 of the runtime's certificate")
	f.StringVar(&i.Trust.ServerName, "server-name", "", "name to expect in the certificate (default: the host of --to)")
	f.StringVar(&i.Tensors, "tensors", "numbers", "how tensors are written: numbers or base64 (little-endian elements)")
	f.BoolVar(&i.SDK, "sdk-hello", false, "send CLIENT_HELLO in the public SDKs' order")
	f.Uint64Var(&i.Count, "count", 0, "stop after so many results; 0 = when stopped")
	f.DurationVar(&i.Duration, "duration", 0, "stop after so much; 0 = when stopped")
	waitFlag(f, &i.WaitForKey, 0, "KEY's frames")
	f.IntVar(&i.Device, "device", 0, "GPU on which frames in GPU memory are read")
	return c
}

// resolve turns the flags' texts into options.
func (i *inferOptions) resolve() error {
	if i.To == "" {
		return usageError{errors.New("--to is missing: nnrps://host:port of the runtime")}
	}
	if err := i.SetFormat(i.Size, i.DType, i.Layout); err != nil {
		return usageError{fmt.Errorf("--%w", err)}
	}
	switch i.Tensors {
	case "numbers":
	case "base64":
		i.Base64 = true
	default:
		return usageError{fmt.Errorf("--tensors %q: want numbers or base64", i.Tensors)}
	}
	if i.Duration < 0 {
		return usageError{errors.New("--duration is negative")}
	}
	if err := i.Check(); err != nil {
		return usageError{fmt.Errorf("--%w", err)}
	}
	if err := i.Trust.Check(); errors.Is(err, quictransport.ErrFingerprint) {
		return usageError{fmt.Errorf("--fingerprint %.80q: %w, as cfpipe nnrp serve prints it", i.Trust.Fingerprint, quictransport.ErrFingerprint)}
	} else if err != nil {
		return err
	}
	return nil
}
