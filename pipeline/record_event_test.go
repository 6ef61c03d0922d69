package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// eventLine is a line of record --on-event --json.
type eventLine struct {
	Path          string
	Start, End    time.Time
	Packets       int
	Lost          uint64
	Discontinuous bool
	Event         trigger.Event
}

// eventProcess is a recorder in a process of its own.
type eventProcess struct {
	*testenv.Process
	t        *testing.T
	dir, key string
}

func startEventRecorder(t *testing.T, dir, key string, flags ...string) *eventProcess {
	t.Helper()
	p := &eventProcess{t: t, dir: dir, key: key}
	p.Process = testenv.Start(t, testenv.Binary(t), append([]string{"record", key, "--runtime-dir", dir, "--on-event", "--json", "--no-audio",
		"--out", filepath.Join(t.TempDir(), "%{key}-%s-%f.mp4")}, flags...)...)
	p.says("waiting for events")
	return p
}

func (p *eventProcess) says(text string) {
	p.t.Helper()
	testenv.Eventually(p.t, 20*time.Second, func() error {
		if !strings.Contains(p.Stderr(), text) {
			return fmt.Errorf("it does not say %q", text)
		}
		return nil
	})
}

// lines are those that it has printed.
func (p *eventProcess) lines() (list []eventLine) {
	p.t.Helper()
	for d := json.NewDecoder(strings.NewReader(p.Stdout())); ; {
		var l eventLine
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // the rest of a line is under way
			return list
		default:
			require.NoError(p.t, err)
		}
		list = append(list, l)
	}
}

// events waits for n events that are over and returns the files of each.
func (p *eventProcess) events(n int) (list [][]eventLine) {
	p.t.Helper()
	testenv.Eventually(p.t, 30*time.Second, func() error {
		list = nil
		over := 0
		for _, l := range p.lines() {
			if len(list) == 0 || list[len(list)-1][0].Event.ID != l.Event.ID {
				list = append(list, nil)
			}
			list[len(list)-1] = append(list[len(list)-1], l)
			if l.Event.End != nil {
				over++
			}
		}
		if over < n {
			return fmt.Errorf("%d events are over, want %d", over, n)
		}
		return nil
	})
	require.Len(p.t, list, n)
	return list
}

// pull runs cfpipe trigger.
func (p *eventProcess) pull(flags ...string) []trigger.Answer {
	p.t.Helper()
	out, status := runTrigger(p.t, p.dir, p.key, flags...)
	require.Zero(p.t, status, out)
	var list []trigger.Answer
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var a trigger.Answer
		require.NoError(p.t, d.Decode(&a))
		list = append(list, a)
	}
	return list
}

