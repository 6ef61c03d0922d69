package site

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/redact"
	"github.com/cfpipe/cfpipe/pipeline"
)

const (
	// maxLine bounds a line between a site and a stage's process: a spec holds one stream.
	maxLine = 1 << 20
	// reportPace is how often a stage's process tells its counts.
	reportPace = time.Second
	// killAfter is how long a process may take to end when it is asked to; the files it has open are finished in that time.
	killAfter = 15 * time.Second
)

// order is what a stage's process reads first. Its standard input stays open: when it ends, with the site or by the site's will,
// so does the process.
type order struct {
	Spec    spec
	From    time.Time
	Secrets []string // what its log must not show
}

// runProcess runs the stage in a process of its own until it ends.
func (st *stage) runProcess(ctx context.Context) error {
	cmd := exec.Command(st.exe[0], st.exe[1:]...)
	cmd.Stderr = os.Stderr
	cmd.Env = st.private.environment()
	// A group of its own: Ctrl-C at the terminal is for the site, which stops its stages in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start process: %w", err)
	}
	st.mu.Lock()
	st.pid = cmd.Process.Pid
	st.mu.Unlock()
	ended := make(chan struct{})
	var stopping sync.WaitGroup
	stopping.Go(func() {
		select {
		case <-ended:
			return
		case <-ctx.Done():
		}
		stdin.Close()
		t := time.NewTimer(killAfter)
		defer t.Stop()
		select {
		case <-ended:
		case <-t.C:
			_ = cmd.Process.Kill()
		}
	})
	b, err := json.Marshal(order{Spec: st.spec, From: st.begin(), Secrets: st.private.of(st.print)})
	if err == nil {
		_, err = stdin.Write(append(b, '\n'))
	}
	last := st.follow(stdout)
	if err != nil {
		stdin.Close()
	}
	werr := cmd.Wait()
	close(ended)
	stopping.Wait()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case last.Error != "":
		return errors.New(last.Error)
	case werr != nil:
		return fmt.Errorf("its process has ended: %w", werr)
	case err != nil:
		return err
	case last.Ended:
		return nil
	case last.Clean:
		return errors.New("its process was stopped by somebody else")
	}
	return errors.New("its process has ended without a word")
}

// follow reads the reports of a process until it ends.
func (st *stage) follow(r io.Reader) (end report) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4096), maxLine)
	for lines.Scan() {
		var rep report
		if json.Unmarshal(lines.Bytes(), &rep) != nil {
			continue // not one of ours
		}
		if rep.Started != nil {
			st.started(*rep.Started)
		}
		if rep.File != nil {
			st.finished(rep.File.recorded())
		}
		st.mu.Lock()
		if rep.Ingest != nil || rep.Record != nil || rep.Infer != nil || rep.Push != nil {
			st.last = rep
		}
		st.last.Clean = rep.Clean
		st.mu.Unlock()
		end = rep
	}
	_, _ = io.Copy(io.Discard, r) // after a line that is too long
	return end
}

// RunStage is the other side: it reads an order from in, runs the stage until in ends, and writes reports to out. secrets is told
// what the stage's secrets are, before the stage begins; nil = nobody else shows what the stage says.
func RunStage(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger, secrets *redact.Set) error {
	r := bufio.NewReader(io.LimitReader(in, maxLine))
	line, err := r.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the stage's order: %w", err)
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return fmt.Errorf("read the stage's order: %w", err)
	}
	if secrets == nil {
		secrets = &redact.Set{}
	}
	secrets.Use(o.Secrets)
	log = secrets.Logger(log)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	var mu sync.Mutex
	e := json.NewEncoder(out)
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		_ = e.Encode(r) // without a reader there is nobody to tell
	}
	var probe func() report
	var telling sync.WaitGroup
	tell := func(p func() report) {
		probe = p
		telling.Go(func() {
			for sleep(ctx, reportPace) == nil {
				say(p())
			}
		})
	}
	err = runStage(ctx, o.Spec, o.From, log, tell, files{
		func(s Started) { say(report{Started: &s}) }, func(f pipeline.Recorded) { say(report{File: reported(f)}) },
	})
	stopped := ctx.Err() != nil
	cancel()
	telling.Wait()
	last := report{}
	if probe != nil {
		last = probe()
	}
	last.Clean = err == nil || stopped
	last.Ended = err == nil && !stopped
	if !last.Clean {
		last.Error = err.Error()
	}
	say(last)
	return nil
}
