package av

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/asticode/go-astiav"
)

// pumpChunk is read from a pipe at once.
const pumpChunk = 64 << 10

// pump reads a pipe in a goroutine of its own, so that whoever waits for its bytes can be interrupted. A read of standard input
// cannot be: its goroutine then ends with the process or with the pipe.
type pump struct {
	ctx    context.Context
	cancel context.CancelFunc
	closer io.Closer // ends a pending read
	full   chan []byte
	empty  chan []byte
	rest   []byte // not handed out yet
	chunk  []byte
	err    error // why full was closed
}

func newPump(ctx context.Context, r io.Reader, closer io.Closer) *pump {
	ctx, cancel := context.WithCancel(ctx)
	p := &pump{ctx: ctx, cancel: cancel, closer: closer, full: make(chan []byte), empty: make(chan []byte, 2)}
	p.empty <- make([]byte, pumpChunk)
	p.empty <- make([]byte, pumpChunk)
	go p.run(r)
	return p
}

func (p *pump) run(r io.Reader) {
	defer close(p.full)
	for {
		var b []byte
		select {
		case b = <-p.empty:
		case <-p.ctx.Done():
			return
		}
		n, err := r.Read(b[:pumpChunk])
		if n > 0 {
			select {
			case p.full <- b[:n]:
			case <-p.ctx.Done():
				return
			}
		} else if err == nil {
			p.empty <- b
		}
		if err != nil {
			p.err = err // read after full is closed
			return
		}
	}
}

// read is FFmpeg's read callback.
func (p *pump) read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		if p.chunk != nil {
			p.empty <- p.chunk
			p.chunk = nil
		}
		select {
		case c, ok := <-p.full:
			if !ok {
				if p.err == nil || errors.Is(p.err, io.EOF) {
					return 0, io.EOF
				}
				return 0, astiav.ErrEio
			}
			p.chunk, p.rest = c, c
		case <-p.ctx.Done():
			return 0, astiav.ErrExit
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

func (p *pump) close() {
	p.cancel()
	if p.closer != nil {
		p.closer.Close()
		for range p.full { // the goroutine ends
		}
	}
}

func isPipe(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode()&os.ModeNamedPipe != 0
}

// openPipe opens a named pipe without blocking in open, and waits for its writer.
func openPipe(ctx context.Context, path string) (*pipeReader, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	return &pipeReader{File: f, ctx: ctx}, nil
}

// pipeReader reads a named pipe. The end of file that stands there before the first writer has come is not the end.
type pipeReader struct {
	*os.File
	ctx   context.Context
	begun bool
}

func (r *pipeReader) Read(b []byte) (int, error) {
	for {
		n, err := r.File.Read(b)
		if n > 0 || r.begun || !errors.Is(err, io.EOF) {
			r.begun = r.begun || n > 0
			return n, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-r.ctx.Done():
			return 0, r.ctx.Err()
		}
	}
}
