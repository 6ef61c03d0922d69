package framering

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// DialOptions describe a subscriber. Key must be set.
type DialOptions struct {
	RuntimeDir string // see PublisherOptions
	Key        string
	Name       string // shown in the publisher's table, which keeps 31 ASCII characters; "" = the program's name
	Flags      Flags  // 0 = WantsFrames
	Mode       Mode
	CUDADevice int32
	Protocol   uint32       // 0 = the publisher's, as its frame SHM says
	Logger     *slog.Logger // nil = silent
}

// Subscriber is the connection to a publisher after a successful handshake. Its public fields do not change. Methods may be
// called from any goroutine.
type Subscriber struct {
	Key              string
	Protocol         uint32 // that is spoken: 4, 2 or 1
	Bit              int    // in the publisher's table, 1…31
	PID              int    // of the publisher; 0 = in another PID namespace
	ShmName          string // frame SHM in /dev/shm
	RingSize         int    // frame slots, 0 = packet-only publisher
	Meta             FrameMeta
	InitialSeq       uint64 // of the frame ring when the bit was given
	PacketPath       string // packet ring in /dev/shm; "" = none
	CodecID          uint32 // of the packet ring, FFmpeg's
	InitialPacketSeq uint64 // the packet ring's last keyframe at the handshake
	MappingSize      uint64 // bytes of one frame slot's memory, a multiple of Granularity
	Granularity      uint64

	peer *peer
	side *subscriberSide
	log  *slog.Logger

	progress progress
	doorbell doorbell

	mu     sync.Mutex
	fds    []int
	err    error
	closed bool
	done   chan struct{}
}

// Dial connects to the publisher of a key and subscribes. It blocks for a few milliseconds, at most until ctx or the
// handshake's time is over. The error Is ErrNotFound (and os.ErrNotExist) when nobody serves the key, or when the publisher
// lacks what the flags ask for; ErrTooMany, ErrProtocol and other codes are the publisher's answers.
func Dial(ctx context.Context, o DialOptions) (*Subscriber, error) {
	s, err := dial(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", o.Key, err)
	}
	return s, nil
}

// NoPublisherError says that nobody serves a key. errors.Is(err, ErrNotFound), errors.Is(err, os.ErrNotExist).
type NoPublisherError struct {
	Path string // of the socket
	Err  error  // of the connect
}

func (e *NoPublisherError) Error() string {
	return fmt.Sprintf("no publisher at %s: %s", e.Path, ErrNotFound.Error())
}

func (e *NoPublisherError) Unwrap() []error { return []error{ErrNotFound, e.Err} }

// accessHint says whose a socket is that this process may not use, and what opens it.
func accessHint(path string) string {
	st, err := os.Lstat(path)
	if err != nil {
		return ""
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf(": it belongs to uid %d, gid %d, mode %04o, and this process runs as uid %d (start the publisher with --group NAME)",
		sys.Uid, sys.Gid, st.Mode().Perm(), os.Geteuid())
}

func dial(ctx context.Context, o DialOptions) (*Subscriber, error) {
	if err := CheckKey(o.Key); err != nil {
		return nil, err
	}
	if dialectFor(o.Protocol) == nil {
		return nil, fmt.Errorf("protocol %d: %w", o.Protocol, ErrInvalidArg)
	}
	if o.Name == "" {
		o.Name = filepath.Base(os.Args[0])
	}
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	path := SocketPath(o.RuntimeDir, o.Key)
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTimeout, ErrTimeout)
	defer cancel()
	s, d, err := o.talk(ctx, path, log)
	if o.Protocol == 0 && errors.Is(err, ErrProtocol) {
		if now, _ := dialectSpoken(o.Key); now != nil && now != d { // another publisher has taken over meanwhile
			s, _, err = o.talk(ctx, path, log)
		}
	}
	return s, err
}

// dialectSpoken returns the dialect of a key's frame SHM; the default where it does not tell: the publisher will.
func dialectSpoken(key string) (*dialect, error) {
	seg, err := shm.Open(ShmName(key), shm.OpenOptions{ReadOnly: true, MinSize: headerSize})
	if err != nil {
		return dialects[0], nil
	}
	defer seg.Close()
	d := dialects[0]
	_ = shm.Guard(func() {
		var found *dialect
		if _, found, err = openBlock(seg.Bytes()); found != nil {
			d = found
		}
	})
	var version *VersionError
	if errors.As(err, &version) && (version.Magic == MagicV4 || version.Magic == MagicLegacy) {
		return nil, err
	}
	return d, nil
}

