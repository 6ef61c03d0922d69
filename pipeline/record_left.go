package pipeline

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

const (
	// leftTimeout bounds the look at the file that the event was written to.
	leftTimeout = 5 * time.Second
	// tailGrace is how long ago an event may have ended whose recorder was killed before: the ring still holds the rest of it, if it is of any use.
	tailGrace = 10 * time.Second
	// standbyPace is how often a recorder whose event another one records looks whether that one has ended.
	standbyPace = 250 * time.Millisecond
	// strayGrace is how long the note of a recorder with another pattern must be nobody's: that one may be started again.
	strayGrace = 5 * time.Second
	// maxLinks bounds the links of a key in the runtime folder that are followed.
	maxLinks = 64
)

// noteID tells the recorders of a key with other patterns apart.
func (r *recorder) noteID() string {
	h := fnv.New32a()
	_, _ = io.WriteString(h, r.o.Out)
	return fmt.Sprintf("%08x", h.Sum32())
}

// leftName is the name of the note.
func (r *recorder) leftName() string { return "." + r.o.Key + "." + r.noteID() + ".event" }

// links is the pattern of what leads to the notes of a key in the runtime folder; id names one.
func (r *recorder) links(id string) string {
	return filepath.Join(framering.RuntimeDir(r.o.RuntimeDir), r.o.Key+"."+id+".left")
}

// takeOver makes the event that a recorder of this pattern was recording, or is, this one's too, where it has none. What is over is removed.
func (r *recorder) takeOver() {
	dir := r.pattern.Files().Dir
	file := slog.String("file", filepath.Join(dir, r.leftName()))
	n, err := openNote(dir, r.leftName(), false)
	if errors.Is(err, fs.ErrNotExist) || r.on.note != nil {
		return
	}
	var left leftEvent
	going := false
	if err == nil {
		defer n.close()
		left, err = n.read()
	}
	if err == nil {
		going, err = r.on.plan.Adopt(left.Saved, time.Now().Add(-tailGrace))
	}
	switch {
	case errors.Is(err, io.EOF): // one that has not been written yet
	case err != nil:
		r.log.Warn("what is noted of an event under way is not taken over", file, "error", err)
	case !going && n.hold() == nil:
		r.log.Info("an event ended while nothing recorded it", "event", left.Event.ID, file)
		n.link = r.links(r.noteID())
		_ = n.remove()
	}
}

// own makes the plan's event this recorder's alone. false = another one has it, see claim, or has left it and it begins elsewhere now. Where
// no note can be kept, every recorder records.
func (r *recorder) own(ctx context.Context) bool {
	if r.on.note != nil || r.on.noteless {
		return true
	}
	before := r.on.plan.Changes()
	n, err := r.openOwn()
	switch {
	case errors.Is(err, errNoteHeld):
		r.on.standby = true
		return false
	case err != nil:
		r.noNote(err)
		return true
	}
	return r.claimed(ctx, n, nil) && r.on.plan.Changes() == before
}

// claim waits while another recorder records the plan's event: what that one leaves goes on here. false = the event is no longer to be recorded.
func (r *recorder) claim(ctx context.Context) bool {
	r.on.standby = false
	var last *leftEvent // of the recorder that is waited for
	for {
		n, err := r.openOwn()
		if err == nil {
			return r.claimed(ctx, n, last)
		}
		if !errors.Is(err, errNoteHeld) {
			r.noNote(err)
			return true
		}
		if left, err := readNote(r.pattern.Files().Dir, r.leftName()); err == nil {
			if last == nil {
				r.log.Info("another recorder records the event; this one waits for its end", "event", left.Event.ID)
			}
			last = &left
		}
		pause(ctx, standbyPace)
		if end, known := r.on.plan.End(); known && time.Since(end) > wallSlack && r.on.plan.Event() != nil {
			_, _ = r.on.plan.Finish(time.Now()) // the other one has it; what follows is waited for again
			return false
		}
		if ctx.Err() != nil {
			r.on.plan.Abandon(time.Now())
			return false
		}
	}
}

