package pipeline

import (
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// left are the files that say of an event under way.
func left(t *testing.T, folder string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(folder, ".*"))
	require.NoError(t, err)
	return names
}

// A recorder that is killed in an event, or stopped for an upgrade, is started again: the event goes on, nothing of it is missing, and what is new says
// that it continues. Its end comes when it was due.
func TestEventOutlivesRecorder(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			testenv.Watchdog(t, 2*time.Minute)
			dir, key := place(t)
			n := publishNumbered(t, dir, key, 0)
			n.older(t, 3*time.Second)
			folder := t.TempDir()
			start := func() *eventProcess {
				return startEventRecorder(t, dir, key, "--pre", "2s", "--post", "1s", "--segment", "3s", "--out", filepath.Join(folder, "%{key}-%s-%f.mp4"))
			}
			recorded := func() []string {
				files, err := filepath.Glob(filepath.Join(folder, key+"-*.mp4"))
				require.NoError(t, err)
				return files
			}
			first := start()
			answer := first.pull("--for", "5s", "--reason", "bell")[0]
			first.pull("--for", "8s") // the one before it is prolonged
			testenv.Eventually(t, 20*time.Second, func() error {
				if len(recorded()) < 2 {
					return errors.New("no second file yet")
				}
				return nil
			})
			n.until(t, len(n.published())+40)
			require.Len(t, left(t, folder), 1)
			if sig == syscall.SIGKILL {
				first.Kill()
			} else {
				require.NoError(t, first.Stop(t, sig, 10*time.Second))
			}
			old := recorded()
			slices.Sort(old)
			n.until(t, len(n.published())+40)
			second := start()
			second.says("the event goes on that was recorded before")
			files := second.events(1)[0]
			require.Less(t, len(files), 4)
			numbers := []int{}
			for i, f := range old {
				numbers = append(numbers, n.fileNumbers(t, f, sig == syscall.SIGKILL && i == len(old)-1)...)
			}
			resumed := n.fileNumbers(t, files[0].Path, false)
			require.LessOrEqual(t, resumed[0], numbers[len(numbers)-1]+1, "nothing is missing")
			require.Greater(t, resumed[0], numbers[0]+25, "it is not recorded again from its start")
			for _, f := range files {
				require.Equal(t, answer.Event.ID, f.Event.ID)
				require.Equal(t, "bell", f.Event.Reason)
				require.True(t, f.Event.Continued)
				numbers = append(numbers, n.fileNumbers(t, f.Path, false)...)
				file, err := os.Open(f.Path)
				require.NoError(t, err)
				s, err := mux.Summarize(t.Context(), file)
				file.Close()
				require.NoError(t, err)
				require.Equal(t, "event (continued): bell", s.Cause)
			}
			slices.Sort(numbers)
			numbers = slices.Compact(numbers)
			e := files[len(files)-1].Event
			require.InDelta(t, 9, e.End.Sub(e.Trigger).Seconds(), 1, "8 s from the second trigger on, and what follows")
			requireNumbers(t, numbers, n.keyAt(t, e.Start), n.lastAt(*e.End))
			testenv.Eventually(t, 5*time.Second, func() error {
				if len(left(t, folder)) > 0 {
					return errors.New("what is over stays noted")
				}
				return nil
			})
			require.NoError(t, second.Stop(t, syscall.SIGTERM, 10*time.Second))
			third := start()
			require.NotContains(t, third.Stderr(), "goes on")
		})
	}
}

