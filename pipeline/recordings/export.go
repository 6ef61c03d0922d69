package recordings

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/mux"
)

const (
	// maxStep bounds the interval of two access units that is taken for their rate.
	maxStep = time.Second
	// remembered is how many of the newest access units are compared where two files overlap: reordering spans 16 at the most.
	remembered = 64
	// lateAudio is how far sound may stand behind the pictures of its time in a file.
	lateAudio = time.Second
)

// ErrNothing says that nothing is recorded in a span. It Is os.ErrNotExist.
var ErrNothing = fmt.Errorf("nothing is recorded: %w", os.ErrNotExist)

// ChangeError says that the pictures become others in the middle of a span: one file cannot hold both.
type ChangeError struct {
	At            time.Time
	Before, After string
}

func (e *ChangeError) Error() string {
	at := e.At.Format(time.RFC3339Nano)
	return fmt.Sprintf("at %s the pictures change from %s to %s, and one file cannot hold both: export the part until %s, and the part from there", at, e.Before,
		e.After, at)
}

// ExportOptions describe an export. Files, To and Out must be set.
type ExportOptions struct {
	Files    []File // of one key, as List returns them
	From, To time.Time
	Format   mux.Format // "" = fmp4
	NoAudio  bool
	Out      io.Writer // an io.Seeker too when Seek is set
	Seek     bool
	Progress func(done float64) // 0 to 1, as often as there are access units; may be nil
	Logger   *slog.Logger       // nil = silent
}

// Exported is what an export wrote.
type Exported struct {
	Start        time.Time `json:"start"` // of the first picture
	End          time.Time `json:"end"`
	Packets      int       `json:"packets"`
	AudioPackets int       `json:"audio_packets"`
	Keyframes    int       `json:"keyframes"`
	Gaps         []Gap     `json:"gaps"` // of the span asked for, its ends included; time goes on in the file
	Files        int       `json:"files"`
}

// Export joins what is recorded in a span into one stream. Nothing is decoded. It begins with the last keyframe at or before From, or with the
// first one after it where nothing is recorded then, and ends in front of To. Where files overlap, every access unit is taken once; where they hold
// different ones of the same time, as those of a camera that was connected again, the later file is taken from its newest keyframe in the overlap on.
// Times are those of the recording: a gap is a gap in the output.
//
// It returns ErrNothing when there is nothing in the span, a *ChangeError when the codec or the size of the pictures changes in it.
func Export(ctx context.Context, o ExportOptions) (Exported, error) {
	e := &exporter{o: o, done: Exported{Gaps: []Gap{}}, ctx: ctx, log: o.Logger, seed: maphash.MakeSeed()}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if e.o.Format == "" {
		e.o.Format = mux.FMP4
	}
	files := slices.DeleteFunc(slices.Clone(o.Files), func(f File) bool {
		q := Query{From: o.From, To: o.To}
		return !q.matches(&f) || f.Open && f.Video == 0 // its recorder has just begun it: there is nothing in it yet
	})
	if len(files) == 0 {
		return e.done, ErrNothing
	}
	slices.SortStableFunc(files, func(a, b File) int { return a.Start.Compare(b.Start) })
	for _, f := range files[1:] { // known before anything is written
		if err := sameVideo(files[0], f, f.Start); err != nil && f.Video != 0 && files[0].Video != 0 {
			return e.done, err
		}
	}
	e.to = o.To.UnixNano()
	defer func() {
		if e.w != nil {
			e.w.Close()
		}
	}()
	e.chooseAudio(files)
	for i, f := range files {
		if e.over || e.packets() && f.End.UnixNano() <= e.last.dts {
			continue // it adds nothing
		}
		e.until = e.to
		if at := e.leaves(f, files[i+1:]); at != 0 {
			e.until = min(at, e.to)
		}
		if err := e.file(f); err != nil {
			return e.done, err
		}
	}
	if e.w == nil {
		return e.done, ErrNothing
	}
	end, err := e.w.Finish(0)
	if err != nil {
		return e.done, err
	}
	e.done.End = time.Unix(0, max(end, e.shown)).UTC()
	e.missing(files)
	return e.done, nil
}