// talk connects and runs the handshake, once, in the dialect that it returns.
func (o DialOptions) talk(ctx context.Context, path string, log *slog.Logger) (*Subscriber, *dialect, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return nil, nil, &NoPublisherError{path, err}
	case errors.Is(err, syscall.EAGAIN):
		return nil, nil, fmt.Errorf("%s: the publisher does not accept connections: %w", path, ErrBusy)
	case errors.Is(err, syscall.EACCES):
		return nil, nil, fmt.Errorf("%w%s", err, accessHint(path))
	case err != nil:
		return nil, nil, err
	}
	c := nc.(*net.UnixConn)
	d := dialectFor(o.Protocol)
	if o.Protocol == 0 { // now, when there is a publisher: what a dead one left may be of another version
		if d, err = dialectSpoken(o.Key); err != nil {
			c.Close()
			return nil, nil, fmt.Errorf("this program speaks protocols 4, 2 and 1: %w", err)
		}
	}
	if !d.subscribeFlags && o.Flags&WantsPackets != 0 {
		c.Close()
		return nil, d, fmt.Errorf("publisher speaks protocol %d, which has no packets: %w", d.version, d.noPackets)
	}
	s := &Subscriber{
		Key: o.Key, Protocol: d.version, log: log.With("key", o.Key), peer: newPeer(c, d, true), done: make(chan struct{}),
		side: &subscriberSide{dialect: d, hello: helloRequest{
			Name: cut(o.Name, 255), CUDADevice: o.CUDADevice, Mode: o.Mode, Flags: o.Flags,
		}},
	}
	s.doorbell.init()
	s.peer.step()
	stopWatch := context.AfterFunc(ctx, func() { c.Close() })
	err = subscribeOver(s.peer, s.side)
	if !stopWatch() && err == nil {
		closeFDs(s.side.fds)
		err = context.Cause(ctx)
	} else if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		c.Close()
		return nil, d, s.explain(err)
	}
	if cred, err := shm.PeerCred(c); err == nil {
		s.PID = cred.PID
	}
	side := s.side
	s.Bit, s.ShmName, s.RingSize, s.Meta, s.InitialSeq = side.bit, side.shmName, int(side.resp.RingSize), side.resp.Meta, side.initialSeq
	s.PacketPath, s.CodecID, s.InitialPacketSeq = side.packetName, side.resp.CodecID, side.resp.InitialPacketSeq
	s.MappingSize, s.Granularity, s.fds = roundUp(side.vmm.FrameSize, side.vmm.Granularity), side.vmm.Granularity, side.fds
	s.openProgress()
	s.peer.ready()
	go s.listen()
	return s, d, nil
}

// explain adds to a refusal what the number alone does not say: which version the publisher speaks.
func (s *Subscriber) explain(err error) error {
	if !errors.Is(err, ErrProtocol) {
		return err
	}
	seg, oerr := shm.Open(ShmName(s.Key), shm.OpenOptions{ReadOnly: true, MinSize: headerSize})
	if oerr != nil {
		return err
	}
	defer seg.Close()
	var found *dialect
	_ = shm.Guard(func() { _, found, oerr = openBlock(seg.Bytes()) })
	var version *VersionError
	switch {
	case errors.As(oerr, &version):
		return fmt.Errorf("%w (%w)", err, version)
	case found != nil && !found.servesVersion(s.side.dialect.version):
		return fmt.Errorf("%w (the publisher speaks protocol %d, this subscriber %d)", err, found.version, s.side.dialect.version)
	}
	return err
}

// listen takes what the publisher says until the connection ends.
func (s *Subscriber) listen() {
	var cause error
	for cause == nil {
		in, err := s.peer.receive()
		switch {
		case err == nil:
			if _, known := msgNames[in.typ]; !known { // of a later version
				in.close()
				continue
			}
			out := s.side.handle(&in)
			in.close()
			for _, fd := range s.side.bells {
				if err := s.doorbell.hang(fd); err != nil {
					s.log.Warn("the publisher's wake-up descriptor cannot be used", "error", err)
				}
			}
			s.side.bells = nil
			for _, o := range out {
				if err := s.peer.send(o.msg, o.fds); err != nil {
					cause = fmt.Errorf("%w: %w", err, ErrDisconnected)
				}
			}
			if s.side.state == subscriberClosed {
				cause = s.side.err
			}
		case errors.Is(err, ErrProtocol):
			_ = s.peer.send(newErrorNotice(ErrProtocol, err), nil)
			cause = err
		case errors.Is(err, io.EOF):
			cause = fmt.Errorf("publisher is gone: %w", ErrDisconnected)
		default:
			cause = fmt.Errorf("%w: %w", err, ErrDisconnected)
		}
	}
	var shutdown *ShutdownError
	if !s.side.dialect.ipc || s.side.hello.Flags.effective()&WantsFrames == 0 || !errors.As(cause, &shutdown) {
		s.peer.c.Close()
	} // else Close does, after the handles were closed: the publisher waits for that
	s.doorbell.close()
	s.progress.end()
	s.mu.Lock()
	if s.closed {
		cause = os.ErrClosed
	}
	s.err = fmt.Errorf("subscription to %s: %w", s.Key, cause)
	s.mu.Unlock()
	close(s.done)
}

// Done is closed when the connection has ended: SHUTDOWN, the publisher's death, an ERROR, or Close.
func (s *Subscriber) Done() <-chan struct{} { return s.done }

// Err returns why the connection ended, nil while it has not: ErrDisconnected (as *ShutdownError with the reason when the
// publisher said so), *RemoteError, or os.ErrClosed after Close.
func (s *Subscriber) Err() error {
	select {
	case <-s.done:
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.err
	default:
		return nil
	}
}

// TakeFDs hands the descriptors of the frame slots over to the caller, in slot order. Those not taken are closed by Close.
func (s *Subscriber) TakeFDs() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	fds := s.fds
	s.fds = nil
	return fds
}

// Ping asks the publisher for a sign of life; its PONG is not waited for.
func (s *Subscriber) Ping() error { return s.peer.send(ping{}, nil) }

// Close unsubscribes and releases everything. It may be called more than once.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	fds := s.fds
	s.fds = nil
	s.mu.Unlock()
	closeFDs(fds)
	if first {
		_ = s.peer.send(unsubscribe{}, nil)
		s.peer.c.Close()
	}
	<-s.done
	return s.progress.close()
}
