package framering

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// TestPythonSubscriber: a peer that shares no code with this package, in three ways to subscribe.
func TestPythonSubscriber(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	python := testenv.NeedTool(t, "python3")
	for flags, want := range map[Flags]string{
		0: `"count":4,"granularity":4096,"firsts":[0,1,2,3],"bitmap":2,`,
		2: `"count":0,"granularity":0,"firsts":[],"bitmap":0,`,
		3: `"count":4,"granularity":4096,"firsts":[0,1,2,3],"bitmap":2,`,
	} {
		t.Run(fmt.Sprintf("flags %d", flags), func(t *testing.T) {
			dir, key := place(t)
			meta := NV12Meta(64, 48)
			mapping := roundUp(meta.FrameSize, 4096)
			p := publishBoth(t, PublisherOptions{RuntimeDir: dir, Key: key}, true, FrameOptions{RingSize: 4, Meta: meta})
			p.frameSeq.Store(9)
			c := testenv.Start(t, python, "testdata/subscriber.py", SocketPath(dir, key), fmt.Sprint(uint32(flags)))
			lines := outputLines(t, c, 1)
			var got, wanted map[string]any
			require.NoError(t, json.Unmarshal([]byte(lines[0]), &got))
			if flags == WantsPackets {
				mapping = 0
			}
			require.NoError(t, json.Unmarshal(fmt.Appendf(nil, `{%s "result":0,"version":4,"ring":4,"width":64,"height":48,
				"frame_size":%d,"shm":"/dev/shm/%s","packets":"%s","codec":27,"initial":41,"bit":1,"initial_seq":9,"mapping":%d,
				"magic":3430686158,"proto":4,"size":7424,"state":2,"pid_ok":true,"name":"python"}`,
				want, meta.FrameSize, ShmName(key), PacketShmName(key), mapping), &wanted))
			require.Equal(t, wanted, got)
			require.NoError(t, p.Close(ReasonUpgrade))
			require.JSONEq(t, `{"reason":2}`, outputLines(t, c, 2)[1])
			require.NoError(t, c.WaitFor(t, 10*time.Second))
		})
	}
	dir, key := place(t)
	publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, false)
	c := testenv.Start(t, python, "testdata/subscriber.py", SocketPath(dir, key), "2")
	require.NoError(t, c.WaitFor(t, 10*time.Second))
	require.JSONEq(t, fmt.Sprintf(`{"result":%d}`, ErrNotFound), c.Stdout())
}

// TestPythonPublisher: a publisher that shares no code with this package, knows no packets and writes the compact layout.
func TestPythonPublisher(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	python := testenv.NeedTool(t, "python3")
	dir, key := place(t)
	c := testenv.Start(t, python, "testdata/publisher.py", SocketPath(dir, key), key)
	outputLines(t, c, 1)
	s := subscribe(t, dir, key, WantsFrames)
	require.Equal(t, 5, s.Bit)
	require.EqualValues(t, 77, s.InitialSeq)
	require.Equal(t, NV12Meta(64, 48), s.Meta)
	require.Empty(t, s.PacketPath)
	require.Equal(t, c.Process.Pid, s.PID)
	fds := s.TakeFDs()
	require.Len(t, fds, 1)
	closeFDs(fds)

	list, err := List(dir)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Len(t, list[0].Slots, 1)
	require.Equal(t, []SubscriberSlot{{Bit: 5, State: SubscriberActive, PID: uint64(os.Getpid()), Name: "reader"}}, list[0].Subscribers)
	_, err = NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, ErrAlreadyExists)

	require.Equal(t, "ponged", outputLines(t, c, 2)[1])
	require.NoError(t, s.Close())
	require.Equal(t, "unsubscribed reader", outputLines(t, c, 3)[2])
	require.NoError(t, c.WaitFor(t, 10*time.Second))
}

// outputLines waits until a process has written n lines and returns them.
func outputLines(t testing.TB, p *testenv.Process, n int) (lines []string) {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, func() error {
		out := p.Stdout()
		if strings.Count(out, "\n") < n {
			return fmt.Errorf("%d lines are not there yet: %q\n%s", n, out, p.Stderr())
		}
		lines = strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		return nil
	})
	return lines
}
