package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// demoProcess is one of the processes of the demo: this binary with other arguments.
type demoProcess struct {
	name  string
	cmd   *exec.Cmd
	lines chan string // standard output, a line at a time; closed at its end. Somebody has to read them, or the process waits
	log   *os.File
	done  chan error
}

// startDemoProcess runs this binary with args. Its log goes to a file in dir; when it does not start, the error shows the log.
func startDemoProcess(dir, name string, args ...string) (*demoProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches the demo alone, which stops them in order
	out, err := cmd.StdoutPipe()
	if err != nil {
		log.Close()
		return nil, fmt.Errorf("demo: %w", err)
	}
	if err := cmd.Start(); err != nil {
		log.Close()
		return nil, fmt.Errorf("demo: start %s: %w", name, err)
	}
	p := &demoProcess{name: name, cmd: cmd, log: log, lines: make(chan string, 64), done: make(chan error, 1)}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			p.lines <- s.Text()
		}
		close(p.lines)
		p.done <- cmd.Wait() // it closes the pipe: not before all of it is read
		log.Close()
	}()
	return p, nil
}

// drain reads the lines that are of no interest.
func (p *demoProcess) drain() {
	for range p.lines {
	}
}

// whileRunning is ctx until the process ends; its cause says so then.
func (p *demoProcess) whileRunning(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case err := <-p.done:
			p.done <- err
			cancel(endedEarly(err))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// stop asks the process to end and waits for it; after a while it is killed, which is an error.
func (p *demoProcess) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-p.done:
		p.done <- err
		if err != nil {
			return p.failure(err)
		}
		return nil
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		return p.failure(errors.New("did not stop within 10 s of SIGTERM"))
	}
}

// failure adds the end of the process's log to err.
func (p *demoProcess) failure(err error) error {
	b, _ := os.ReadFile(p.log.Name())
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	lines = lines[max(0, len(lines)-5):]
	return fmt.Errorf("demo: %s: %w; the end of its log %s:\n  %s", p.name, err, p.log.Name(), strings.Join(lines, "\n  "))
}

// endedEarly is the failure of a process that should still run; err is nil when it exited with 0.
func endedEarly(err error) error {
	if err == nil {
		return errors.New("ended early, with exit status 0")
	}
	return fmt.Errorf("ended early: %w", err)
}

// line returns the next line that the process prints.
func (p *demoProcess) line(ctx context.Context) (string, error) {
	select {
	case l, ok := <-p.lines:
		if !ok {
			err := <-p.done
			p.done <- err
			return "", p.failure(endedEarly(err))
		}
		return l, nil
	case <-ctx.Done():
		return "", p.failure(ctx.Err())
	}
}