// openOwn opens the note of this recorder. One that somebody else may have written counts for nothing.
func (r *recorder) openOwn() (*eventNote, error) {
	dir := r.pattern.Files().Dir
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	n, err := holdNote(dir, r.leftName(), true)
	if err == nil || errors.Is(err, errNoteHeld) {
		return n, err
	}
	file := filepath.Join(dir, r.leftName())
	if os.Remove(file) == nil {
		r.log.Warn("what is noted of an event under way is not taken over", "file", file, "error", err)
		n, err = holdNote(dir, r.leftName(), true)
	}
	return n, err
}

// claimed takes a note over, and what it says; last is what it said when another recorder had it.
func (r *recorder) claimed(ctx context.Context, n *eventNote, last *leftEvent) bool {
	r.on.note, r.on.remembered = n, 0
	left, err := n.read()
	if err == nil {
		var going bool
		if going, err = r.on.plan.Adopt(left.Saved, time.Now().Add(-tailGrace)); going {
			r.goOn(ctx, n.root, left)
			return !r.whole()
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		r.log.Warn("what is noted of an event under way is not taken over", "file", filepath.Join(n.root.Name(), n.name), "error", err)
		n.clear()
	}
	if last == nil {
		return true
	}
	// The other one has recorded its event to its end, which is this one's, unless this one was asked for more.
	if end, known := r.on.plan.End(); known && time.Until(end) < wallSlack {
		_, _ = r.on.plan.Finish(end)
		r.remember()
		return false
	}
	r.on.now, r.on.files, r.on.written, r.on.path = *r.on.plan.Event(), 0, 0, ""
	r.on.from = r.leftEnd(ctx, n.root, *last)
	return true
}

// goOn makes the adopted event the one that is recorded, from where it was left.
func (r *recorder) goOn(ctx context.Context, root *os.Root, left leftEvent) {
	r.on.now, r.on.files, r.on.written, r.on.path = *r.on.plan.Event(), 0, 0, ""
	r.on.from = r.leftEnd(ctx, root, left)
	r.log.Info("the event goes on that was recorded before", "event", r.on.now.ID, "reason", r.on.now.Reason, "from", r.on.from.Format(time.RFC3339Nano))
}

// whole ends the adopted event where it is recorded to its end: its recorder was killed before it could say so.
func (r *recorder) whole() bool {
	end, known := r.on.plan.End()
	if !known || end.After(time.Now()) || r.on.from.Before(end) {
		return false
	}
	_, _ = r.on.plan.Finish(end)
	r.remember()
	return true
}

// takeStrays looks at the notes that recorders of the key with another pattern have left: what is over is removed, what nobody has come back
// for since the last look is taken over.
func (r *recorder) takeStrays(ctx context.Context) {
	before := r.on.strays
	r.on.strays = map[string]bool{}
	own := r.pattern.Files().Dir
	paths := map[string]string{} // by path: the link that leads there
	for _, name := range notesIn(own, r.o.Key) {
		paths[filepath.Join(own, name)] = ""
	}
	links, _ := filepath.Glob(r.links("????????"))
	for _, link := range links[:min(len(links), maxLinks)] {
		if path, ok := r.follow(link); ok {
			paths[path] = link
		}
	}
	for path, link := range paths {
		dir, name := filepath.Split(path)
		if name == r.leftName() {
			continue
		}
		n, err := holdNote(dir, name, false)
		if errors.Is(err, fs.ErrNotExist) && link != "" {
			_ = os.Remove(link)
		}
		if err != nil {
			continue // it is held, or none of ours
		}
		n.link = link
		if r.takeStray(ctx, n, before[path]) {
			_ = n.remove()
			continue
		}
		r.on.strays[path] = true
		n.close()
	}
}

// follow returns where a link in the runtime folder leads that this user has made.
func (r *recorder) follow(link string) (path string, ok bool) {
	info, err := os.Lstat(link)
	if err != nil || info.Mode().Type() != fs.ModeSymlink {
		return "", false
	}
	if sys, ok := info.Sys().(*syscall.Stat_t); !ok || sys.Uid != uint32(os.Geteuid()) {
		return "", false
	}
	path, err = os.Readlink(link)
	return path, err == nil && filepath.IsAbs(path) && isNote(filepath.Base(path), r.o.Key)
}

// takeStray says whether a note that it holds may go: its event is over, or goes on here.
func (r *recorder) takeStray(ctx context.Context, n *eventNote, seen bool) bool {
	left, err := n.read()
	if errors.Is(err, io.EOF) {
		return seen // its recorder was killed before it wrote
	}
	if err != nil {
		return false
	}
	file := filepath.Join(n.root.Name(), n.name)
	going, err := r.scratch().Adopt(left.Saved, time.Now())
	switch {
	case err != nil:
		return false
	case !going:
		r.log.Info("an event ended while nothing recorded it", "event", left.Event.ID, "file", file)
		return true
	case !seen || r.on.plan.Event() != nil:
		return false
	}
	own, err := r.openOwn()
	if err != nil {
		return false // another recorder of this pattern has an event, or it cannot be written
	}
	if going, err := r.on.plan.Adopt(left.Saved, time.Now()); err != nil || !going {
		_ = own.remove()
		return false
	}
	r.on.note, r.on.remembered = own, 0
	r.goOn(ctx, n.root, left)
	r.remember() // before the other note goes
	return true
}

// scratch is a plan as this recorder's, without its event.
func (r *recorder) scratch() *trigger.Plan {
	return trigger.NewPlan(trigger.PlanOptions{Pre: r.o.Pre, Post: r.o.OnEvent.Post, Longest: r.o.OnEvent.Longest})
}

// remember keeps the note as the event is. Where it cannot be written, recording goes on.
func (r *recorder) remember() {
	n := r.on.plan.Changes()
	if n == r.on.remembered && r.on.path == r.on.rememberedPath {
		if err := r.on.note.sync(); err != nil {
			r.noNote(err)
		}
		return
	}
	fresh := r.on.remembered == 0 || r.on.path != r.on.rememberedPath
	if r.on.path != r.on.rememberedPath && r.on.written != 0 {
		r.on.from = time.Unix(0, r.on.written)
	}
	r.on.remembered, r.on.rememberedPath = n, r.on.path
	s := r.on.plan.Save()
	if s == nil {
		r.forget()
		return
	}
	if r.on.note == nil {
		return
	}
	left := leftEvent{Saved: *s}
	same := s.Event.ID == r.on.now.ID
	if same {
		left.From = r.on.from
	}
	if rel, err := filepath.Rel(r.on.note.root.Name(), r.on.path); err == nil && r.on.path != "" && same {
		left.Path = rel
	}
	r.on.note.lead(r.links(r.noteID()))
	if err := r.on.note.write(left, fresh || !same); err != nil {
		r.noNote(err)
	}
}

// noNote tells that a recorder that comes after this one will not know of the event, once as long as that is so.
func (r *recorder) noNote(err error) {
	if !r.on.noteless {
		r.log.Warn("a recorder that is started again will not go on with this event, and one beside this one records it too", "error", err)
	}
	r.on.noteless = true
}

// forget removes the note.
func (r *recorder) forget() {
	r.on.noteless = false
	if r.on.note == nil {
		return
	}
	if err := r.on.note.remove(); err != nil {
		r.log.Warn("an event that is over stays noted", "error", err)
	}
	r.on.note = nil
}

// release gives up the note of an event that another recorder may go on with.
func (r *recorder) release() {
	r.on.note.close()
	r.on.note = nil
}

// leftEnd is how far an event is recorded: until the end of its newest file; where that holds nothing yet, or is not there yet, until where it begins.
func (r *recorder) leftEnd(ctx context.Context, root *os.Root, left leftEvent) time.Time {
	start := left.Event.Start
	if left.From.After(start) && time.Until(left.From) < wallSlack {
		start = left.From
	}
	if left.Path == "" || !filepath.IsLocal(left.Path) {
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
	if end := s.Start.Add(s.End); end.After(start) && time.Until(end) < wallSlack {
		return end
	}
	return start
}
