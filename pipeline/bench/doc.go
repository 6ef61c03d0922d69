// Package bench measures a machine: what the rings do on it, each figure against a reference that is timed in the same run, by
// processes of the same number and kind, so that figures of a busy or slow machine can still be judged.
package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"time"
)

// Packets are the options of RunPackets. The zero value measures for 3 s a figure, as cfpipe bench packets does.
type Packets struct {
	Duration time.Duration // of each measurement; 0 = 3 s
	Rates    []int         // packets a second of the wake-up measurements; nil = 100, 1000
	Size     int           // payload bytes of the wake-up measurements; 0 = 4096
	Readers  int           // of the stream; 0 = 4
	Only     []string      // which of Parts to measure; nil = all

	// Helper is the command that calls Helper with the arguments appended to it; nil = this program with "bench helper".
	Helper []string
	// Progress is told what is being measured; nil = nobody is.
	Progress func(what string)
}

// ErrOptions is the cause of errors in what was asked for.
var ErrOptions = errors.New("out of range")

// Parts are the measurements of RunPackets.
var Parts = []string{"wake", "busy", "stream", "cpu"}

func (o Packets) wants(part string) bool { return o.Only == nil || slices.Contains(o.Only, part) }

func (o Packets) withDefaults() (Packets, error) {
	if o.Duration == 0 {
		o.Duration = 3 * time.Second
	}
	if o.Rates == nil {
		o.Rates = []int{100, 1000}
	}
	if o.Size == 0 {
		o.Size = 4096
	}
	if o.Readers == 0 {
		o.Readers = 4
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Helper == nil {
		self, err := os.Executable()
		if err != nil {
			return o, fmt.Errorf("bench: %w", err)
		}
		o.Helper = []string{self, "bench", "helper"}
	}
	for _, p := range o.Only {
		if !slices.Contains(Parts, p) {
			return o, fmt.Errorf("bench: no part %q, want some of %v: %w", p, Parts, ErrOptions)
		}
	}
	for _, r := range o.Rates {
		if r < 1 || r > 5000 {
			return o, fmt.Errorf("bench: rate %d, want 1 to 5000 packets a second: %w", r, ErrOptions)
		}
	}
	if o.Size < 8 || o.Size > 1<<20 || o.Readers < 1 || o.Readers > 64 || o.Duration < 0 {
		return o, fmt.Errorf("bench: want a size of 8 to 1048576 bytes, 1 to 64 readers, and no negative duration: %w", ErrOptions)
	}
	return o, nil
}

// helpers are the roles that a helper process can play.
var helpers = map[string]func(arg []byte) (any, error){}

// helper makes a role known. It is given the benchmark's argument and the board that the argument names.
func helper[A interface{ boardName() string }](role string, play func(A, *board) (any, error)) {
	helpers[role] = func(arg []byte) (any, error) {
		var a A
		if err := json.Unmarshal(arg, &a); err != nil {
			return nil, err
		}
		b, err := openBoard(a.boardName())
		if err != nil {
			return nil, err
		}
		return play(a, b)
	}
}

// Helper plays one role of a measurement in this process and prints what it has found. Only the benchmark itself calls it, through
// Packets.Helper.
func Helper(args []string) error {
	if len(args) != 2 || helpers[args[0]] == nil {
		return errors.New("bench helper: started by the benchmark alone")
	}
	// The benchmark holds the other end of stdin: when it is gone, however it ended, nothing of it goes on.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	runtime.GOMAXPROCS(max(2, runtime.GOMAXPROCS(0))) // a role may keep one processor to itself
	result, err := helpers[args[0]]([]byte(args[1]))
	if err != nil {
		return fmt.Errorf("bench helper %s: %w", args[0], err)
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// process is a helper that runs.
type process struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	stderr bytes.Buffer
	role   string
	ended  chan struct{} // closed when err is set
	err    error
}

func (o Packets) start(ctx context.Context, role string, arg any) (*process, error) {
	b, err := json.Marshal(arg)
	if err != nil {
		return nil, err
	}
	args := append(append([]string{}, o.Helper...), role, string(b))
	p := &process{cmd: exec.CommandContext(ctx, args[0], args[1:]...), role: role, ended: make(chan struct{})}
	// A thread that sits in a bare futex call must not be interrupted by the scheduler.
	p.cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1")
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // closed by Wait; see Helper
		return nil, fmt.Errorf("bench: start %s: %w", role, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("bench: start %s: %w", role, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// result waits for the end of the process and decodes what it has printed.
func (p *process) result(into any) error {
	if <-p.ended; p.err != nil {
		return fmt.Errorf("bench: %s: %w: %s", p.role, p.err, bytes.TrimSpace(p.stderr.Bytes()))
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(p.out.Bytes(), into); err != nil {
		return fmt.Errorf("bench: result of %s: %w", p.role, err)
	}
	return nil
}

// kill ends processes that are still there after an error.
func kill(procs ...*process) {
	for _, p := range procs {
		if p != nil {
			_ = p.cmd.Process.Kill()
			<-p.ended
		}
	}
}
