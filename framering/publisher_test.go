package framering

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestFramesAndPackets(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	meta := NV12Meta(64, 48)
	p := publishBoth(t, PublisherOptions{RuntimeDir: dir, Key: key}, true, FrameOptions{RingSize: 4, Meta: meta, Policy: StrictWait})
	p.frameSeq.Store(12)

	s := subscribe(t, dir, key, WantsFrames|WantsPackets)
	require.Equal(t, 1, s.Bit)
	require.Equal(t, os.Getpid(), s.PID)
	require.Equal(t, ShmName(key), s.ShmName)
	require.Equal(t, PacketShmName(key), s.PacketPath)
	require.Equal(t, 4, s.RingSize)
	require.Equal(t, meta, s.Meta)
	require.EqualValues(t, 12, s.InitialSeq)
	require.EqualValues(t, 41, s.InitialPacketSeq)
	require.EqualValues(t, 27, s.CodecID)
	require.EqualValues(t, 4096, s.Granularity)
	require.Equal(t, roundUp(meta.FrameSize, 4096), s.MappingSize)
	fds := s.TakeFDs()
	require.Len(t, fds, 4)
	require.Empty(t, s.TakeFDs())
	for i, fd := range fds {
		seg, err := shm.OpenMemfd(fd, int(s.MappingSize))
		require.NoError(t, err)
		require.EqualValues(t, i, seg.Bytes()[0])
		require.NoError(t, seg.Close())
	}

	packets := subscribe(t, dir, key, WantsPackets)
	require.Equal(t, 2, packets.Bit)
	require.Empty(t, packets.TakeFDs())
	untaken := subscribe(t, dir, key, 0) // its descriptors are closed with it
	require.Equal(t, 3, untaken.Bit)

	var bits []int
	testenv.Eventually(t, 5*time.Second, func() error {
		bits = nil
		for _, l := range p.Subscribers() {
			if l.State != SubscriberActive {
				return errors.New("not active")
			}
			require.Equal(t, "reader", l.Name)
			require.EqualValues(t, os.Getpid(), l.PID)
			bits = append(bits, l.Bit)
		}
		return nil
	})
	require.Equal(t, []int{1, 2, 3}, bits)
	require.EqualValues(t, 0b1010, p.Header().SubscriberBitmap, "who takes packets alone owes no ACK")

	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Err(), os.ErrClosed)
	testenv.Eventually(t, 5*time.Second, func() error {
		if p.Header().SubscriberBitmap != 0b1000 {
			return errors.New("the bit stands")
		}
		return nil
	})
	require.Equal(t, 1, subscribe(t, dir, key, WantsPackets).Bit, "the lowest free bit")
}

func TestPacketOnly(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
	s := subscribe(t, dir, key, WantsPackets)
	require.Zero(t, s.RingSize)
	require.Equal(t, PacketShmName(key), s.PacketPath)
	for _, flags := range []Flags{0, WantsFrames, WantsFrames | WantsPackets} {
		_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: flags})
		require.ErrorIs(t, err, ErrNotFound)
		require.NotErrorAs(t, err, new(*NoPublisherError))
	}
	p.EnablePackets(PacketInfo{})
	_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets})
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, s.Err(), "who is in stays")
}

func TestShutdown(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	for _, reason := range []Reason{ReasonNormal, ReasonError, ReasonUpgrade} {
		dir, key := place(t)
		p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
		a, b := subscribe(t, dir, key, WantsPackets), subscribe(t, dir, key, WantsPackets)
		require.NoError(t, a.Err())
		require.NoError(t, p.Close(reason))
		require.NoError(t, p.Close(ReasonNormal))
		for _, s := range []*Subscriber{a, b} {
			wait(t, s.Done(), "SHUTDOWN")
			require.ErrorIs(t, s.Err(), ErrDisconnected)
			var shutdown *ShutdownError
			require.ErrorAs(t, s.Err(), &shutdown)
			require.Equal(t, reason, shutdown.Reason)
		}
		require.Error(t, p.Serve())
		requireNothingLeft(t, dir, key)
		_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key})
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorIs(t, err, ErrNotFound)
		var none *NoPublisherError
		require.ErrorAs(t, err, &none)
		require.Equal(t, SocketPath(dir, key), none.Path)
	}
}

