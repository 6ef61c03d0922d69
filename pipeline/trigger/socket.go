package trigger

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/lobby"
	"github.com/cfpipe/cfpipe/internal/shm"
)

// Bounds of the control socket: whoever may open it is of this machine, and may be broken or hostile all the same.
const (
	maxLine  = 4096            // of a request, and of an answer
	patience = 2 * time.Second // for a request to come, and for its answer to be taken
	// maxConns are served at a time. When one more comes, the one that has been silent for longest goes: who asks at once is heard
	// however many there are that say nothing.
	maxConns = 32
	// maxRecorders of one key are asked.
	maxRecorders = 256
	suffix       = ".event"
)

// ListenOptions say where to listen. Key and Handle must be set.
type ListenOptions struct {
	RuntimeDir string // "" as in framering; made when missing
	Key        string
	GID        int // group that may ask (0660); 0 = the owner alone (0600)
	Handle     func(Request, time.Time) Answer
	Logger     *slog.Logger // nil = silent
}

// Server is the control socket of a recorder.
type Server struct {
	o    ListenOptions
	log  *slog.Logger
	l    *net.UnixListener
	path string
	wg   sync.WaitGroup

	conns  *lobby.Lobby[*net.UnixConn] // those that have not asked yet
	closed sync.Once
}

// Listen makes the socket and serves it until Close. What recorders of the key that were killed have left is removed.
func Listen(o ListenOptions) (*Server, error) {
	if err := framering.CheckKey(o.Key); err != nil {
		return nil, err
	}
	dir := framering.RuntimeDir(o.RuntimeDir)
	if err := framering.CheckRuntimeDir(dir); err != nil {
		return nil, fmt.Errorf("events of %s: %w", o.Key, err)
	}
	s := &Server{o: o, log: o.Logger, path: filepath.Join(dir, o.Key+"."+strings.ToLower(rand.Text()[:8])+suffix)}
	s.conns = lobby.New(maxConns, func(c *net.UnixConn) { c.Close() })
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if len(s.path) > shm.MaxSocketPath {
		return nil, fmt.Errorf("events of %s: socket path %s has %d bytes, the kernel takes %d: choose a shorter runtime directory or key", o.Key, s.path,
			len(s.path), shm.MaxSocketPath)
	}
	left, _ := sockets(dir, o.Key)
	sweep(left)
	l, err := shm.ListenUnix(s.path, o.GID)
	if err != nil {
		return nil, fmt.Errorf("events of %s: %w", o.Key, err)
	}
	s.l = l
	s.wg.Go(s.accept)
	return s, nil
}

// Close ends the service and removes the socket. It is idempotent.
func (s *Server) Close() (err error) {
	s.closed.Do(func() {
		err = s.l.Close()
		s.conns.Close()
		s.wg.Wait()
		if rerr := os.Remove(s.path); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	})
	return err
}

func (s *Server) accept() {
	var pause time.Duration
	for {
		c, err := s.l.AcceptUnix()
		if err == nil {
			pause = 0
			s.conns.Enter(c)
			s.wg.Go(func() { s.serve(c) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if pause == 0 { // out of descriptors, most likely: others may close some
			s.log.Warn("triggers cannot be taken", "key", s.o.Key, "error", err)
		}
		pause = min(max(2*pause, 10*time.Millisecond), time.Second)
		time.Sleep(pause)
	}
}

func (s *Server) serve(c *net.UnixConn) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	var r Request
	line, err := readLine(c)
	if s.conns.Leave(c); len(line) == 0 && err != nil {
		return // looked whether somebody listens, or said nothing
	}
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err == nil {
		err = r.Check()
	}
	var reply struct {
		*Answer
		Error string `json:"error,omitempty"`
	}
	if err != nil {
		reply.Error = "bad request: " + err.Error()
		s.log.Debug("bad trigger", "key", s.o.Key, "error", err)
	} else {
		a := s.o.Handle(r, time.Now())
		a.Key, a.PID = s.o.Key, os.Getpid()
		reply.Answer = &a
	}
	b, err := json.Marshal(reply)
	if err == nil {
		_, _ = c.Write(append(b, '\n')) // the client may have gone: what it asked for is done all the same
	}
}

var errLine = fmt.Errorf("a line of more than %d bytes", maxLine)

func readLine(c io.Reader) ([]byte, error) {
	r := bufio.NewReaderSize(io.LimitReader(c, maxLine+1), maxLine+1)
	line, err := r.ReadSlice('\n')
	if len(line) > maxLine {
		return line, errLine
	}
	return line, err
}

// sockets are those of a key's recorders, of living and of dead ones.
func sockets(dir, key string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var list []string
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), suffix)
		if name, _, found := strings.Cut(name, "."); ok && found && name == key && e.Type()&os.ModeSocket != 0 {
			list = append(list, filepath.Join(dir, e.Name()))
		}
	}
	return list, nil
}

