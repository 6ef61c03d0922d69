package mux

import (
	"io"
	"os"
	"time"
)

// Fsync says when a recording is forced to the disk.
type Fsync string

// The policies.
const (
	FsyncNever    Fsync = "never"    // the kernel writes back when it sees fit (about 30 s): a loss of power costs that much
	FsyncSegment  Fsync = "segment"  // when a file is finished
	FsyncFragment Fsync = "fragment" // after every fragment: a loss of power costs the fragment in flight
)

// File is what a segment is written into; *os.File is one.
type File interface {
	io.Writer
	io.Seeker
	io.Closer
	Sync() error
	Truncate(size int64) error
	Stat() (os.FileInfo, error)
	Name() string
}

// Segment describes a finished file.
type Segment struct {
	Path          string
	Start, End    time.Time // of the pictures in it
	Packets       int       // access units of video
	AudioPackets  int
	Keyframes     int
	Lost          uint64 // packets lost in front of this file and in it: the ring had moved on, or the disk did not take them
	Bytes         int64
	Discontinuous bool   // there is a gap between the file before and this one
	Cause         string // why the recording began; see SegmenterOptions
	Video, Audio  uint32 // their codecs; Audio is 0 for a file without
	Width, Height int    // of the pictures; 0 = not known
	Err           error  // why the file ended early; nil for a file that is complete
}

// Duration is the time the pictures last.
func (s *Segment) Duration() time.Duration { return s.End.Sub(s.Start) }

// WriteError says that a recording could not be written; the Segmenter tries again by itself after Retry.
type WriteError struct {
	Err   error
	Retry time.Duration
}

func (e *WriteError) Error() string { return e.Err.Error() }
func (e *WriteError) Unwrap() error { return e.Err }