func requireNothingLeft(t testing.TB, dir, key string) {
	t.Helper()
	left, err := filepath.Glob(dir + "/*")
	require.NoError(t, err)
	require.Empty(t, left)
	hidden, err := filepath.Glob(dir + "/.*")
	require.NoError(t, err)
	require.Empty(t, hidden)
	left, err = filepath.Glob(shm.Dir + "/cuframes-" + key + "*")
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestTooMany(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
	var subs []*Subscriber
	for bit := 1; bit <= MaxSubscribers; bit++ {
		s := subscribe(t, dir, key, WantsPackets)
		require.Equal(t, bit, s.Bit)
		subs = append(subs, s)
	}
	for range 3 {
		_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets})
		require.ErrorIs(t, err, ErrTooMany)
	}
	require.NoError(t, subs[16].Close())
	testenv.Eventually(t, 5*time.Second, func() error {
		s, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets})
		if err != nil {
			return err
		}
		require.Equal(t, 17, s.Bit)
		return s.Close()
	})
	for _, s := range subs {
		require.NoError(t, s.Close())
	}
	eventuallyEmpty(t, p)
}

func TestAccess(t *testing.T) {
	testenv.CheckLeaks(t)
	for name, c := range map[string]struct {
		gid  int
		mode os.FileMode
	}{"owner": {0, 0o600}, "group": {os.Getgid() + 1, 0o660}} {
		t.Run(name, func(t *testing.T) {
			if c.gid != 0 && os.Geteuid() != 0 {
				c.gid = os.Getgid() // only root may give a file to any group
			}
			dir, key := place(t)
			publish(t, PublisherOptions{RuntimeDir: dir, Key: key, GID: c.gid}, true)
			for _, path := range []string{SocketPath(dir, key), shm.Dir + "/" + ShmName(key)} {
				st, err := os.Stat(path)
				require.NoError(t, err)
				require.Equal(t, c.mode, st.Mode().Perm(), path)
			}
			entries, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, entries, 1)
		})
	}
}

func TestPublisherOptions(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	for name, o := range map[string]PublisherOptions{
		"no key":     {},
		"key climbs": {Key: "../x"},
		"key of 64":  {Key: strings.Repeat("k", 64)},
		"protocol 3": {Key: key, Protocol: 3},
		"long path":  {Key: key, RuntimeDir: dir + "/" + strings.Repeat("d", 100)},
	} {
		if o.RuntimeDir == "" {
			o.RuntimeDir = dir
		}
		_, err := NewPublisher(o)
		require.ErrorIs(t, err, ErrInvalidArg, name)
		_, err = Dial(t.Context(), DialOptions{RuntimeDir: o.RuntimeDir, Key: o.Key, Protocol: o.Protocol})
		require.Error(t, err, name)
	}
	requireNothingLeft(t, dir, key)

	// The longest path that the kernel takes works.
	long := dir + "/" + strings.Repeat("d", shm.MaxSocketPath-len(dir)-len("//")-len(key)-len(".sock"))
	require.Len(t, SocketPath(long, key), shm.MaxSocketPath)
	publish(t, PublisherOptions{RuntimeDir: long, Key: key}, true)
	require.Equal(t, 1, subscribe(t, long, key, WantsPackets).Bit)
}

func TestDrop(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := publishBoth(t, PublisherOptions{RuntimeDir: dir, Key: key}, false, FrameOptions{RingSize: 1, Meta: NV12Meta(64, 48)})
	slow, other := subscribe(t, dir, key, WantsFrames), subscribe(t, dir, key, WantsFrames)
	p.drop(slow.Bit, ErrTimeout, "no ACK for 2s")
	require.EqualValues(t, 1<<other.Bit, p.ring.block.hdr.bitmap.Load(), "at once")
	wait(t, slow.Done(), "the ERROR")
	require.ErrorIs(t, slow.Err(), ErrTimeout)
	require.ErrorContains(t, slow.Err(), "no ACK for 2s")
	require.NoError(t, other.Err())
}

// TestDialIsBounded: a publisher that accepts and says nothing, and a context that ends.
func TestDialIsBounded(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	l, err := shm.ListenUnix(SocketPath(dir, key), 0)
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() {
		_, err := Dial(ctx, DialOptions{RuntimeDir: dir, Key: key})
		done <- err
	}()
	c, err := l.AcceptUnix()
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 100)) // its HELLO_REQ: it waits for an answer now
	require.NoError(t, err)
	why := errors.New("enough")
	cancel(why)
	require.ErrorIs(t, <-done, why)
	c.Close()

	go func() {
		_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key})
		done <- err
	}()
	c, err = l.AcceptUnix()
	require.NoError(t, err)
	c.Close()
	require.ErrorIs(t, <-done, ErrDisconnected)
}