func runTrigger(t *testing.T, dir, key string, flags ...string) (out string, status int) {
	t.Helper()
	cmd := exec.Command(testenv.Binary(t), append([]string{"trigger", key, "--runtime-dir", dir, "--json"}, flags...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(b) + stderr.String(), exit.ExitCode()
	}
	require.NoError(t, err)
	return string(b), 0
}

// older waits until the publisher has published for so long.
func (n *numbered) older(t *testing.T, d time.Duration) {
	t.Helper()
	testenv.Eventually(t, 30*time.Second, func() error {
		if u := n.published(); len(u) == 0 || u[len(u)-1].pts-u[0].pts < int64(d) {
			return errors.New("too young")
		}
		return nil
	})
}

// requireEvent checks that files hold the event: from the keyframe at or before its start until its end, nothing missing.
func (n *numbered) requireEvent(t *testing.T, files ...eventLine) {
	t.Helper()
	numbers, e := n.eventNumbers(t, files)
	requireNumbers(t, numbers, n.keyAt(t, e.Start), n.lastAt(*e.End))
}

// requireCut is requireEvent for an event that ended with its recorder: all that was published by then is there.
func (n *numbered) requireCut(t *testing.T, files ...eventLine) {
	t.Helper()
	numbers, e := n.eventNumbers(t, files)
	last := numbers[len(numbers)-1]
	require.GreaterOrEqual(t, last, n.outAt(*e.End))
	require.LessOrEqual(t, last, n.lastAt(*e.End))
	requireNumbers(t, numbers, n.keyAt(t, e.Start), last)
}

// eventNumbers are the numbers of the units in an event's files.
func (n *numbered) eventNumbers(t *testing.T, files []eventLine) (numbers []int, e trigger.Event) {
	t.Helper()
	for i, f := range files {
		require.Equal(t, files[0].Event.ID, f.Event.ID)
		require.Zero(t, f.Lost)
		require.Equal(t, i == len(files)-1, f.Event.End != nil, "the last file knows the end")
		numbers = append(numbers, n.fileNumbers(t, f.Path, false)...)
	}
	return numbers, files[len(files)-1].Event
}

// Triggers from other processes: an event is recorded whole, prolonged, started and stopped, cut into segments, and bounded.
func TestRecordEvent(t *testing.T) {
	t.Parallel()
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	n := publishNumbered(t, dir, key, 0)
	n.older(t, 5*time.Second)
	r := startEventRecorder(t, dir, key, "--pre", "3s", "--post", "1s", "--longest", "8s", "--segment", "2s")
	status, err := InspectKey(dir, key)
	require.NoError(t, err)
	require.Empty(t, status.Readers, "who waits is no reader")

	before := time.Now()
	a := r.pull("--reason", "bell")
	require.Len(t, a, 1)
	require.Equal(t, trigger.Started, a[0].State)
	require.Equal(t, r.Process.Process.Pid, a[0].PID)
	require.WithinRange(t, a[0].Event.Trigger, before, time.Now())
	require.Equal(t, 3*time.Second, a[0].Event.Trigger.Sub(a[0].Event.Start))
	b := r.pull("--for", "500ms", "--reason", "other")
	require.Equal(t, trigger.Prolonged, b[0].State)
	require.Equal(t, a[0].Event.ID, b[0].Event.ID)
	first := r.events(1)[0]
	n.requireEvent(t, first...)
	require.Greater(t, len(first), 1, "segments of 2 s")
	e := first[len(first)-1].Event
	require.Equal(t, a[0].Event.ID, e.ID)
	require.Equal(t, "bell", e.Reason)
	require.Equal(t, *b[0].Event.End, *e.End)
	testenv.Eventually(t, 5*time.Second, func() error {
		if status, err := InspectKey(dir, key); err != nil || len(status.Readers) > 0 {
			return fmt.Errorf("still a reader: %w", errors.Join(err))
		}
		return nil
	})

	require.Equal(t, trigger.Idle, r.pull("--stop")[0].State)
	require.Nil(t, r.pull("--start", "--reason", "lorry")[0].Event.End)
	time.Sleep(1500 * time.Millisecond) // the event's own length
	stop := r.pull("--stop")[0]
	require.Equal(t, trigger.Stopping, stop.State)
	second := r.events(2)[1]
	n.requireEvent(t, second...)
	e = second[len(second)-1].Event
	require.Equal(t, *stop.Event.End, *e.End)
	require.Greater(t, e.End.Sub(e.Start), 5500*time.Millisecond)

	// More than the longest: two events, and what lies between is in both.
	r.pull("--for", "6500ms", "--reason", "long")
	long := r.events(4)[2:]
	n.requireEvent(t, long[0]...)
	n.requireEvent(t, long[1]...)
	e = long[0][len(long[0])-1].Event
	require.Equal(t, *e.End, long[1][0].Event.Start)
	require.Equal(t, 8*time.Second, e.End.Sub(e.Start))
	require.Equal(t, "long", long[1][0].Event.Reason)

	// Ctrl-C in an event finishes its file.
	r.pull("--start")
	r.pull("--for", "1s")
	testenv.Eventually(t, 10*time.Second, func() error {
		if status, err := InspectKey(dir, key); err != nil || len(status.Readers) != 1 {
			return errors.New("it does not record yet")
		}
		return nil
	})
	status, err = InspectKey(dir, key)
	require.NoError(t, err)
	reader := status.Readers[0]
	n.until(t, len(n.published())+12) // some pictures
	require.NoError(t, r.Stop(t, syscall.SIGTERM, 10*time.Second))
	stopped := r.events(5)[4]
	n.requireCut(t, stopped...)
	require.Equal(t, []string{"record", "event", stopped[0].Event.ID}, []string{reader.Name, reader.Recording, reader.Event})
	left, err := filepath.Glob(dir + "/*.event")
	require.NoError(t, err)
	require.Empty(t, left)
	out, exit := runTrigger(t, dir, key)
	require.Equal(t, 3, exit, out)
}

// Two recorders of a key take one trigger; one that was killed is not asked any more, and one that stands still costs the caller's timeout.
func TestRecordEventRecorders(t *testing.T) {
	t.Parallel()
	testenv.Watchdog(t, time.Minute)
	dir, key := place(t)
	n := publishNumbered(t, dir, key, 0)
	n.older(t, 3*time.Second)
	flags := []string{"--pre", "1s", "--post", "500ms"}
	a, b := startEventRecorder(t, dir, key, flags...), startEventRecorder(t, dir, key, flags...)
	require.Len(t, a.pull(), 2)
	n.requireEvent(t, a.events(1)[0]...)
	n.requireEvent(t, b.events(1)[0]...)
	require.NoError(t, b.Process.Process.Signal(syscall.SIGSTOP))
	out, status := runTrigger(t, dir, key, "--timeout", "500ms")
	require.Equal(t, 4, status, out)
	require.Contains(t, out, `"state":"started"`, "the other one took it")
	b.Kill()
	n.requireEvent(t, a.events(2)[1]...)
	require.Len(t, a.pull(), 1)
	a.Kill()
	c := startEventRecorder(t, dir, key, flags...)
	require.Len(t, c.pull(), 1)
	n.requireEvent(t, c.events(1)[0]...)
	left, err := filepath.Glob(dir + "/*.event")
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// The publisher comes and goes while the recorder waits, and in an event; a camera that falls silent does not keep an event from its end.
func TestRecordEventRestarts(t *testing.T) {
	t.Parallel()
	testenv.Watchdog(t, time.Minute)
	dir, key := place(t)
	r := startEventRecorder(t, dir, key, "--pre", "2s", "--post", "1s", "--wait", "-1s")
	r.pull("--reason", "nobody there")
	r.says("the event has no pictures")

	n := publishNumbered(t, dir, key, 0)
	n.older(t, 3*time.Second)
	n.stop()
	n = publishNumbered(t, dir, key, 0)
	n.older(t, 4*time.Second)
	r.pull()
	n.requireEvent(t, r.events(1)[0]...)

	r.pull("--start")
	testenv.Eventually(t, 10*time.Second, func() error {
		if status, err := InspectKey(dir, key); err != nil || len(status.Readers) != 1 {
			return errors.New("it does not record yet")
		}
		return nil
	})
	n.until(t, len(n.published())+12) // some pictures of this publisher
	before := n
	n.stop()
	n = publishNumbered(t, dir, key, 0)
	n.older(t, 2*time.Second)
	r.pull("--stop")
	files := r.events(2)[1]
	require.Len(t, files, 2)
	require.False(t, files[0].Discontinuous)
	require.True(t, files[1].Discontinuous)
	require.Equal(t, files[0].Event.ID, files[1].Event.ID)
	requireNumbers(t, before.fileNumbers(t, files[0].Path, false), before.keyAt(t, files[0].Event.Start), len(before.published())-1)
	requireNumbers(t, n.fileNumbers(t, files[1].Path, false), 0, n.lastAt(*files[1].Event.End))

	n.older(t, 4*time.Second)
	r.pull()
	n.stop() // silence
	files = r.events(3)[2]
	requireNumbers(t, n.fileNumbers(t, files[0].Path, false), n.keyAt(t, files[0].Event.Start), min(n.lastAt(*files[0].Event.End), len(n.published())-1))
	require.NoError(t, r.Stop(t, syscall.SIGTERM, 10*time.Second))
}

// In one process: leaks, the race detector, a ring that is too small, and wrong options.
func TestRecordEventHere(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir, key := place(t)
	n := publishNumbered(t, dir, key, 1<<20) // 32 MiB hold 32 of these: 1.3 s
	n.older(t, 4*time.Second)
	var log testenv.Log
	var k kept
	ready := make(chan struct{})
	events := make(chan trigger.Event, 10)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	counter := &RecordCounter{}
	go func() {
		ended <- Record(ctx, RecordOptions{RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "new", "%s-%f.mp4"), Pre: 5 * time.Second, NoAudio: true,
			Counter: counter, Logger: slog.New(slog.NewTextHandler(&log, nil)), OnEvent: &EventOptions{Post: 200 * time.Millisecond, Ready: func() { close(ready) }},
			Done: func(f Recorded) { k.done(f); events <- *f.Event }})
	}()
	<-ready
	took, err := trigger.Send(t.Context(), dir, key, trigger.Request{})
	require.NoError(t, err)
	require.Contains(t, took[0].Note, "the event begins late")
	require.Contains(t, took[0].Note, "--packet-bytes")
	e := <-events
	require.NotNil(t, e.End)
	require.Contains(t, log.String(), "the ring does not reach back as far as --pre")
	require.Contains(t, log.String(), "the event begins late")
	require.Contains(t, log.String(), "--packet-bytes")
	numbers := n.fileNumbers(t, k.segments[0].Path, false)
	requireNumbers(t, numbers, numbers[0], n.lastAt(*e.End))
	require.EqualValues(t, 1, counter.Stats().Events)
	_, err = trigger.Send(t.Context(), dir, key, trigger.Request{Action: trigger.Start})
	require.NoError(t, err)
	testenv.Eventually(t, 10*time.Second, func() error {
		if _, open := k.count(); !counter.Stats().Event || counter.Stats().Files < 2 {
			return fmt.Errorf("%d files", open)
		}
		return nil
	})
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NotNil(t, (<-events).End)
	require.False(t, counter.Stats().Event)
	n.stop()

	err = Record(t.Context(), RecordOptions{RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "x.mp4"), OnEvent: &EventOptions{}})
	require.ErrorIs(t, err, os.ErrNotExist)
	var unwritten *mux.WriteError
	err = Record(t.Context(), RecordOptions{RuntimeDir: dir, Key: key, Out: "/proc/no/such/x.mp4", OnEvent: &EventOptions{}})
	require.ErrorAs(t, err, &unwritten)
	err = Record(t.Context(), RecordOptions{RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "x.mp4"), OnEvent: &EventOptions{}, WaitForKey: -1, Duration: time.Millisecond})
	require.NoError(t, err)
	for _, o := range []EventOptions{{Post: -1}, {Longest: -1}, {Longest: 2 * time.Second, Post: 2 * time.Second}} {
		require.Error(t, o.Check(time.Second))
	}
}

