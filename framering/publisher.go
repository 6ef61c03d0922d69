package framering

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// libVersion stands in the header for diagnostics: the version of the protocol's document that this package implements.
var libVersion = [3]uint32{0, 4, 0}

// PublisherOptions describe a publisher. Key must be set.
type PublisherOptions struct {
	RuntimeDir string       // "" = $CUFRAMES_RUNTIME_DIR, else DefaultRuntimeDir; made when missing
	Key        string       // see CheckKey
	GID        int          // group that may use socket and SHM (0660); 0 = the owner alone (0600)
	Protocol   uint32       // 0 = 4
	Logger     *slog.Logger // nil = silent
}

// PacketInfo tells subscribers about the packet ring of a publisher.
type PacketInfo struct {
	Path       string        // relative to /dev/shm, see PacketShmName
	CodecID    uint32        // FFmpeg's
	InitialSeq func() uint64 // last_keyframe_seq now; nil = 0. Called from several goroutines
}

// Publisher owns a key: its frame SHM with the lock, its control socket, its subscribers. Methods may be called from any
// goroutine.
type Publisher struct {
	key     string
	path    string // of the socket
	gid     int
	dialect *dialect
	log     *slog.Logger
	table   *table

	patience time.Duration // with a peer in its handshake

	bells    bells         // protocols 1 and 2
	frameSeq atomic.Uint64 // of the newest frame; what shared memory says could be anybody's

	mu        sync.Mutex
	ring      *ring // the current generation
	packets   PacketInfo
	listener  *net.UnixListener
	snapshots *SnapshotListener // nil = none
	sessions  map[*session]struct{}
	closing   bool
	stop      chan struct{} // closed with closing
	wg        sync.WaitGroup
	close     sync.Once
	closeErr  error
}

// NewPublisher claims a key: it makes the frame SHM and takes its lock. Nobody can subscribe before Serve. The error Is
// ErrAlreadyExists when a living publisher has the key; what a dead one left is replaced.
func NewPublisher(o PublisherOptions) (*Publisher, error) {
	if err := CheckKey(o.Key); err != nil {
		return nil, err
	}
	p := &Publisher{
		key: o.Key, path: SocketPath(o.RuntimeDir, o.Key), gid: o.GID, dialect: dialectFor(o.Protocol),
		log: o.Logger, sessions: map[*session]struct{}{}, stop: make(chan struct{}), patience: handshakeTimeout,
	}
	if p.dialect == nil {
		return nil, fmt.Errorf("publish %s: protocol %d: %w", o.Key, o.Protocol, ErrInvalidArg)
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	p.log = p.log.With("key", o.Key)
	if err := checkSocketPath(p.path); err != nil {
		return nil, err
	}
	params := blockParams{dialect: p.dialect, libVersion: libVersion, pid: uint64(os.Getpid())}
	if err := CheckRuntimeDir(filepath.Dir(p.path)); err != nil {
		return nil, fmt.Errorf("publish %s: %w", o.Key, err)
	}
	if err := CheckSocket(filepath.Dir(p.path), o.Key); err != nil {
		return nil, fmt.Errorf("publish %s: %w", o.Key, err)
	}
	// Ask the socket first: a foreign publisher holds no lock but listens. Our own always hold the lock.
	switch alive, err := probe(p.path); {
	case err != nil:
		return nil, fmt.Errorf("publish %s: %w", o.Key, err)
	case alive:
		return nil, fmt.Errorf("publish %s: another publisher answers at %s: %w", o.Key, p.path, ErrAlreadyExists)
	}
	name := ShmName(o.Key)
	seg, err := shm.CreateLocked(name, blockSize, shm.CreateOptions{
		GID: o.GID, Foreign: func(head []byte) bool { return foreignAlive(name, head) },
	})
	if errors.Is(err, shm.ErrExists) {
		return nil, fmt.Errorf("publish %s: another publisher holds /dev/shm/%s: %w", o.Key, name, ErrAlreadyExists)
	}
	if err != nil {
		return nil, fmt.Errorf("publish %s: %w", o.Key, err)
	}
	p.ring = &ring{seg: seg, block: initBlock(seg.Bytes(), params), freed: make(chan struct{})}
	p.table = newTable(p.ring.block)
	removeDeadSocket(SnapshotPath(filepath.Dir(p.path), o.Key)) // this publisher may make none in its place
	return p, nil
}

// CheckRuntimeDir says whether this process can publish there ("" as in PublisherOptions); the folder is made when it is missing.
func CheckRuntimeDir(dir string) error {
	dir = RuntimeDir(dir)
	err := makeRuntimeDir(dir)
	if err == nil {
		const write, search = 2, 1
		if err = syscall.Access(dir, write|search); err != nil {
			err = fmt.Errorf("uid %d may not write there: %w", os.Geteuid(), err)
		}
	}
	if st, serr := os.Stat(dir); serr == nil && !st.IsDir() {
		err = syscall.ENOTDIR
	}
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("runtime folder %s: %w: use another (--runtime-dir $XDG_RUNTIME_DIR/cfpipe), or let root make it for this user", dir, err)
	}
	if err != nil {
		return fmt.Errorf("runtime folder %s: %w (choose another with --runtime-dir)", dir, err)
	}
	return nil
}