// dead says whether nobody listens at a socket: one that appears there has a listener, so the kernel's word is final.
func dead(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// sweep removes the sockets of recorders that were killed, and returns those of the living.
func sweep(list []string) (living []string) {
	for _, path := range list {
		c, err := net.DialTimeout("unix", path, patience)
		switch {
		case dead(err):
			_ = os.Remove(path) // another's, where the folder is shared: it stays
			continue
		case err == nil:
			c.Close()
		}
		living = append(living, path)
	}
	return living
}

// NoRecorderError says that nobody records a key on events. errors.Is(err, os.ErrNotExist).
type NoRecorderError struct {
	Key string
	Dir string // where was looked
}

func (e *NoRecorderError) Error() string {
	return fmt.Sprintf("key %q: nobody records it on events (looked in %s); start cfpipe record %s --on-event, or give the camera events: in the site file", e.Key, e.Dir, e.Key)
}

func (e *NoRecorderError) Unwrap() error { return os.ErrNotExist }

// Send asks all recorders of a key at once and returns the answers of those that took it. Errors: *NoRecorderError; with answers or
// without, os.ErrDeadlineExceeded for recorders that did not answer until ctx ended, and what went wrong with others.
func Send(ctx context.Context, runtimeDir, key string, r Request) ([]Answer, error) {
	if err := framering.CheckKey(key); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, fmt.Errorf("trigger %s: %w", key, err)
	}
	dir := framering.RuntimeDir(runtimeDir)
	list, err := sockets(dir, key)
	if err != nil {
		return nil, fmt.Errorf("trigger %s: %w", key, err)
	}
	if len(list) > maxRecorders {
		list = sweep(list)
	}
	if len(list) > maxRecorders {
		return nil, fmt.Errorf("trigger %s: %d sockets of recorders in %s: %d are the most that are asked", key, len(list), dir, maxRecorders)
	}
	line, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	line = append(line, '\n')
	answers, errs := make([]*Answer, len(list)), make([]error, len(list))
	var wg sync.WaitGroup
	for i, path := range list {
		wg.Go(func() { answers[i], errs[i] = ask(ctx, path, line) })
	}
	wg.Wait()
	var took []Answer
	for i, a := range answers {
		if a != nil {
			took = append(took, *a)
		}
		if errs[i] != nil {
			errs[i] = fmt.Errorf("trigger %s: %s: %w", key, filepath.Base(list[i]), errs[i])
		}
	}
	err = errors.Join(errs...)
	if err == nil && len(took) == 0 {
		err = &NoRecorderError{key, dir}
	}
	return took, err
}

// ask asks one recorder; neither answer nor error: it is dead.
func ask(ctx context.Context, path string, line []byte) (*Answer, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	for ; errors.Is(err, syscall.EAGAIN) && ctx.Err() == nil; c, err = d.DialContext(ctx, "unix", path) { // as many as the kernel queues are there
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	if dead(err) {
		return nil, nil
	}
	if err != nil {
		return nil, late(ctx, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if _, err := c.Write(line); err != nil {
		return nil, late(ctx, err)
	}
	b, err := readLine(c)
	if err != nil {
		return nil, late(ctx, err)
	}
	var reply struct {
		Answer
		Error string `json:"error"`
	}
	if err := json.Unmarshal(b, &reply); err != nil {
		return nil, fmt.Errorf("bad answer: %w", err)
	}
	if reply.Error != "" {
		return nil, errors.New(reply.Error)
	}
	return &reply.Answer, nil
}

// late makes errors after the end of ctx those of a timeout.
func late(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("uid %d may not trigger it: run as the recorder's user, or start it with --group: %w", os.Getuid(), err)
	case errors.Is(err, io.EOF):
		return errors.New("it has closed the connection without an answer: is it ending?")
	}
	return err
}
