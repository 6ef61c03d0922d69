package mux

import (
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

const (
	// maxGap is the step of time without a mark that still counts as pictures not sent; above it the clock has jumped.
	maxGap = 10 * time.Second
	// maxLateAudio is how far audio may lie in front of the file it arrives in, when the file before is finished already.
	maxLateAudio = time.Second
	// The pause between two attempts to open a file after a failure.
	minRetry, maxRetry = time.Second, 15 * time.Second
)

// SegmenterOptions describe a Segmenter.
type SegmenterOptions struct {
	Format  Format
	Title   string        // the key, which the files say of themselves; "" = nothing
	Cause   string        // why the recording began, which they say too; "" = nothing
	Length  time.Duration // of a file; 0 = one file
	Fsync   Fsync         // "" = FsyncNever
	Create  func(start time.Time) (File, error)
	Started func(path string, start time.Time) // a file was opened; may be nil
	Done    func(Segment)                      // a file is finished and closed; may be nil
}

// Segmenter cuts a stream into files at keyframes, by the clock of the packets. A new file begins at the first keyframe after
// its time has come, after a gap, and where size or codec change. Not safe for concurrent use.
type Segmenter struct {
	o     SegmenterOptions
	video media.Track
	audio *media.Track

	w       *Writer
	f       File
	seg     Segment
	format  bitstream.Format
	good    int64 // bytes of the file that can be played
	packets int   // access units in them
	newest  int64 // PTS of the last of these
	written int64 // PTS of the newest access unit handed to the file
	begin   int64 // DTS of its first packet
	maxPTS  int64
	target  int64 // time of the next cut
	follows bool  // the file begins where the one before ended
	cut     bool  // begin a new file at the next keyframe
	gap     bool  // ... and say that there was a gap

	last      [2]int64 // DTS of each track's newest packet
	seen      [2]bool
	lost      uint64
	totals    Totals
	wanted    bool // a file should have been opened before
	recording bool // a file was opened before
	retry     time.Duration
	retryAt   time.Time
}

// NewSegmenter returns a Segmenter for a video track and, where audio is not nil, audio beside it. The first file is opened by
// the first keyframe.
func NewSegmenter(o SegmenterOptions, video media.Track, audio *media.Track) *Segmenter {
	return &Segmenter{o: o, video: video, audio: audio}
}

// SetTracks replaces the tracks; a change takes effect with the next keyframe, in a new file.
func (s *Segmenter) SetTracks(video media.Track, audio *media.Track) {
	if video.CodecID != s.video.CodecID || (audio == nil) != (s.audio == nil) ||
		audio != nil && (audio.CodecID != s.audio.CodecID || string(audio.Extradata) != string(s.audio.Extradata)) {
		s.cut = true
	}
	s.video, s.audio = video, audio
}

// Lost adds packets that were lost before they came here.
func (s *Segmenter) Lost(n uint64) { s.lost += n }

// Kept returns how many bytes of the open file can be played and stay there; 0 when no file is open.
func (s *Segmenter) Kept() int64 {
	if s.w == nil {
		return 0
	}
	return s.good
}

// Open says whether a file is open, which has what the last Write took.
func (s *Segmenter) Open() bool { return s.w != nil }

// Write takes the next packet of a track, in decoding order. A file that cannot be opened or written gives an error once; after
// a pause the next keyframe tries again, and what comes in between is counted as lost. ErrNoSize says that a file cannot begin
// with this keyframe; it is waited for the next one. ErrCannotHold says that no file of this format will do.
func (s *Segmenter) Write(track int, p media.Packet) error {
	if track == AudioTrack {
		return s.writeAudio(p)
	}
	key := p.Flags&media.FlagKey != 0
	marked := p.Flags&media.FlagDiscontinuity != 0
	jumped := s.seen[VideoTrack] && (p.DTS < s.last[VideoTrack]-int64(time.Second) || p.DTS > s.last[VideoTrack]+int64(maxGap))
	s.last[VideoTrack], s.seen[VideoTrack] = p.DTS, true
	if marked || jumped {
		s.cut, s.gap = true, true
	}
	if s.w != nil && (jumped || marked && key) {
		if err := s.finish(0, 0); err != nil {
			s.drop(1)
			return err
		}
	}
	if key {
		if err := s.keyframe(p); err != nil {
			s.drop(1)
			return err
		}
	}
	if s.w == nil {
		if s.wanted { // in front of the first keyframe nothing is missing
			s.drop(1)
		}
		return nil
	}
	if err := s.w.Write(VideoTrack, p); err != nil {
		s.drop(1)
		return s.fail(err)
	}
	s.seg.Packets++
	s.newest, s.written = s.written, p.PTS
	if key {
		s.seg.Keyframes++
	}
	s.maxPTS = max(s.maxPTS, p.PTS)
	return nil
}

// cutTolerance lets a keyframe that comes a moment early still begin the new file: the clock of a camera is steered.
func (s *Segmenter) cutTolerance() int64 { return int64(min(s.o.Length/20, 100*time.Millisecond)) }

// keyframe begins a new file where one is due.
func (s *Segmenter) keyframe(p media.Packet) error {
	s.wanted = true
	format, _, err := videoFormat(s.video, p.Data)
	if err != nil {
		if s.w != nil { // the file goes on as it began
			return nil
		}
		return fmt.Errorf("begin recording: %w", err)
	}
	due := s.o.Length > 0 && p.PTS >= s.target-s.cutTolerance()
	if s.w != nil {
		if !due && !s.cut && format == s.format {
			return nil
		}
		if err := s.finish(p.DTS, p.PTS); err != nil {
			return err
		}
	}
	if time.Now().Before(s.retryAt) {
		return nil
	}
	return s.open(p, format)
}

func (s *Segmenter) open(p media.Packet, format bitstream.Format) error {
	if err := HoldsVideo(s.o.Format, s.video.CodecID); err != nil { // before there is a file: it is no failure of the disk, and stays
		return fmt.Errorf("begin recording: %w", err)
	}
	start := time.Unix(0, p.PTS)
	f, err := s.o.Create(start)
	if err != nil {
		return s.failed(err)
	}
	s.f, s.good, s.packets, s.newest, s.written = f, 0, 0, 0, 0
	s.seg = Segment{}
	s.w, err = NewWriter(WriterOptions{
		Format: s.o.Format, Video: s.video, Audio: s.audio, Key: p.Data, Out: f, Seek: true, Start: p.DTS, Discontinuous: s.gap,
		Title: s.o.Title, Cause: s.o.Cause, OnFlush: s.flushed,
	})
	if err != nil {
		return s.fail(err)
	}
	s.seg = Segment{
		Path: f.Name(), Start: start, Discontinuous: s.gap && s.recording, Lost: s.lost, Cause: s.o.Cause, Video: s.video.CodecID,
		Width: format.Width, Height: format.Height,
	}
	if s.audio != nil {
		s.seg.Audio = s.audio.CodecID
	}
	if s.gap || !s.recording {
		s.target = p.PTS
	}
	s.follows = s.recording && !s.gap
	if s.o.Length > 0 {
		for s.target <= p.PTS+s.cutTolerance() {
			s.target += int64(s.o.Length)
		}
	}
	s.format, s.begin, s.maxPTS = format, p.DTS, p.PTS
	s.cut, s.gap, s.recording, s.lost, s.retry = false, false, true, 0, 0
	s.seen[AudioTrack] = false
	if s.o.Started != nil {
		s.o.Started(s.seg.Path, start)
	}
	return nil
}

func (s *Segmenter) writeAudio(p media.Packet) error {
	if s.w == nil || s.audio == nil || s.w.o.Audio == nil {
		return nil
	}
	from := s.seg.Start.UnixNano() // the first file begins with its first picture
	if s.follows {
		from = s.begin - int64(maxLateAudio)
	}
	newest := s.last[VideoTrack]
	if s.seen[AudioTrack] {
		newest = max(newest, s.last[AudioTrack])
	}
	if p.PTS < from || p.PTS > newest+int64(maxGap) { // the audio's clock jumped and the video's did not yet
		return nil
	}
	p.PTS = max(p.PTS, s.begin)
	p.DTS = p.PTS
	if s.w.behind(AudioTrack, p.DTS) {
		return nil
	}
	if err := s.w.Write(AudioTrack, p); err != nil {
		return s.fail(err)
	}
	s.last[AudioTrack], s.seen[AudioTrack] = p.DTS, true
	s.seg.AudioPackets++
	return nil
}

// flushed runs when all bytes up to a point that can be played are in the file.
func (s *Segmenter) flushed() error {
	n, err := s.f.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if deleted(s.f) {
		return fmt.Errorf("write %s: it was deleted while it was written: %w", s.f.Name(), os.ErrNotExist)
	}
	first := s.good == 0
	if s.o.Fsync == FsyncFragment {
		if err := s.f.Sync(); err != nil {
			return err
		}
		if first {
			if err := syncDir(s.f.Name()); err != nil {
				return err
			}
		}
	}
	s.good = n
	s.keep(s.seg.Packets-1, s.newest) // the newest waits for its duration
	return nil
}

// deleted says whether the name of an open file leads to it no more and no other does: what is written into it goes with its
// descriptor. File systems that count no links are asked by name.
func deleted(f File) bool {
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || sys.Nlink > 0 {
		return false
	}
	named, err := os.Lstat(f.Name())
	return err != nil || !os.SameFile(st, named)
}

// Close finishes the open file.
func (s *Segmenter) Close() error {
	if s.w == nil {
		return nil
	}
	return s.finish(0, 0)
}

// finish completes the open file. nextDTS and nextPTS are the times of the keyframe that follows at once, or 0.
func (s *Segmenter) finish(nextDTS, nextPTS int64) error {
	s.w.Tell(Counts{Packets: s.seg.Packets, Keyframes: s.seg.Keyframes, Lost: int64(s.seg.Lost + s.lost)})
	end, err := s.w.Finish(nextDTS)
	if err != nil {
		return s.fail(err)
	}
	if s.o.Fsync == FsyncSegment || s.o.Fsync == FsyncFragment {
		if err := s.f.Sync(); err != nil {
			return s.fail(err)
		}
		if err := syncDir(s.f.Name()); err != nil {
			return s.fail(err)
		}
	}
	s.seg.End = time.Unix(0, s.maxPTS+end-s.w.track[VideoTrack].last)
	if nextPTS > s.maxPTS {
		s.seg.End = time.Unix(0, nextPTS)
	}
	s.keep(s.seg.Packets, s.maxPTS)
	s.seg.Bytes = s.good
	s.seg.Lost += s.lost
	s.lost = 0
	s.w = nil
	err = s.f.Close()
	s.f = nil
	if s.o.Done != nil {
		s.o.Done(s.seg)
	}
	if err != nil {
		return s.failed(err)
	}
	return nil
}

// fail ends the open file after an error: what was written behind the last whole fragment is cut off, an empty file removed.
func (s *Segmenter) fail(cause error) error {
	s.seg.End = time.Unix(0, s.maxPTS)
	s.w.closeIfOpen()
	s.w = nil
	s.drop(max(s.seg.Packets-s.packets, 0))
	if s.f != nil {
		name := s.f.Name()
		gone := deleted(s.f)
		if gone {
			s.lost += uint64(s.packets)
			s.packets = 0
		}
		if s.good > 0 {
			_ = s.f.Truncate(s.good) // the file plays with a torn end too
		}
		s.f.Close()
		s.f = nil
		if s.good == 0 {
			if !gone { // else the name is another's
				_ = os.Remove(name)
			}
			s.lost += s.seg.Lost // they stand in front of the next file now
		} else if s.o.Done != nil {
			s.seg.Packets, s.seg.Bytes, s.seg.Err = s.packets, s.good, cause
			s.o.Done(s.seg)
		}
	}
	s.cut, s.gap = true, true
	return s.failed(cause)
}

// failed sets the pause before the next attempt.
func (s *Segmenter) failed(cause error) error {
	s.retry = min(max(2*s.retry, minRetry), maxRetry)
	s.retryAt = time.Now().Add(s.retry)
	return &WriteError{Err: cause, Retry: s.retry}
}