// exporter is an export at work.
type exporter struct {
	o     ExportOptions
	ctx   context.Context
	log   *slog.Logger
	w     *mux.Writer
	to    int64
	over  bool  // nothing follows
	until int64 // where the file that is read is left
	done  Exported

	first       File // whose pictures the output has
	audio       *media.Track
	begin       int64 // PTS of the first picture
	last        unit  // the newest access unit of video
	step        int64 // from the one before it
	shown       int64 // the latest end of a picture
	recent      [remembered]unit
	lastAudio   int64
	audioStep   int64
	seed        maphash.Seed
	toldOfSound bool
}

// unit is an access unit that was written.
type unit struct {
	pts, dts int64
	sum      uint64
}

func (e *exporter) packets() bool { return e.done.Packets > 0 }

// sameVideo says what is different about the pictures of b.
func sameVideo(a, b File, at time.Time) error {
	if a.Video == b.Video && (a.Width == b.Width && a.Height == b.Height || a.Width == 0 || b.Width == 0) {
		return nil
	}
	name := func(f File) string { return fmt.Sprintf("%s %dx%d", media.CodecName(f.Video), f.Width, f.Height) }
	return &ChangeError{At: at, Before: name(a), After: name(b)}
}

// chooseAudio takes the sound of the first file that has some which the format holds.
func (e *exporter) chooseAudio(files []File) {
	if e.o.NoAudio {
		return
	}
	for _, f := range files {
		if f.Audio == 0 {
			continue
		}
		if err := mux.HoldsAudio(e.o.Format, f.Audio); err != nil {
			e.log.Warn("exporting without sound", "reason", err)
			return
		}
		s, err := e.open(f)
		if err != nil {
			continue
		}
		for range 1000 { // a second of pictures at the most lies in front of the first sound
			track, _, err := s.Next()
			if err != nil {
				break
			}
			if track == mux.AudioTrack {
				e.audio = s.Audio()
				break
			}
		}
		s.Close()
		if e.audio != nil {
			return
		}
	}
}

// file writes what a file adds.
func (e *exporter) file(f File) error {
	s, err := e.open(f)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, mux.ErrNoRecording) { // retention was faster
		e.log.Warn("a file is gone", "path", f.Path)
		return nil
	}
	if err != nil {
		if e.ctx.Err() != nil {
			return e.ctx.Err()
		}
		e.log.Warn("a file cannot be read and is left out", "path", f.Path, "error", err)
		return nil
	}
	defer s.Close()
	f.Video = s.Video().CodecID
	f.Width, f.Height = s.VideoSize()
	if e.w != nil {
		if err := sameVideo(e.first, f, f.Start); err != nil {
			return err
		}
	} else {
		e.first = f
		if f.Start.Before(e.o.From) {
			if err := s.SeekKey(e.o.From); err != nil {
				return err
			}
		}
	}
	j := joint{}
	withAudio := e.audio != nil && e.sameAudio(s.Audio())
	for {
		track, p, err := s.Next()
		switch {
		case e.ctx.Err() != nil:
			return e.ctx.Err()
		case errors.Is(err, io.EOF):
			if j.took {
				e.done.Files++
			}
			return nil
		case err != nil:
			e.log.Warn("the rest of a file cannot be read", "path", f.Path, "error", err)
			return nil
		case track == mux.VideoTrack:
			if p.DTS >= e.until {
				e.over = e.until == e.to
				if !withAudio || p.DTS >= e.until+int64(lateAudio) {
					if j.took {
						e.done.Files++
					}
					return nil
				}
				continue
			}
			err = e.video(&j, s, p)
		case withAudio && e.w != nil:
			err = e.sound(&j, p)
		}
		if err != nil {
			return err
		}
	}
}

