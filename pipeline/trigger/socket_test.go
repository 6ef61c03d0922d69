package trigger

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func place(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ev")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func serve(t *testing.T, dir, key string) (*Server, *atomic.Int64) {
	t.Helper()
	var asked atomic.Int64
	s, err := Listen(ListenOptions{RuntimeDir: dir, Key: key, Handle: func(r Request, _ time.Time) Answer {
		asked.Add(1)
		return Answer{State: Started, Event: &Event{ID: "x", Reason: r.Reason}}
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s, &asked
}

// However many dead recorders' sockets there are, the living are asked, and what the dead have left goes.
func TestSendPastTheDead(t *testing.T) {
	dir := place(t)
	serve(t, dir, "cam")
	for i := range maxRecorders {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, fmt.Sprintf("cam.%08d.event", i)), Net: "unix"})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
	}
	took, err := Send(t.Context(), dir, "cam", Request{})
	require.NoError(t, err)
	require.Len(t, took, 1)
	left, err := filepath.Glob(dir + "/*.event")
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestSend(t *testing.T) {
	testenv.CheckLeaks(t)
	dir := place(t)
	_, err := Send(t.Context(), dir, "cam", Request{})
	var none *NoRecorderError
	require.ErrorAs(t, err, &none)
	require.ErrorIs(t, err, os.ErrNotExist)

	_, a := serve(t, dir, "cam")
	_, b := serve(t, dir, "cam")
	_, other := serve(t, dir, "cam-sub")
	took, err := Send(t.Context(), dir, "cam", Request{Reason: "bell \" ü"})
	require.NoError(t, err)
	require.Len(t, took, 2)
	for _, x := range took {
		require.Equal(t, Answer{Key: "cam", PID: os.Getpid(), State: Started, Event: &Event{ID: "x", Reason: "bell \" ü"}}, x)
	}
	require.Equal(t, []int64{1, 1, 0}, []int64{a.Load(), b.Load(), other.Load()})

	// What is no publisher is taken for none.
	list, err := framering.List(dir)
	require.NoError(t, err)
	require.Empty(t, list)
	// The mode is that of the publishers' sockets.
	sockets, err := filepath.Glob(dir + "/*.event")
	require.NoError(t, err)
	require.Len(t, sockets, 3)
	for _, s := range sockets {
		fi, err := os.Stat(s)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
	}

	gid := os.Getgid()
	if gid == 0 {
		gid = 65534 // root may give it to any
	}
	group, err := Listen(ListenOptions{RuntimeDir: dir, Key: "grp", GID: gid, Handle: func(Request, time.Time) Answer { return Answer{} }})
	require.NoError(t, err)
	fi, err := os.Stat(group.path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o660), fi.Mode().Perm())
	require.EqualValues(t, gid, fi.Sys().(*syscall.Stat_t).Gid)
	require.NoError(t, group.Close())

	for _, bad := range []Request{
		{Action: "go"}, {Action: Start, For: 1}, {For: -1}, {For: MaxFor + 1}, {Reason: strings.Repeat("x", MaxReason+1)}, {Reason: "\xff"}, {Reason: "a\nb"},
	} {
		_, err := Send(t.Context(), dir, "cam", bad)
		require.Error(t, err, bad)
	}
	_, err = Send(t.Context(), dir, "no/key", Request{})
	require.ErrorIs(t, err, framering.ErrInvalidArg)
	require.EqualValues(t, 1, a.Load())
}

// A recorder that does not answer costs the caller's patience and no more; the others are asked all the same.
func TestSendTimeout(t *testing.T) {
	testenv.CheckLeaks(t)
	dir := place(t)
	l, err := net.Listen("unix", dir+"/cam.stuck.event")
	require.NoError(t, err)
	defer l.Close()
	_, asked := serve(t, dir, "cam")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	took, err := Send(ctx, dir, "cam", Request{})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Len(t, took, 1)
	require.EqualValues(t, 1, asked.Load())
}

