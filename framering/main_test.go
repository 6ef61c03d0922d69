package framering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// What this test binary is where tests need processes to kill. The arguments are the runtime directory and the key.
func TestMain(m *testing.M) {
	testenv.Roles{"publish": publishRole, "publish-snapshots": publishSnapshotsRole, "subscribe": subscribeRole}.Main(m)
}

// publishRole prints "ready", "exists" or the error, and publishes until stdin ends.
func publishRole(args []string) error {
	return play(args[0], args[1], func(*Publisher) error { return nil })
}

// publishSnapshotsRole has a snapshot socket too.
func publishSnapshotsRole(args []string) error {
	return play(args[0], args[1], func(p *Publisher) error {
		_, err := p.ListenSnapshot()
		return err
	})
}

func play(dir, key string, begin func(*Publisher) error) error {
	p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	if err == nil {
		p.EnablePackets(PacketInfo{Path: PacketShmName(key), CodecID: 27})
		err = errors.Join(p.Serve(), begin(p))
	}
	if errors.Is(err, ErrAlreadyExists) {
		fmt.Println("exists")
		return nil
	}
	if err != nil {
		fmt.Println(err)
		return err
	}
	fmt.Println("ready")
	_, _ = os.Stdin.Read(make([]byte, 1))
	_ = p.Close(ReasonNormal)
	return nil
}

// subscribeRole subscribes again and again with 8 connections at a time until it is killed.
func subscribeRole(args []string) error {
	dir, key := args[0], args[1]
	fmt.Println("ready")
	for {
		var subs []*Subscriber
		for range 8 {
			s, err := Dial(context.Background(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets})
			if err == nil {
				subs = append(subs, s)
			}
		}
		for _, s := range subs[:len(subs)/2] {
			_ = s.Close()
		}
		for _, s := range subs[len(subs)/2:] {
			s.peer.c.Close() // without UNSUBSCRIBE
		}
	}
}

// child starts this binary in a role and returns it with its first line of output.
func child(t testing.TB, role, dir, key string) (*testenv.Process, string) {
	t.Helper()
	cmd := testenv.Child(role, dir, key)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	p, out := testenv.StartPiped(t, cmd)
	line, err := out.ReadString('\n')
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	return p, strings.TrimSpace(line)
}

func place(t testing.TB) (dir, key string) {
	t.Helper()
	return testenv.Place(t)
}

// publish starts a publisher and closes it after the test.
func publish(t testing.TB, o PublisherOptions, packets bool) *Publisher {
	t.Helper()
	return publishPatient(t, o, packets, handshakeTimeout)
}

// publishPatient is publish with a patience for peers in their handshake.
func publishPatient(t testing.TB, o PublisherOptions, packets bool, patience time.Duration) *Publisher {
	t.Helper()
	p, err := NewPublisher(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(ReasonNormal)) })
	if packets {
		p.EnablePackets(PacketInfo{Path: PacketShmName(o.Key), CodecID: 27, InitialSeq: func() uint64 { return 41 }})
	}
	p.patience = patience
	require.NoError(t, p.Serve())
	return p
}

// publishBoth is publish with frames in memfds whose first byte is their index.
func publishBoth(t testing.TB, o PublisherOptions, packets bool, frames FrameOptions) *Publisher {
	t.Helper()
	p := publish(t, o, packets)
	frames.Memory = &slotsInMemfds{}
	w, err := p.StartFrames(frames)
	require.NoError(t, err)
	for i, b := range w.ring.memory.buffers {
		b.Bytes()[0] = byte(i)
	}
	return p
}

// subscribe dials and closes after the test.
func subscribe(t testing.TB, dir, key string, flags Flags) *Subscriber {
	t.Helper()
	s, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Name: "reader", Flags: flags})
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

// wait fails the test unless c is closed soon.
func wait(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(30 * time.Second):
		t.Fatalf("waited too long for %s", what)
	}
}

// eventuallyEmpty waits until the publisher has no subscriber and no bit in use.
func eventuallyEmpty(t testing.TB, p *Publisher) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, func() error {
		if l := p.Subscribers(); len(l) > 0 {
			return fmt.Errorf("subscribers left: %v", l)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.sessions) > 0 {
			return fmt.Errorf("%d sessions left", len(p.sessions))
		}
		return nil
	})
	require.EqualValues(t, 1, p.table.used)
	require.Zero(t, p.ring.block.hdr.bitmap.Load())
	for bit := range subscriberSlots {
		require.Equal(t, SubscriberSlot{Bit: bit}, p.ring.block.subscriber(bit))
	}
}