func TestList(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	_, key2 := place(t)
	l, err := List(dir)
	require.NoError(t, err)
	require.Empty(t, l)
	l, err = List(dir + "/none")
	require.NoError(t, err)
	require.Empty(t, l)

	publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
	second := publishBoth(t, PublisherOptions{RuntimeDir: dir, Key: key2}, false, FrameOptions{RingSize: 2, Meta: NV12Meta(64, 48)})
	s := subscribe(t, dir, key2, WantsFrames)
	require.NoError(t, os.WriteFile(dir+"/notes.sock", nil, 0o600))
	require.NoError(t, os.WriteFile(dir+"/x.txt", nil, 0o600))
	defer os.Remove(dir + "/x.txt")
	defer os.Remove(dir + "/notes.sock")

	testenv.Eventually(t, 5*time.Second, func() error {
		if s := second.Subscribers(); s[0].State != SubscriberActive {
			return errors.New("not active")
		}
		return nil
	})
	l, err = List(dir)
	require.NoError(t, err)
	require.Len(t, l, 2)
	byKey := map[string]Publication{l[0].Key: l[0], l[1].Key: l[1]}
	audio := publish(t, PublisherOptions{RuntimeDir: dir, Key: key + "-audio"}, true)
	more, err := List(dir)
	require.NoError(t, audio.Close(ReasonNormal))
	require.NoError(t, err)
	require.True(t, slices.IsSortedFunc(more, func(a, b Publication) int { return strings.Compare(a.Key, b.Key) }), more)
	require.True(t, byKey[key].Alive)
	require.EqualValues(t, os.Getpid(), byKey[key].Header.ProducerPID)
	require.Empty(t, byKey[key].Slots)
	require.Len(t, byKey[key2].Slots, 2)
	require.False(t, byKey[key2].Slots[0].Valid)
	require.Equal(t, []SubscriberSlot{{Bit: s.Bit, State: SubscriberActive, PID: uint64(os.Getpid()), Name: "reader"}}, byKey[key2].Subscribers)

	require.NoError(t, second.Close(ReasonNormal))
	l, err = List(dir)
	require.NoError(t, err)
	require.Len(t, l, 1)
	_, err = Inspect(dir, key2)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestListDisturbsNobody lists without pause while publishers come and go: no claim fails because somebody looked.
func TestListDisturbsNobody(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := List(dir); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	for range 100 {
		p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
		require.NoError(t, err)
		require.NoError(t, p.Serve())
		require.NoError(t, p.Close(ReasonNormal))
	}
	close(stop)
	wg.Wait()
}

// TestProgressStaysInItsOwnTable: a subscriber whose publisher has ended writes nothing into the table of the next one.
func TestProgressStaysInItsOwnTable(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	first := publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
	old := subscribe(t, dir, key, WantsPackets)
	old.SawPacket(5)
	require.EqualValues(t, 5, first.Subscribers()[0].LastSeenSeq)
	require.NoError(t, first.Close(ReasonNormal))
	second := publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
	fresh := subscribe(t, dir, key, WantsPackets)
	require.Equal(t, old.Bit, fresh.Bit)
	for range 3 {
		old.SawPacket(1000) // what was left in the first ring
	}
	require.Zero(t, second.Subscribers()[0].LastSeenSeq)
	fresh.SawPacket(7)
	require.EqualValues(t, 7, second.Subscribers()[0].LastSeenSeq)
}

// What lies in the place of the socket and is none belongs to somebody: it stays, and the error says what to do.
func TestNoSocketInItsPlace(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	path := SocketPath(dir, key)
	for name, put := range map[string]func() error{
		"file":    func() error { return os.WriteFile(path, []byte("mine"), 0o600) },
		"FIFO":    func() error { return syscall.Mkfifo(path, 0o600) },
		"folder":  func() error { return os.Mkdir(path, 0o700) },
		"symlink": func() error { return os.Symlink("/dev/null", path) },
	} {
		require.NoError(t, put())
		before, err := os.Lstat(path)
		require.NoError(t, err)
		_, err = NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
		require.ErrorIs(t, err, ErrInvalidArg, name)
		require.ErrorContains(t, err, path)
		after, err := os.Lstat(path)
		require.NoError(t, err, name)
		require.True(t, os.SameFile(before, after), name)
		require.NoError(t, os.Remove(path))
	}
	p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	require.NoError(t, p.Close(ReasonNormal))
}