// An event that ends while its recorder is away is recorded to its end by the next one, from the ring.
func TestEventEndsWhileAway(t *testing.T) {
	t.Parallel()
	testenv.Watchdog(t, time.Minute)
	dir, key := place(t)
	n := publishNumbered(t, dir, key, 0)
	n.older(t, 2*time.Second)
	folder := t.TempDir()
	start := func() *eventProcess {
		return startEventRecorder(t, dir, key, "--pre", "1s", "--post", "1s", "--out", filepath.Join(folder, "%{key}-%s-%f.mp4"))
	}
	first := start()
	event := first.pull("--for", "2s")[0].Event
	n.until(t, len(n.published())+50)
	first.Kill()
	n.until(t, len(n.published())+75)
	require.True(t, time.Now().After(*event.End))
	old := recordedIn(t, folder, key)
	require.Len(t, old, 1)
	second := start()
	second.says("the event goes on that was recorded before")
	files := second.events(1)[0]
	require.Len(t, files, 1)
	numbers := append(n.fileNumbers(t, old[0], true), n.fileNumbers(t, files[0].Path, false)...)
	slices.Sort(numbers)
	requireNumbers(t, slices.Compact(numbers), n.keyAt(t, event.Start), n.lastAt(*event.End))
	gone(t, folder, dir)
	require.NoError(t, second.Stop(t, syscall.SIGTERM, 10*time.Second))

	// One whose recorder was killed when all was recorded, and before it could say so, is over.
	end, now := files[0].End, time.Now()
	r := &recorder{o: RecordOptions{Key: key, Out: filepath.Join(folder, "%{key}-%s.mp4"), OnEvent: &EventOptions{}}, log: slog.New(slog.DiscardHandler)}
	pattern, err := mux.ParsePattern(r.o.Out, r.o.Key)
	require.NoError(t, err)
	r.pattern = pattern
	r.on.plan = trigger.NewPlan(trigger.PlanOptions{})
	b, err := json.Marshal(leftEvent{Path: filepath.Base(files[0].Path), Saved: trigger.Saved{
		Event: trigger.Event{ID: event.ID, Trigger: event.Trigger, Start: event.Start}, Until: end, At: now,
	}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, r.leftName()), b, 0o600))
	require.True(t, now.Before(end.Add(tailGrace)))
	r.takeOver()
	require.NotNil(t, r.on.plan.Event())
	require.False(t, r.claim(t.Context()))
	require.Nil(t, r.on.plan.Event())
	require.Empty(t, left(t, folder))
}

