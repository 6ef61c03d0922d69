package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
	"github.com/cfpipe/cfpipe/pipeline"
)

// execute runs the command line in this process and returns what it writes to standard output.
func execute(ctx context.Context, arg ...string) (string, error) {
	var out bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(arg)
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

// publishTestStream publishes 2.5 s of 20 packets a second of 1000 bytes, every tenth a keyframe, that ends now.
func publishTestStream(t testing.TB) (dir, key string, p *pipeline.Publication) {
	t.Helper()
	dir, key = testenv.Place(t)
	p, err := pipeline.Publish(pipeline.PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: 27}})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close(framering.ReasonNormal) })
	now := time.Now()
	for i := range 51 {
		flags := packetring.FlagLastInAU
		if i%10 == 0 {
			flags |= packetring.FlagKey
		}
		at := now.Add(time.Duration(i-50) * 50 * time.Millisecond).UnixNano()
		_, err := p.Packet(packetring.Packet{PTS: at, DTS: at, Flags: flags, Data: make([]byte, 1000)})
		require.NoError(t, err)
	}
	return dir, key, p
}

func TestLs(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key, _ := publishTestStream(t)
	s, err := pipeline.Subscribe(t.Context(), pipeline.SubscribeOptions{RuntimeDir: dir, Key: key, Name: "lister"})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Next(t.Context())
	require.NoError(t, err)

	out, err := execute(t.Context(), "ls", "--runtime-dir", dir)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2)
	require.Equal(t, []string{"KEY", "CODEC", "SIZE", "PACKETS/S", "KBIT/S", "AGE", "GOP", "READERS", "PID"}, strings.Fields(lines[0]))
	f := strings.Fields(lines[1])
	require.Len(t, f, 10, lines[1])
	require.Equal(t, []string{key, "h264", "-", "20.0", "160"}, f[:5])
	require.Equal(t, []string{"10", "(0.5s)", "1"}, f[6:9])
	require.NotContains(t, out, "\x1b", "plain when it is no terminal")

	out, err = execute(t.Context(), "ls", "--runtime-dir", dir, "--json")
	require.NoError(t, err)
	var keys []pipeline.KeyStatus
	require.NoError(t, json.Unmarshal([]byte(out), &keys))
	require.Len(t, keys, 1)
	k := keys[0]
	require.Equal(t, key, k.Key)
	require.True(t, k.Alive)
	require.EqualValues(t, os.Getpid(), k.PID)
	require.Less(t, *k.AgeSeconds, 4.0)
	require.Len(t, k.Readers, 1)
	require.Equal(t, "lister", k.Readers[0].Name)
	require.EqualValues(t, 0, *k.Readers[0].Lag, "it began at the newest packet, a keyframe")

	empty := t.TempDir()
	out, err = execute(t.Context(), "ls", "--runtime-dir", empty, "--json")
	require.NoError(t, err)
	require.Equal(t, "[]\n", out)
	_, err = execute(t.Context(), "ls", "--runtime-dir", filepath.Join(empty, "none"))
	require.NoError(t, err)

	for _, wrong := range [][]string{{"ls", "x"}, {"ls", "--interval", "1ms"}, {"inspect"}, {"inspect", "--nonsense", key}} {
		_, err = execute(t.Context(), append(wrong, "--runtime-dir", dir)...)
		require.Equal(t, exitUsage, exitStatus(err), wrong)
	}
}

func TestLsWatch(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key, _ := publishTestStream(t)
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	out, err := execute(ctx, "ls", "--runtime-dir", dir, "--watch", "--interval", "50ms", "--json")
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Greater(t, len(lines), 1)
	for _, l := range lines {
		var keys []pipeline.KeyStatus
		require.NoError(t, json.Unmarshal([]byte(l), &keys))
		require.Equal(t, key, keys[0].Key)
	}
}