// CheckSocket says whether a key's control socket may be put into a runtime folder: what lies there and is no socket was not
// made by a publisher and is not replaced. The error is ErrInvalidArg.
func CheckSocket(dir, key string) error {
	if err := checkNoFile(SocketPath(dir, key)); err != nil {
		return fmt.Errorf("control socket %w", err)
	}
	return nil
}

// checkNoFile says whether nothing but a socket lies at a path.
func checkNoFile(path string) error {
	switch fi, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s: something that is no socket (%s) lies there: remove it, or choose another --key: %w", path, fi.Mode(), ErrInvalidArg)
	}
	return nil
}

// makeRuntimeDir makes a missing directory searchable by all, whatever the umask: the sockets in it have modes of their own.
func makeRuntimeDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// EnablePackets announces the packet ring to subscribers that come from now on. Protocol 1 knows none: there it does nothing.
func (p *Publisher) EnablePackets(i PacketInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dialect.subscribeFlags {
		return
	}
	p.packets = i
	// Of protocol 2 the header says so too (§10.1): readers choose their dialect by it.
	_ = shm.Guard(func() { p.ring.block.hdr.protoVersion.Store(p.dialect.announced(i.Path != "")) })
}

// Serve begins to listen and returns; subscribers are served in the background until Close.
func (p *Publisher) Serve() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing || p.listener != nil {
		return fmt.Errorf("serve %s: closed or serving already: %w", p.key, ErrInvalidArg)
	}
	// The key is locked, so that the names beside its socket are ours; no key begins with a dot.
	l, err := shm.ListenUnix(p.path, p.gid)
	if err != nil {
		return fmt.Errorf("serve %s: %w", p.key, err)
	}
	p.listener = l
	p.wg.Go(func() { p.accept(l) })
	return nil
}

// Subscribers returns a copy of the subscriber table's entries in use.
func (p *Publisher) Subscribers() []SubscriberSlot { return p.table.list() }

// Header returns a copy of the header in shared memory.
func (p *Publisher) Header() Header {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ring.block.header()
}

// Close tells all subscribers that the publisher ends, waits until they are told, and removes socket and SHM. Calls after
// the first return the first one's error.
func (p *Publisher) Close(reason Reason) error {
	p.close.Do(func() {
		p.mu.Lock()
		p.closing = true
		close(p.stop)
		ring := p.ring
		l, snapshots := p.listener, p.snapshots
		sessions := make([]*session, 0, len(p.sessions))
		for s := range p.sessions {
			sessions = append(sessions, s)
		}
		p.mu.Unlock()

		if ring.writer != nil {
			ring.writer.end() // waits for an open slot
		}
		err := shm.Guard(func() {
			ring.block.hdr.shutdownFlag.Store(1) // read by readers that wake, and by List
			shm.FutexWake(low32(&ring.block.hdr.globalSeq))
		})
		if snapshots != nil {
			err = errors.Join(err, snapshots.Close())
		}
		if l != nil {
			err = errors.Join(err, l.Close())
			// The lock is held: nobody else's socket stands there.
			if rerr := os.Remove(p.path); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
		var told sync.WaitGroup
		for _, s := range sessions {
			told.Go(func() { s.end(shutdownNotice{reason}) })
		}
		told.Wait()
		p.wg.Wait()
		p.mu.Lock()
		ring.retired = true
		ring.release()
		p.mu.Unlock()
		<-ring.freed
		p.closeErr = errors.Join(err, ring.seg.Close())
	})
	return p.closeErr
}
