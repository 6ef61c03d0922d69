package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/pipeline"
)

func newInspectCommand(o *globalOptions) *cobra.Command {
	var w watchOptions
	var slots bool
	c := &cobra.Command{
		Use:   "inspect KEY",
		Short: "Show all of a key's rings: header, slots, subscribers, rates, lag",
		Long: "Shows what stands in the shared memory of a key: the headers, the subscriber table with how far each reader\n" +
			"is behind, the rates, and with --slots every packet and frame slot. It reads shared memory and disturbs nobody.\n" +
			"What a dead publisher has left behind is shown too, with exit status 3.\n" + exitStatusHelp,
		Example: "  cfpipe inspect cam1\n  cfpipe inspect cam1 --json | jq .packets.buffered_seconds\n  cfpipe inspect cam1 --watch",
		Args:    oneKey,
		RunE: func(c *cobra.Command, a []string) error {
			return w.run(c.Context(), c.OutOrStdout(), func(out io.Writer) (any, error) {
				s, err := pipeline.InspectKey(o.RuntimeDir, a[0])
				if s.Key == "" {
					return nil, err
				}
				if w.JSON {
					return s, err
				}
				if w.Watch && s.Packets != nil { // what fits on a screen
					s.Packets.Packets = s.Packets.Packets[max(len(s.Packets.Packets)-watchedPackets, 0):]
				}
				return nil, errors.Join(printKey(out, s, slots), err)
			})
		},
	}
	w.addFlags(c)
	c.Flags().BoolVar(&slots, "slots", false, "show every packet and frame slot too; --json always does")
	return c
}

// watchedPackets is how many packets inspect --watch shows: the newest ones.
const watchedPackets = 16

// printKey prints what inspect shows, and with slots the tables of packets and frames.
func printKey(out io.Writer, s pipeline.KeyStatus, slots bool) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if s.NoAccess {
		fmt.Fprintf(t, "key\t%s\nstate\tno access\nsocket\t%s\n", s.Key, s.Socket)
		return t.Flush() // the error says why
	}
	state := "alive"
	if !s.Alive {
		state = "dead, left behind"
		if s.Error != "" {
			state = "not known"
		}
	}
	fmt.Fprintf(t, "key\t%s\nstate\t%s\npid\t%d\nprotocol\t%d\nsocket\t%s\n", s.Key, state, s.PID, s.Protocol, s.Socket)
	if s.Error != "" {
		fmt.Fprintf(t, "error\t%s\n", s.Error)
	}
	fmt.Fprintf(t, "stream\t%s %s\n", orDash(s.Codec), s.Size())
	if p := s.Packets; p != nil {
		fmt.Fprintf(t, "rate\t%.1f packets/s, %.0f kbit/s\nnewest packet\t%s ago\nGOP\t%s\n",
			s.PacketsPerSecond, s.KbitPerSecond, age(s.AgeSeconds), gop(s))
		fmt.Fprintf(t, "\npacket ring\t/dev/shm/%s, protocol %d, pid %d%s\n", p.Shm, p.Protocol, p.PID, shutDown(p.ShutDown))
		fmt.Fprintf(t, "global_seq\t%d\nlast_keyframe_seq\t%d\nwrite_offset\t%d\n", p.GlobalSeq, p.LastKeyframeSeq, p.WriteOffset)
		fmt.Fprintf(t, "codec_id\t%d, %d bytes of extradata\n", p.CodecID, p.ExtradataBytes)
		fmt.Fprintf(t, "buffered\t%d packets in %d slots, %d of %d bytes, %.1f s\n",
			p.BufferedPackets, p.SlotCount, p.BufferedBytes, p.DataBytes, p.BufferedSeconds)
	}
	if f := s.Frames; f != nil {
		fmt.Fprintf(t, "\nframe ring\t/dev/shm/%s, %d slots, %s%s\n", f.Shm, f.SlotCount, f.Policy, shutDown(f.ShutDown))
		fmt.Fprintf(t, "frame\t%s %dx%d, pitch %d and %d, %d bytes\n", f.Format, f.Width, f.Height, f.PitchY, f.PitchUV, f.FrameSize)
		fmt.Fprintf(t, "global_seq\t%d\nsubscriber_bitmap\t%#x\n", f.GlobalSeq, f.Bitmap)
	}
	if err := t.Flush(); err != nil {
		return err
	}

	fmt.Fprintf(t, "\nBIT\tREADER\tPID\tSTATE\tTAKES\tLAST SEQ\tLAG\tSEEN\n")
	for _, r := range s.Readers {
		takes, lag, seq := "packets", "-", "-"
		if r.Frames {
			takes = "frames"
		}
		if r.Lag != nil {
			lag, seq = fmt.Sprint(*r.Lag), fmt.Sprint(r.LastSeq)
		}
		fmt.Fprintf(t, "%d\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", r.Bit, r.Title(), r.PID, r.State, takes, seq, lag, age(r.SeenSeconds))
	}
	if len(s.Readers) == 0 {
		fmt.Fprintln(t, "-\tnone")
	}
	if err := t.Flush(); err != nil || !slots {
		return err
	}

	if p := s.Packets; p != nil && len(p.Packets) > 0 {
		fmt.Fprintf(t, "\nPACKET\tSLOT\tTIME\tDTS+MS\tBYTES\tFLAGS\n")
		for i, x := range p.Packets {
			step := "-"
			if i > 0 {
				step = fmt.Sprintf("%.1f", float64(x.DTS-p.Packets[i-1].DTS)/1e6)
			}
			fmt.Fprintf(t, "%d\t%d\t%s\t%s\t%d\t%s\n", x.Seq, x.Slot, wallClock(x.PTS), step, x.Bytes, x.Flags)
		}
	}
	if f := s.Frames; f != nil {
		fmt.Fprintf(t, "\nFRAME SLOT\tSEQ\tTIME\tACKS\tBYTES\n")
		for _, x := range f.Slots {
			seq, at := "-", "-"
			if x.Valid {
				seq, at = fmt.Sprint(x.Seq), wallClock(x.PTS)
			}
			fmt.Fprintf(t, "%d\t%s\t%s\t%#x\t%d\n", x.Slot, seq, at, x.Acks, x.Bytes)
		}
	}
	return t.Flush()
}

func shutDown(yes bool) string {
	if yes {
		return ", shutting down"
	}
	return ""
}

// wallClock prints a time of the ring: local time of the day, or the number where it is no wall clock.
func wallClock(ns int64) string {
	t := time.Unix(0, ns)
	if d := time.Since(t); d > 366*24*time.Hour || d < -366*24*time.Hour {
		return fmt.Sprint(ns)
	}
	return t.Format("15:04:05.000")
}
