package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/pipeline"
)

func newTopCommand(o *globalOptions) *cobra.Command {
	w := watchOptions{Interval: time.Second}
	var count int
	var sortBy string
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch publishers and their readers",
		Long: `Top shows every key of this host with its rates over the last interval, and below it its readers: how far each is behind the newest
packet, in packets and as a part of what the ring holds. A reader that comes to 100 % loses packets; such a place is marked with "!".
A recorder is continuous, or says which event it records; one that waits for events reads nothing and is not there.

On a terminal the table is drawn anew each --interval until Ctrl-C. Where the output is a pipe or a file, two readings are taken and
the table is printed once; -n prints it so many times. It reads shared memory and disturbs nobody.` + "\n" + exitStatusHelp,
		Example: "  cfpipe top\n  cfpipe top --sort lag\n  cfpipe top -n 1 --json | jq '.[] | select(.age_seconds > 10)'",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if count < 0 {
				return usageError{fmt.Errorf("-n %d: want 0 or more", count)}
			}
			if !slices.Contains([]string{"key", "lag", "rate", "age"}, sortBy) {
				return usageError{fmt.Errorf("--sort %q: want key, lag, rate or age", sortBy)}
			}
			w.Watch = true
			if count == 0 && !isTerminal(c.OutOrStdout()) {
				count = 1
			}
			t := &top{dir: o.RuntimeDir, sortBy: sortBy}
			if w.Interval < 50*time.Millisecond {
				return usageError{fmt.Errorf("--interval %v: want 50ms or more", w.Interval)}
			}
			if err := t.read(); err != nil {
				return err
			}
			select { // rates take two readings
			case <-c.Context().Done():
				return nil
			case <-time.After(w.Interval):
			}
			shown := 0
			return w.run(c.Context(), c.OutOrStdout(), func(out io.Writer) (any, error) {
				if err := t.read(); err != nil {
					return nil, err
				}
				shown++
				w.Watch = count == 0 || shown < count
				if w.JSON {
					return t.rows, nil
				}
				return nil, t.print(out)
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&w.JSON, "json", false, "print JSON, a line each time")
	f.DurationVar(&w.Interval, "interval", w.Interval, "time between two readings")
	f.IntVarP(&count, "count", "n", 0, "print so many times; 0 = until stopped, once where the output is no terminal")
	f.StringVar(&sortBy, "sort", "key", "key, lag (of the slowest reader), rate or age")
	return c
}

// topRow is a key in the table.
type topRow struct {
	Key        string      `json:"key"`
	PID        uint64      `json:"pid"`
	Codec      string      `json:"codec,omitempty"`
	Size       string      `json:"size,omitempty"`
	Packets    float64     `json:"packets_per_second"` // published between the two readings
	Kbit       float64     `json:"kbit_per_second"`    // of what the ring holds
	Age        *float64    `json:"age_seconds"`
	Buffered   float64     `json:"buffered_seconds"`
	Frames     *float64    `json:"frames_per_second"` // null = it has none
	Restarted  bool        `json:"restarted"`         // by another publisher, between the two readings
	Readers    []topReader `json:"readers"`
	Error      string      `json:"error,omitempty"`
	seq, frame uint64
	elsewhere  bool // its memory is not in this process's /dev/shm
}

// topReader is a reader in the table.
type topReader struct {
	Name      string   `json:"name"`
	Recording string   `json:"recording,omitempty"` // of a recorder: continuous or event
	Event     string   `json:"event,omitempty"`     // that it records: its id
	PID       uint64   `json:"pid"`                 // 0 = in another PID namespace
	Bit       int      `json:"bit"`
	Of        string   `json:"of"`  // packets or frames
	Lag       *uint64  `json:"lag"` // null = the reader does not say
	Share     *float64 `json:"lag_ratio"`
	Rate      *float64 `json:"per_second"` // read between the two readings; null = not known yet
	Seen      *float64 `json:"seen_seconds"`
	position  uint64
	title     string
}

// losing is the part of the ring at which a reader is marked.
const losing = 0.9

// top compares two readings.
type top struct {
	dir    string
	sortBy string
	rows   []topRow
	at     time.Time
	denied int // keys that this user may not read

	elsewhere int // keys whose memory is not in this process's /dev/shm
}

func (t *top) read() error {
	keys, err := listKeys(t.dir)
	if err != nil {
		return err
	}
	now := time.Now()
	before := map[string]topRow{}
	for _, r := range t.rows {
		before[r.Key] = r
	}
	passed := now.Sub(t.at).Seconds()
	t.rows, t.at, t.denied, t.elsewhere = []topRow{}, now, 0, 0
	for _, k := range keys {
		if k.NoAccess {
			t.denied++
		}
		if k.Elsewhere {
			t.elsewhere++
		}
		if !k.Alive {
			continue
		}
		old, known := before[k.Key]
		t.rows = append(t.rows, newTopRow(k, old, known, passed))
	}
	t.sort()
	return nil
}

func newTopRow(k pipeline.KeyStatus, old topRow, known bool, passed float64) topRow {
	r := topRow{Key: k.Key, PID: k.PID, Codec: k.Codec, Size: k.Size(), Kbit: k.KbitPerSecond, Age: k.AgeSeconds, Error: k.Error, Readers: []topReader{}, elsewhere: k.Elsewhere}
	var buffered int
	if k.Packets != nil {
		r.seq, r.Buffered, buffered = k.Packets.GlobalSeq, k.Packets.BufferedSeconds, k.Packets.BufferedPackets
	}
	r.Restarted = known && (old.PID != r.PID || r.seq < old.seq)
	same := known && !r.Restarted
	if same {
		r.Packets = float64(r.seq-old.seq) / passed
	} else {
		r.Packets = k.PacketsPerSecond
	}
	if k.Frames != nil {
		r.frame = k.Frames.GlobalSeq
		var rate float64
		if same && r.frame >= old.frame {
			rate = float64(r.frame-old.frame) / passed
		}
		r.Frames = &rate
	}
	for _, x := range k.Readers {
		e := topReader{
			Name: x.Name, Recording: x.Recording, Event: x.Event, PID: x.PID, Bit: x.Bit, Of: "packets", Lag: x.Lag, Seen: x.SeenSeconds,
			position: x.LastSeq, title: x.Title(),
		}
		holds := buffered
		if x.Frames && k.Frames != nil {
			e.Of, holds = "frames", k.Frames.SlotCount
		}
		if x.Lag != nil && holds > 0 {
			share := float64(*x.Lag) / float64(holds)
			e.Share = &share
		}
		i := slices.IndexFunc(old.Readers, func(o topReader) bool { return o.Bit == e.Bit && o.PID == e.PID && o.Name == e.Name && o.Of == e.Of })
		if same && i >= 0 && e.position >= old.Readers[i].position {
			rate := float64(e.position-old.Readers[i].position) / passed
			e.Rate = &rate
		}
		r.Readers = append(r.Readers, e)
	}
	return r
}

func (t *top) sort() {
	worst := func(r topRow) (lag float64) {
		for _, x := range r.Readers {
			if x.Share != nil {
				lag = max(lag, *x.Share)
			}
		}
		return lag
	}
	age := func(r topRow) float64 {
		if r.Age == nil {
			return 0
		}
		return *r.Age
	}
	slices.SortStableFunc(t.rows, func(a, b topRow) int {
		var c int
		switch t.sortBy {
		case "lag":
			c = cmp.Compare(worst(b), worst(a))
		case "rate":
			c = cmp.Compare(b.Kbit, a.Kbit)
		case "age":
			c = cmp.Compare(age(b), age(a))
		}
		return cmp.Or(c, cmp.Compare(a.Key, b.Key))
	})
}

func (t *top) print(out io.Writer) error {
	var packets, kbit float64
	readers := 0
	for _, r := range t.rows {
		packets += r.Packets
		kbit += r.Kbit
		readers += len(r.Readers)
	}
	fmt.Fprintf(out, "cfpipe top  %s  %d keys  %d readers  %.0f packets/s  %.1f Mbit/s\n", t.at.Format(time.TimeOnly), len(t.rows), readers, packets, kbit/1000)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY / READER\tCODEC\tSIZE\tPACKETS/S\tKBIT/S\tFRAMES/S\tAGE\tLAG\tOF RING\tPID")
	for _, r := range t.rows {
		frames, note := "-", ""
		if r.Frames != nil {
			frames = fmt.Sprintf("%.1f", *r.Frames)
		}
		if r.elsewhere {
			fmt.Fprintf(w, "%s\tnot in this /dev/shm\n", r.Key)
			continue
		}
		if r.Restarted {
			note = " (new publisher)"
		}
		fmt.Fprintf(w, "%s%s\t%s\t%s\t%.1f\t%.0f\t%s\t%s\t\t%.0fs\t%d\n", r.Key, note, orDash(r.Codec), orDash(r.Size), r.Packets, r.Kbit, frames, age(r.Age), r.Buffered, r.PID)
		if r.Error != "" {
			fmt.Fprintf(w, "  %s\n", r.Error)
		}
		for _, x := range r.Readers {
			lag, share, rate, pid := "-", "-", "-", "-"
			if x.Lag != nil {
				lag = fmt.Sprint(*x.Lag)
			}
			if x.Share != nil {
				share = fmt.Sprintf("%.0f%%", min(100**x.Share, 100))
				if *x.Share >= losing {
					share += " !"
				}
			}
			if x.Rate != nil {
				rate = fmt.Sprintf("%.1f", *x.Rate)
			}
			if x.PID != 0 {
				pid = fmt.Sprint(x.PID)
			}
			name := "  └ " + x.title
			if x.Of == "frames" {
				fmt.Fprintf(w, "%s\t\t\t\t\t%s\t%s\t%s\t%s\t%s\n", name, rate, age(x.Seen), lag, share, pid)
			} else {
				fmt.Fprintf(w, "%s\t\t\t%s\t\t\t%s\t%s\t%s\t%s\n", name, rate, age(x.Seen), lag, share, pid)
			}
		}
	}
	err := w.Flush()
	if err == nil && t.denied > 0 {
		_, err = fmt.Fprintln(out, noAccess(t.denied))
	}
	if err == nil && t.elsewhere > 0 {
		_, err = fmt.Fprintln(out, pipeline.ElsewhereText(t.elsewhere))
	}
	return err
}
