package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

const (
	// maxLeft bounds the file that says what event is under way: two reasons of 500 bytes, each of which JSON may write as six, and a path.
	maxLeft = 16 << 10
	// leftTimeout bounds the look at the file that the event was written to.
	leftTimeout = 5 * time.Second
)

// leftEvent is what a recorder on events says of the one under way, for the recorder that is started after it was killed, stopped or replaced: in a
// file of the recordings' folder, which is gone when the event is over.
type leftEvent struct {
	trigger.Saved
	Path string `json:"path"` // of the event's newest file, below the folder; "" = there is none yet
}

// leftName is the name of that file. Recorders of a key with other patterns have others.
func (r *recorder) leftName() string {
	h := fnv.New32a()
	_, _ = io.WriteString(h, r.o.Out)
	return fmt.Sprintf(".%s.%08x.event", r.o.Key, h.Sum32())
}

// remember keeps the file as the event is. Where it cannot be written, recording goes on.
func (r *recorder) remember() {
	n := r.on.plan.Changes()
	if n == r.on.remembered && r.on.path == r.on.rememberedPath {
		return
	}
	r.on.remembered, r.on.rememberedPath = n, r.on.path
	s := r.on.plan.Save()
	if s == nil {
		r.forget()
		return
	}
	left := leftEvent{Saved: *s}
	dir := r.pattern.Files().Dir
	if rel, err := filepath.Rel(dir, r.on.path); err == nil && r.on.path != "" && s.Event.ID == r.on.now.ID {
		left.Path = rel
	}
	if err := writeLeft(dir, r.leftName(), left); err != nil {
		r.log.Warn("a recorder that is started again will not go on with this event", "event", s.Event.ID, "error", err)
	}
}

// writeLeft replaces the file in one step.
func writeLeft(dir, name string, left leftEvent) error {
	b, err := json.Marshal(left)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	part := name + ".part"
	if err := root.Remove(part); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = root.Rename(part, name)
	}
	if err != nil {
		_ = root.Remove(part)
	}
	return err
}

// forget removes the file.
func (r *recorder) forget() {
	if err := os.Remove(filepath.Join(r.pattern.Files().Dir, r.leftName())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("an event that is over stays noted", "error", err)
	}
}

// takeOver goes on with the event that the recorder before this one was recording.
func (r *recorder) takeOver(ctx context.Context) {
	root, err := os.OpenRoot(r.pattern.Files().Dir)
	if err != nil {
		return
	}
	defer root.Close()
	left, err := readLeft(root, r.leftName())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	going := false
	if err == nil {
		going, err = r.on.plan.Restore(left.Saved, time.Now())
	}
	if err != nil {
		r.log.Warn("what is noted of an event under way is not taken over", "file", filepath.Join(root.Name(), r.leftName()), "error", err)
		return
	}
	if !going {
		r.log.Info("an event ended while nothing recorded it", "event", left.Event.ID)
		r.forget()
		return
	}
	r.on.now = *r.on.plan.Event()
	r.on.from = r.leftEnd(ctx, root, left)
	r.log.Info("the event goes on that was recorded before", "event", r.on.now.ID, "reason", r.on.now.Reason, "from", r.on.from.Format(time.RFC3339Nano))
}

// readLeft reads the file. One that somebody else may have written is an error.
func readLeft(root *os.Root, name string) (left leftEvent, err error) {
	f, err := mux.OpenIn(root, name)
	if err != nil {
		return left, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return left, err
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return left, errors.New("it is no plain file")
	case !ok || sys.Uid != uint32(os.Geteuid()) || info.Mode().Perm()&0o022 != 0:
		return left, errors.New("others than this user may write it")
	case info.Size() > maxLeft:
		return left, fmt.Errorf("it has %d bytes: want %d at most", info.Size(), maxLeft)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxLeft))
	if err == nil {
		err = json.Unmarshal(b, &left)
	}
	return left, err
}

// leftEnd is how far an event is recorded: until the end of its newest file, else its start.
func (r *recorder) leftEnd(ctx context.Context, root *os.Root, left leftEvent) time.Time {
	start := left.Event.Start
	if left.Path == "" || !filepath.IsLocal(left.Path) || !r.pattern.Files().Match(filepath.Join(root.Name(), left.Path)) {
		return start
	}
	f, err := mux.OpenIn(root, left.Path)
	if err != nil {
		return start
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(ctx, leftTimeout)
	defer cancel()
	s, err := mux.Summarize(ctx, f)
	if err != nil || s.Key != r.o.Key || !s.Exact {
		return start
	}
	if end := s.Start.Add(s.End); end.After(start) && end.Before(time.Now()) {
		return end
	}
	return start
}