func (e *exporter) sameAudio(t *media.Track) bool {
	if t == nil {
		return false
	}
	if t.CodecID == e.audio.CodecID && (len(t.Extradata) == 0 || string(t.Extradata) == string(e.audio.Extradata)) {
		return true
	}
	if !e.toldOfSound {
		e.toldOfSound = true
		e.log.Warn("the sound changes: from there on the export has none", "before", media.CodecName(e.audio.CodecID), "after", media.CodecName(t.CodecID))
	}
	return false
}

// joint is where a file meets what was written before it.
type joint struct {
	met       bool // an access unit of it was in the output already
	took      bool // one was added
	tookAudio bool
}

// video adds an access unit, unless it is in the output already.
func (e *exporter) video(j *joint, s *source, p media.Packet) error {
	key := p.Flags&media.FlagKey != 0
	sum := maphash.Bytes(e.seed, p.Data)
	if e.packets() && !j.took {
		zone := max(4*e.step, int64(20*time.Millisecond))
		switch {
		case p.DTS < e.last.dts-zone:
			return nil
		case p.DTS <= e.last.dts+zone && e.has(p.PTS, sum):
			j.met = true
			return nil
		case p.DTS <= e.last.dts: // decoding order does not go back
			return nil
		case !j.met && !key:
			return nil
		}
	}
	if e.w == nil {
		if !key {
			return nil
		}
		w, err := mux.NewWriter(mux.WriterOptions{
			Format: e.o.Format, Video: s.Video(), Audio: e.audio, Key: p.Data, Out: e.o.Out, Seek: e.o.Seek, Start: p.DTS, Title: e.first.Key,
		})
		if err != nil {
			return err
		}
		e.w, e.begin = w, p.PTS
		e.done.Start = time.Unix(0, p.PTS).UTC()
	} else if gap := p.DTS - e.last.dts; !j.took && !j.met && gap-e.step > int64(smallestGap) {
		e.done.Gaps = append(e.done.Gaps, Gap{From: time.Unix(0, e.shown).UTC(), To: time.Unix(0, p.PTS).UTC()})
	}
	if d := p.DTS - e.last.dts; e.packets() && d > 0 && d <= int64(maxStep) {
		e.step = d
	}
	if err := e.w.Write(mux.VideoTrack, p); err != nil {
		return err
	}
	e.last = unit{p.PTS, p.DTS, sum}
	e.recent[e.done.Packets%remembered] = e.last
	e.shown = max(e.shown, p.PTS+e.step)
	e.done.Packets++
	if key {
		e.done.Keyframes++
	}
	j.took = true
	if e.o.Progress != nil {
		from := max(e.begin, e.o.From.UnixNano())
		e.o.Progress(min(max(float64(p.PTS-from)/float64(max(e.to-from, 1)), 0), 1))
	}
	return nil
}

// has says whether an access unit was written already: the same bytes, shown at the same time but for the ticks of containers.
func (e *exporter) has(pts int64, sum uint64) bool {
	near := max(e.step/2, int64(3*time.Millisecond))
	for _, u := range e.recent[:min(e.done.Packets, remembered)] {
		if d := u.pts - pts; u.sum == sum && d < near && d > -near {
			return true
		}
	}
	return false
}

// sound adds a packet of audio, unless its time is in the output already.
func (e *exporter) sound(j *joint, p media.Packet) error {
	if p.PTS < e.begin || p.PTS >= e.until {
		return nil
	}
	if !j.tookAudio && e.lastAudio != 0 && p.PTS <= e.lastAudio+e.audioStep/2 {
		return nil
	}
	if err := e.w.Write(mux.AudioTrack, p); err != nil {
		return err
	}
	if d := p.PTS - e.lastAudio; e.lastAudio != 0 && d > 0 && d <= int64(maxStep) {
		e.audioStep = d
	}
	e.lastAudio = p.PTS
	e.done.AudioPackets++
	j.tookAudio = true
	return nil
}