func TestInspect(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key, p := publishTestStream(t)
	s, err := pipeline.Subscribe(t.Context(), pipeline.SubscribeOptions{
		RuntimeDir: dir, Key: key, Name: "be\x1b[31mhind", Start: pipeline.StartOldest,
	})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Next(t.Context())
	require.NoError(t, err)

	out, err := execute(t.Context(), "inspect", "--runtime-dir", dir, key)
	require.NoError(t, err)
	for _, want := range []string{
		key, "alive", "20.0 packets/s, 160 kbit/s", "51 packets in 64 slots", "be?[31mhind",
	} {
		require.Contains(t, out, want)
	}
	require.NotContains(t, out, "KEY|LAST_IN_AU")
	slots, err := execute(t.Context(), "inspect", "--runtime-dir", dir, key, "--slots")
	require.NoError(t, err)
	require.Contains(t, slots, "KEY|LAST_IN_AU")
	require.Contains(t, slots, "50.0")
	require.NotContains(t, out, "\x1b")

	out, err = execute(t.Context(), "inspect", "--runtime-dir", dir, "--json", key)
	require.NoError(t, err)
	var k pipeline.KeyStatus
	require.NoError(t, json.Unmarshal([]byte(out), &k))
	require.Len(t, k.Packets.Packets, 51)
	require.Equal(t, pipeline.SlotStatus{
		Seq: 1, Slot: 1, PTS: k.Packets.Packets[0].PTS, DTS: k.Packets.Packets[0].DTS, Bytes: 1000, Flags: "KEY|LAST_IN_AU",
	}, k.Packets.Packets[0])
	require.EqualValues(t, 50, *k.Readers[0].Lag)
	require.EqualValues(t, 51, k.Packets.LastKeyframeSeq)
	require.InDelta(t, 2.5, k.Packets.BufferedSeconds, 0.001)

	_, err = execute(t.Context(), "inspect", "--runtime-dir", dir, "nobody")
	require.Equal(t, exitNotFound, exitStatus(err))
	require.ErrorContains(t, err, "published here: "+key)
	_, err = execute(t.Context(), "inspect", "--runtime-dir", dir, "../x")
	require.Error(t, err)
	require.NoError(t, p.Close(framering.ReasonNormal))
	_, err = execute(t.Context(), "inspect", "--runtime-dir", dir, key)
	require.Equal(t, exitNotFound, exitStatus(err))
}

// TestDeadPublisherProcess is no test: it is the publisher that TestInspectDead kills.
func TestDeadPublisherProcess(t *testing.T) {
	dir, key := os.Getenv("PUBLISH_DIR"), os.Getenv("PUBLISH_KEY")
	if key == "" {
		t.Skip("runs as a child process of another test")
	}
	_, err := pipeline.Publish(pipeline.PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: 173}})
	require.NoError(t, err)
	os.Stdout.WriteString("ready\n")
	select {}
}

func TestInspectDead(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, err := os.MkdirTemp("", "cf")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	key := "dead-" + rand.Text()[:10]
	cmd := exec.Command(os.Args[0], "-test.run=^TestDeadPublisherProcess$")
	cmd.Env = append(os.Environ(), "PUBLISH_DIR="+dir, "PUBLISH_KEY="+key)
	child := testenv.StartCmd(t, cmd)
	testenv.Eventually(t, 20*time.Second, func() error {
		if !strings.Contains(child.Stdout(), "ready\n") {
			return errors.New("not ready")
		}
		return nil
	})
	out, err := execute(t.Context(), "inspect", "--runtime-dir", dir, key)
	require.NoError(t, err)
	require.Contains(t, out, "h265")
	child.Kill()
	defer func() {
		p, err := pipeline.Publish(pipeline.PublishOptions{RuntimeDir: dir, Key: key})
		require.NoError(t, err, "what is left is no obstacle")
		require.NoError(t, p.Close(framering.ReasonNormal))
	}()

	out, err = execute(t.Context(), "ls", "--runtime-dir", dir)
	require.NoError(t, err)
	require.NotContains(t, out, key)
	out, err = execute(t.Context(), "inspect", "--runtime-dir", dir, key)
	require.Equal(t, exitNotFound, exitStatus(err))
	require.Contains(t, out, "dead, left behind")
	out, err = execute(t.Context(), "inspect", "--runtime-dir", dir, "--json", key)
	require.Equal(t, exitNotFound, exitStatus(err))
	var s pipeline.KeyStatus
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	require.False(t, s.Alive)
	require.Equal(t, child.Process.Pid, s.Packets.PID)
}
