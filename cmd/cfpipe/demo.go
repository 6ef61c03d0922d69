package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/pipeline"
)

type demoOptions struct {
	Duration time.Duration
	Out      string
}

func newDemoCommand(o *globalOptions) *cobra.Command {
	d := demoOptions{}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run a built-in camera through ingest, record and relay, then show what was made",
		Long: "Starts a built-in RTSP camera and three processes that share it: ingest (owns the camera), record and relay.\n" +
			"A fourth reader plays the relay. Then it checks and shows what was made. Needs no GPU and no network.\n" + exitStatusHelp,
		Example: "  cfpipe demo\n  cfpipe demo --duration 1m --out /tmp/demo",
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if d.Duration <= 0 {
				return usageError{fmt.Errorf("--duration %v: want more than 0", d.Duration)}
			}
			return runDemo(c.Context(), c.OutOrStdout(), o, d)
		},
	}
	c.Flags().DurationVar(&d.Duration, "duration", 20*time.Second, "how long to run")
	c.Flags().StringVar(&d.Out, "out", "", "folder for the recordings (default: a new one in the temporary folder)")
	return c
}

// demo is one run: the processes, what its own two readers saw, and what the recorder reported.
type demo struct {
	w     io.Writer
	key   string // of its own: keys are the host's, and another demo may run
	dir   string // runtime folder and logs
	out   string // recordings
	relay string // URL of the relayed camera

	published ringReader  // reads the ring to its end: what was published
	viewer    relayViewer // FFmpeg's RTSP client on the relay
	segments  []segmentLine
}

func runDemo(ctx context.Context, w io.Writer, o *globalOptions, d demoOptions) error {
	dir, err := os.MkdirTemp("", "cfpipe-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	r := &demo{w: w, key: strings.TrimPrefix(filepath.Base(dir), "cfpipe-"), dir: dir, out: d.Out}
	if r.out == "" {
		r.out = filepath.Join(dir, "recordings")
	}
	err = r.run(ctx, o, d.Duration)
	if ctx.Err() != nil {
		return r.interrupted(d.Out != "")
	}
	if err != nil {
		return err
	}
	return r.report()
}

// interrupted removes what was made, but for recordings in a folder that was asked for.
func (r *demo) interrupted(keep bool) error {
	fmt.Fprintln(r.w, "\nInterrupted: all processes are stopped.")
	if err := os.RemoveAll(r.dir); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if keep {
		fmt.Fprintf(r.w, "The logs are removed (%s); the recordings stay in %s\n", r.dir, r.out)
	} else {
		fmt.Fprintf(r.w, "The logs and recordings are removed: %s\n", r.dir)
	}
	return nil
}

// run starts the processes, lets them work for d and stops them from the camera's owner downwards, so that every reader can
// read to the end of the ring.
func (r *demo) run(ctx context.Context, o *globalOptions, d time.Duration) (err error) {
	var running []*demoProcess
	defer func() { // on errors: whatever still runs
		for _, p := range running {
			_ = p.stop()
		}
	}()
	start := func(name string, args ...string) (*demoProcess, error) {
		p, err := startDemoProcess(r.dir, name, append(args, "--runtime-dir", r.dir)...)
		if err == nil {
			running = append(running, p)
		}
		return p, err
	}
	setUp, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()

	fmt.Fprintf(r.w, "cfpipe demo: one camera, one connection, several readers, for %v\n\n", d)
	camera, err := start("testcam", "testcam", "--listen", "127.0.0.1:0", "--audio")
	if err != nil {
		return err
	}
	url, err := camera.line(setUp)
	if err != nil {
		return err
	}
	go camera.drain()
	r.step("camera", camera, url+"   built in")

	ingest, err := start("ingest", "ingest", url, "--key", r.key)
	if err != nil {
		return err
	}
	go ingest.drain()
	r.step("ingest", ingest, "the one connection to the camera → packet ring in /dev/shm")
	published, cancel := ingest.whileRunning(setUp)
	defer cancel()
	ring, err := pipeline.Subscribe(published, pipeline.SubscribeOptions{
		RuntimeDir: r.dir, Key: r.key, Name: "demo", Start: pipeline.StartOldest, WaitForKey: 15 * time.Second, NoFollow: true,
	})
	if err != nil {
		return ingest.failure(context.Cause(published))
	}
	defer ring.Close()

	record, err := start("record", "record", r.key, "--out", filepath.Join(r.out, "%{key}-%H%M%S.mp4"), "--segment", "5s", "--pre", "10s", "--json")
	if err != nil {
		return err
	}
	recorded := make(chan error, 1)
	go func() { recorded <- r.collect(record.lines) }()
	r.step("record", record, r.out+"   fMP4, a new file every 5 s")

	relay, err := start("relay", "relay", r.key, "--listen", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if r.relay, err = relay.line(setUp); err != nil {
		return err
	}
	go relay.drain()
	r.step("relay", relay, r.relay)
	fmt.Fprintf(r.w, "  %-8s %-11s FFmpeg's RTSP client, reads the relay\n\n", "viewer", "")

	var readers sync.WaitGroup
	viewing, stopViewing := context.WithCancel(ctx)
	defer stopViewing()
	readers.Go(func() { r.published.run(ctx, ring) })
	readers.Go(func() { r.viewer.run(viewing, r.relay, o) })

	if err := r.progress(ctx, d, running); err != nil {
		return err
	}
	// In order: the viewer, the owner of the camera (the readers see the end of the ring), the readers, the camera.
	stopViewing()
	for _, p := range []*demoProcess{ingest, record, relay, camera} {
		if p == record { // its last segment ends when it stops
			readers.Wait()
		}
		if err := p.stop(); err != nil {
			return err
		}
	}
	running = nil
	return <-recorded
}

// collect takes what record prints until it ends: a line for each file.
func (r *demo) collect(lines <-chan string) (err error) {
	for line := range lines {
		var s segmentLine
		if jerr := json.Unmarshal([]byte(line), &s); jerr != nil {
			err = fmt.Errorf("demo: record printed %q: %w", line, jerr)
			continue
		}
		r.segments = append(r.segments, s)
	}
	return err
}

func (r *demo) step(name string, p *demoProcess, text string) {
	fmt.Fprintf(r.w, "  %-8s %-11s %s\n", name, fmt.Sprintf("pid %d", p.cmd.Process.Pid), text)
}

// progress waits for d, shows what happens on a terminal, and fails when a process ends early.
func (r *demo) progress(ctx context.Context, d time.Duration, running []*demoProcess) error {
	begin, tick := time.Now(), time.NewTicker(time.Second)
	defer tick.Stop()
	status := newStatusLine(r.w)
	defer status.clear()
	for {
		for _, p := range running {
			select {
			case err := <-p.done:
				p.done <- err
				return p.failure(endedEarly(err))
			default:
			}
		}
		elapsed := time.Since(begin)
		if elapsed >= d {
			break
		}
		status.show(fmt.Sprintf("  %2.0f of %.0f s   published %d access units   relayed %d ", elapsed.Seconds(), d.Seconds(),
			r.published.packets.Load(), r.viewer.packets.Load()))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-time.After(d - elapsed):
		}
	}
	return nil
}