// Answers of a hostile recorder.
func TestSendHostileRecorder(t *testing.T) {
	testenv.CheckLeaks(t)
	for name, reply := range map[string]string{
		"endless": strings.Repeat("x", 1<<20), "nothing": "", "no JSON": "hello\n", "refusal": `{"error":"no"}` + "\n", "torn": `{"key"`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := place(t)
			l, err := net.Listen("unix", dir+"/cam.evil.event")
			require.NoError(t, err)
			defer l.Close()
			go func() {
				c, err := l.Accept()
				if err == nil {
					_, _ = bufio.NewReader(c).ReadString('\n')
					_, _ = io.WriteString(c, reply)
					c.Close()
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			took, err := Send(ctx, dir, "cam", Request{})
			require.Error(t, err)
			require.NotErrorIs(t, err, os.ErrNotExist)
			require.Empty(t, took)
		})
	}
}

// Hostile clients: what is no request is refused, a thousand silent ones do not keep the next from being heard, and nothing stays.
func TestListenHostile(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir := place(t)
	s, asked := serve(t, dir, "cam")
	exchange := func(send string) (reply struct {
		Error string
		State State
	}, err error) {
		c, err := net.Dial("unix", s.path)
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		_, _ = io.WriteString(c, send)
		line, err := bufio.NewReader(c).ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &reply)
		}
		return reply, err
	}
	for _, bad := range []string{
		"hello\n", "{}{}\n", `{"action":"go"}` + "\n", `{"for_ns":-1}` + "\n", `{"for_ns":1e300}` + "\n", `{"action":"start","for_ns":5}` + "\n", `{"reason":7}` + "\n",
		`{"reason":"` + strings.Repeat("x", 600) + `"}` + "\n", strings.Repeat("x", 1<<20), "[" + strings.Repeat("[", 4000) + "\n", "\x00\n", "\n",
	} {
		reply, err := exchange(bad)
		require.NoError(t, err, "%.40q", bad)
		require.Contains(t, reply.Error, "bad request", "%.40q", bad)
	}
	require.Zero(t, asked.Load())

	var silent []net.Conn
	for range 1000 {
		c, err := net.Dial("unix", s.path)
		require.NoError(t, err)
		defer c.Close()
		_, _ = io.WriteString(c, `{"action"`) // and no more
		silent = append(silent, c)
	}
	begun := time.Now()
	took, err := Send(t.Context(), dir, "cam", Request{})
	require.NoError(t, err)
	require.Len(t, took, 1)
	require.Less(t, time.Since(begun), patience, "it waited for silent ones")
	// All but the last ones were sent away at once; the last when their time is over.
	gone := 0
	for _, c := range silent {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		if _, err := io.ReadAll(c); err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			gone++
		}
	}
	require.Len(t, silent, gone)
}

// TestListenProcess is no test: it is the recorder that TestListenKilled kills.
func TestListenProcess(t *testing.T) {
	dir := os.Getenv("LISTEN_DIR")
	if dir == "" {
		t.Skip("runs as a child process of another test")
	}
	serve(t, dir, "cam")
	select {}
}

// What a killed recorder leaves is nobody to be asked, and goes with the next one's start.
func TestListenKilled(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	dir := place(t)
	sockets := func() []string {
		list, err := filepath.Glob(dir + "/*.event")
		require.NoError(t, err)
		return list
	}
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestListenProcess$")
		cmd.Env = append(os.Environ(), "LISTEN_DIR="+dir)
		child := testenv.StartCmd(t, cmd)
		testenv.Eventually(t, 20*time.Second, func() error {
			took, err := Send(t.Context(), dir, "cam", Request{})
			if err == nil && took[0].PID != child.Process.Pid {
				return errors.New("another one")
			}
			return err
		})
		require.Len(t, sockets(), 1, "the one before it was swept away")
		child.Kill()
		_, err := Send(t.Context(), dir, "cam", Request{})
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	_, other := serve(t, dir, "cam-sub")
	require.Len(t, sockets(), 2)
	s, _ := serve(t, dir, "cam")
	require.Len(t, sockets(), 2)
	_, err := Send(t.Context(), dir, "cam", Request{})
	require.NoError(t, err)
	require.Zero(t, other.Load())
	require.NoError(t, s.Close())
	require.Len(t, sockets(), 1)

	long := filepath.Join(dir, strings.Repeat("d", 100))
	_, err = Listen(ListenOptions{RuntimeDir: long, Key: "cam"})
	require.ErrorContains(t, err, "the kernel takes 107")
}