// A recorder that is stopped as soon as it has taken a trigger has recorded what lies before it.
func TestRecordEventStopped(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir, key := place(t)
	n := publishNumbered(t, dir, key, 0)
	n.older(t, 2*time.Second)
	for range 20 {
		var log testenv.Log
		var files []eventLine
		ready, ended := make(chan struct{}), make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			ended <- Record(ctx, RecordOptions{RuntimeDir: dir, Key: key, Out: filepath.Join(t.TempDir(), "%s-%f.mp4"), Pre: time.Second, WaitForKey: -1, NoAudio: true,
				Logger: slog.New(slog.NewTextHandler(&log, nil)), OnEvent: &EventOptions{Ready: func() { close(ready) }},
				Done: func(f Recorded) { files = append(files, eventLine{Path: f.Path, Lost: f.Lost, Event: *f.Event}) }})
		}()
		<-ready
		took, err := trigger.Send(t.Context(), dir, key, trigger.Request{Action: trigger.Start})
		cancel()
		require.NoError(t, err)
		require.Equal(t, trigger.Started, took[0].State)
		require.ErrorIs(t, <-ended, context.Canceled)
		require.Len(t, files, 1, log.String())
		require.Equal(t, took[0].Event.ID, files[0].Event.ID)
		n.requireCut(t, files...)
	}
}

func TestBehindEnd(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, c := range map[string]struct {
		dts, end, past time.Duration // from now; past is what the monotonic clock says
		behind         bool
	}{
		"before the end":               {0, time.Second, -time.Second, false},
		"behind it":                    {0, -time.Second, time.Second, true},
		"the camera is late":           {-time.Second, -500 * time.Millisecond, 500 * time.Millisecond, false},
		"the camera is early":          {time.Second, 500 * time.Millisecond, -500 * time.Millisecond, false},
		"from the ring, before":        {-time.Minute, -time.Second, time.Second, false},
		"from the ring, behind":        {-time.Minute, -2 * time.Minute, 2 * time.Minute, true},
		"the clock was set back":       {0, time.Hour, 10 * time.Second, true},
		"set back, before the end":     {0, time.Hour, -time.Second, false},
		"the clock was set forward":    {0, -time.Hour, -10 * time.Second, false},
		"set forward, the end is past": {0, -time.Hour, time.Second, true},
	} {
		_, behind := behindEnd(now.Add(c.dts).UnixNano(), now, now.Add(c.end), c.past)
		require.Equal(t, c.behind, behind, name)
	}
}