// What is noted of an event is believed only where it may be true, and where this user has written it.
func TestEventLeftHostile(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	now := time.Now()
	good := leftEvent{Saved: trigger.Saved{
		Event: trigger.Event{ID: "20260504T100009Z-k3x2ab", Reason: "bell", Trigger: now, Start: now.Add(-time.Second)}, Until: now.Add(time.Minute), At: now,
	}}
	with := func(change func(*leftEvent)) []byte {
		l := good
		change(&l)
		b, err := json.Marshal(l)
		require.NoError(t, err)
		return b
	}
	write := func(b []byte, mode os.FileMode) func(path string) error {
		return func(path string) error { return errors.Join(os.WriteFile(path, b, 0o600), os.Chmod(path, mode)) }
	}
	whole := with(func(*leftEvent) {})
	for name, c := range map[string]struct {
		put   func(path string) error
		taken bool
	}{
		"good":                  {write(whole, 0o600), true},
		"a path that leads out": {write(with(func(l *leftEvent) { l.Path = "../../etc/passwd" }), 0o600), true},
		"a path of another":     {write(with(func(l *leftEvent) { l.Path = "mine.mp4" }), 0o600), true},
		"goes on tomorrow":      {write(with(func(l *leftEvent) { l.From = now.Add(24 * time.Hour) }), 0o600), true},
		"goes on long ago":      {write(with(func(l *leftEvent) { l.From = time.Unix(0, 0) }), 0o600), true},
		"nothing":               {func(string) error { return nil }, false},
		"empty":                 {write(nil, 0o600), false},
		"a half":                {write(whole[:len(whole)/2], 0o600), false},
		"no JSON":               {write([]byte("{{{{"), 0o600), false},
		"too long":              {write(append(whole, make([]byte, maxLeft)...), 0o600), false},
		"anybody's":             {write(whole, 0o622), false},
		"a link": {func(path string) error {
			other := filepath.Join(t.TempDir(), "other")
			return errors.Join(os.WriteFile(other, whole, 0o600), os.Symlink(other, path))
		}, false},
		"a pipe":                {func(path string) error { return syscall.Mkfifo(path, 0o600) }, false},
		"a folder":              {func(path string) error { return os.Mkdir(path, 0o700) }, false},
		"ended just now":        {write(with(func(l *leftEvent) { l.Until = now.Add(-3 * time.Second) }), 0o600), true},
		"over":                  {write(with(func(l *leftEvent) { l.Until = now.Add(-time.Hour) }), 0o600), false},
		"of tomorrow":           {write(with(func(l *leftEvent) { l.Event.Start, l.Event.Trigger = now.Add(24*time.Hour), now.Add(24*time.Hour) }), 0o600), false},
		"for a year":            {write(with(func(l *leftEvent) { l.Until = now.AddDate(1, 0, 0) }), 0o600), false},
		"an id that is none":    {write(with(func(l *leftEvent) { l.Event.ID = "../x\n" }), 0o600), false},
		"a reason that is none": {write(with(func(l *leftEvent) { l.Event.Reason = "a\x1b[2J" }), 0o600), false},
		"a reason too long":     {write(with(func(l *leftEvent) { l.Last.Reason = strings.Repeat("a", 501) }), 0o600), false},
	} {
		t.Run(name, func(t *testing.T) {
			var log testenv.Log
			r := &recorder{o: RecordOptions{Key: "door", Out: filepath.Join(t.TempDir(), "%{key}-%s.mp4"), OnEvent: &EventOptions{}}, log: slog.New(slog.NewTextHandler(&log, nil))}
			var err error
			r.pattern, err = mux.ParsePattern(r.o.Out, r.o.Key)
			require.NoError(t, err)
			r.on.plan = trigger.NewPlan(trigger.PlanOptions{Post: time.Second})
			require.NoError(t, c.put(filepath.Join(filepath.Dir(r.o.Out), r.leftName())))
			r.takeOver()
			e := r.on.plan.Event()
			r.on.plan.Handle(trigger.Request{}, time.Now())
			require.True(t, r.claim(t.Context()))
			require.NotNil(t, r.on.note, "what counts for nothing is replaced; log: %s", log.String())
			defer r.release()
			r.remember()
			noted, err := readNote(filepath.Dir(r.o.Out), r.leftName())
			require.NoError(t, err)
			require.Equal(t, r.on.plan.Event().ID, noted.Event.ID)
			require.Equal(t, c.taken, e != nil, "%+v; log: %s", e, log.String())
			if c.taken {
				require.True(t, e.Continued)
				require.True(t, r.on.from.Equal(good.Event.Start))
				<-r.on.plan.Started()
			}
		})
	}
}

// A recorder that takes an event over and is killed before it has written anything of it, or whose file holds nothing yet, leaves it where it found it.
func TestEventLeftTwice(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	folder, now := t.TempDir(), time.Now()
	at := now.Add(-time.Minute)
	first := leftEvent{From: at, Saved: trigger.Saved{
		Event: trigger.Event{ID: "20260504T100009Z-k3x2ab", Trigger: now, Start: now.Add(-time.Hour)}, Until: now.Add(time.Minute), At: now,
	}}
	b, err := json.Marshal(first)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "empty.mp4"), nil, 0o600))
	for i, path := range []string{"", "empty.mp4", "gone.mp4"} {
		r := &recorder{o: RecordOptions{Key: "door", Out: filepath.Join(folder, "%{key}-%s.mp4"), OnEvent: &EventOptions{}}, log: slog.New(slog.DiscardHandler)}
		r.pattern, err = mux.ParsePattern(r.o.Out, r.o.Key)
		require.NoError(t, err)
		r.on.plan = trigger.NewPlan(trigger.PlanOptions{Post: time.Second})
		if i == 0 {
			require.NoError(t, os.WriteFile(filepath.Join(folder, r.leftName()), b, 0o600))
		}
		r.takeOver()
		require.True(t, r.claim(t.Context()))
		require.WithinDuration(t, at, r.on.from, 0, path)
		if path != "" { // its file begins a moment later
			at = at.Add(time.Second)
			r.on.path, r.on.written = filepath.Join(folder, path), at.UnixNano()
		}
		r.remember()
		noted, err := readNote(folder, r.leftName())
		require.NoError(t, err)
		require.Equal(t, path, noted.Path)
		require.WithinDuration(t, at, noted.From, 0, path)
		r.release()
	}
}
