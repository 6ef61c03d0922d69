package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"github.com/cfpipe/cfpipe/packetring"
)

// PacketsResult is what RunPackets has measured. Latencies are in microseconds, CPU in percent of one core.
type PacketsResult struct {
	CPUs   int     `json:"cpus"`
	Load   string  `json:"load_average_before"`
	Wakes  []Wake  `json:"wakes,omitempty"`
	Busy   *Wake   `json:"busy_poll,omitempty"`
	Stream *Stream `json:"stream,omitempty"`
	CPU    []CPU   `json:"cpu,omitempty"`
	Goals  []Goal  `json:"goals"`
}

// Goal is a figure and what it should be.
type Goal struct {
	Name  string    `json:"name"`
	Value float64   `json:"value"`
	Turns []float64 `json:"value_of_turns,omitempty"` // where it was measured several times over
	Limit float64   `json:"limit"`
	Least bool      `json:"limit_is_lower,omitempty"` // at least Limit, else at most
	Met   bool      `json:"met"`
}

func atMost(name string, value, limit float64) Goal {
	return Goal{Name: name, Value: value, Limit: limit, Met: value <= limit}
}

func atLeast(name string, value, limit float64) Goal {
	return Goal{Name: name, Value: value, Limit: limit, Least: true, Met: value >= limit}
}

// RunPackets measures the packet ring on this machine. It takes about ten times o.Duration. What was not asked for is nil.
func RunPackets(ctx context.Context, o Packets) (*PacketsResult, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &PacketsResult{CPUs: runtime.NumCPU(), Load: loadAverage()}
	for i, f := range []func(context.Context, Packets) error{r.runWakes, r.runBusy, r.runStream, r.runCPU} { // in the order of Parts
		if !o.wants(Parts[i]) {
			continue
		}
		if err := f(ctx, o); err != nil {
			return nil, err
		}
	}
	r.judge()
	return r, nil
}

func (r *PacketsResult) runWakes(ctx context.Context, o Packets) error {
	for _, rate := range o.Rates {
		for _, m := range []struct {
			name string
			wait packetring.Wait
		}{{"direct", packetring.WaitDirect}, {"shared", packetring.WaitShared}} {
			o.Progress(fmt.Sprintf("waking a reader (%s) %d times a second", m.name, rate))
			w, err := o.latency(ctx, m.name, m.wait, rate)
			if err != nil {
				return err
			}
			r.Wakes = append(r.Wakes, w)
		}
	}
	return nil
}

func (r *PacketsResult) runBusy(ctx context.Context, o Packets) error {
	o.Progress("busy-polling reader")
	w, err := o.latency(ctx, "busy", packetring.WaitBusy, 1000)
	r.Busy = &w
	return err
}

func (r *PacketsResult) runStream(ctx context.Context, o Packets) error {
	o.Progress(fmt.Sprintf("streaming to %d readers, and plain copies", o.Readers))
	s, err := o.stream(ctx)
	r.Stream = &s
	return err
}

func (r *PacketsResult) runCPU(ctx context.Context, o Packets) error {
	for _, c := range []struct {
		load string
		rate int
	}{{"idle", 0}, {"camera", cameraRate}} {
		o.Progress("CPU, " + c.load)
		cpu, err := o.cpu(ctx, c.load, c.rate)
		if err != nil {
			return err
		}
		r.CPU = append(r.CPU, cpu)
	}
	return nil
}

func (r *PacketsResult) judge() {
	most := func(name string, value, limit float64) { r.Goals = append(r.Goals, atMost(name, value, limit)) }
	r.Goals = append(r.Goals, wakeGoals(r.Wakes)...)
	if r.Busy != nil {
		most("busy-poll p50, µs", r.Busy.Ring.P50, 2)
	}
	if s := r.Stream; s != nil {
		r.Goals = append(r.Goals, s.goal())
		most("allocations per packet, writer", s.WriterAllocs, 0.01)
		most("allocations per packet, reader", s.ReaderAllocs, 0.01)
		most("packets lost in the stream", float64(s.Lost), 0)
	}
	if len(r.CPU) > 0 {
		most("idle publisher, % of a core", r.CPU[0].Publisher, 0.1)
		most("idle reader (shared), % of a core", r.CPU[0].Shared, 0.1)
		most("idle reader (direct), % of a core", r.CPU[0].Direct, 0.1)
	}
}

// wakeGoals are those of readers that wait in the kernel themselves.
func wakeGoals(wakes []Wake) (all []Goal) {
	for _, w := range wakes {
		if w.Mode == "direct" {
			all = append(all, atMost(fmt.Sprintf("wake p50 at %d/s, × bare futex", w.Rate), w.RatioP50, 1.3),
				atMost(fmt.Sprintf("wake p99 at %d/s, × bare futex", w.Rate), w.RatioP99, 1.5))
		}
	}
	return all
}

func loadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	f := strings.Fields(string(b))
	return strings.Join(f[:min(3, len(f))], " ")
}

// Write prints the result as tables.
func (r *PacketsResult) Write(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d CPUs, load average before: %s (what else runs makes all figures worse; the ratios less so)\n", r.CPUs, r.Load)
	wakes := r.Wakes
	if r.Busy != nil {
		wakes = append(wakes[:len(wakes):len(wakes)], *r.Busy)
	}
	if len(wakes) > 0 {
		writeWakes(t, wakes)
	}
	if s := r.Stream; s != nil {
		s.write(t, "packet")
	}
	if len(r.CPU) > 0 {
		fmt.Fprintf(t, "\nCPU: percent of one core for each process; camera: %d packets/s of %d bytes.\n", cameraRate, cameraSize)
		fmt.Fprintln(t, "load\tpublisher\treader (shared)\treader (direct)")
		for _, c := range r.CPU {
			fmt.Fprintf(t, "%s\t%.3f %%\t%.3f %%\t%.3f %%\n", c.Load, c.Publisher, c.Shared, c.Direct)
		}
	}
	writeGoals(t, r.Goals)
	return t.Flush()
}

func writeGoals(t io.Writer, goals []Goal) {
	fmt.Fprintln(t, "\nGOAL\tmeasured\twanted\t")
	for _, g := range goals {
		sign, word := "≤", "met"
		if g.Least {
			sign = "≥"
		}
		if !g.Met {
			word = "MISSED"
		}
		fmt.Fprintf(t, "%s\t%.3g\t%s %.3g\t%s\n", g.Name, g.Value, sign, g.Limit, word)
	}
}

func writeWakes(t io.Writer, wakes []Wake) {
	fmt.Fprintln(t, "\nWAKE-UP: from before Publish to the return of Next in a process that slept; bare: FUTEX_WAKE to FUTEX_WAIT between")
	fmt.Fprintln(t, "two processes, no payload, timed in turn with it. Microseconds.")
	fmt.Fprintln(t, "wait\trate\tbytes\tn\tp50\tp90\tp99\tp99.9\tmax\tbare p50\tbare p90\tbare p99\t× p50\t× p99")
	for _, w := range wakes {
		fmt.Fprintf(t, "%s\t%d/s\t%d\t%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t", w.Mode, w.Rate, w.Size, w.Ring.Count, w.Ring.P50, w.Ring.P90,
			w.Ring.P99, w.Ring.P999, w.Ring.Max)
		if w.Bare.Count == 0 {
			fmt.Fprintln(t, "-\t-\t-\t-\t-")
			continue
		}
		fmt.Fprintf(t, "%.1f\t%.1f\t%.1f\t%.2f\t%.2f\n", w.Bare.P50, w.Bare.P90, w.Bare.P99, w.RatioP50, w.RatioP99)
	}
}
