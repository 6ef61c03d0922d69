// Package still hands the newest picture of a key from the process that publishes it to others of the same machine. Frames in GPU memory
// can be read by who has the GPU open, and opening it takes a new process a quarter of a second; the publisher has it open.
//
// It is spoken at the key's snapshot socket (framering.SnapshotPath), which is no part of the cuframes protocol. Connecting asks. The
// answer is a line of JSON of at most 4096 bytes,
//
//	{"format":0,"width":1920,"height":1080,"seq":4711,"pts_ns":1700000000000000000}
//	{"error":"…"}
//
// and, where it names a picture, its planes one after another without padding: as many bytes as format and size make, which each side
// works out for itself. format is framering.Format, pts_ns is in Unix ns. Then the publisher closes the connection.
package still

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/cfpipe/cfpipe/framering"
)

// Bounds of an answer: the peer is of this machine, and may be broken or hostile all the same.
const (
	maxHeader = 4096
	// maxPixels is above what any decoder gives (8192×8192 of 10 bit: 192 MiB).
	maxPixels = 256 << 20
)

// Picture is a picture in host memory.
type Picture struct {
	Format        framering.Format
	Width, Height int
	Seq           uint64 // of the frame
	PTS           int64  // Unix ns
	Pixels        []byte // plane after plane without padding
}

// Planes returns where the planes stand in Pixels.
func (p Picture) Planes() ([]framering.Plane, error) {
	m, err := framering.MetaOf(p.Format, p.Width, p.Height)
	if err != nil {
		return nil, err
	}
	planes, err := m.Planes()
	n := 0
	for i, q := range planes {
		planes[i] = framering.Plane{Offset: n, Pitch: q.Bytes, Bytes: q.Bytes, Lines: q.Lines}
		n += q.Bytes * q.Lines
	}
	return planes, err
}

// size is how many bytes Pixels has.
func (p Picture) size() (int, error) {
	planes, err := p.Planes()
	if err != nil {
		return 0, err
	}
	last := planes[len(planes)-1]
	n := last.Offset + last.Bytes*last.Lines
	if n > maxPixels {
		return 0, fmt.Errorf("%d bytes of pixels, more than %d", n, maxPixels)
	}
	return n, nil
}

// header is the line in front of the pixels.
type header struct {
	Format framering.Format `json:"format"`
	Width  int              `json:"width"`
	Height int              `json:"height"`
	Seq    uint64           `json:"seq"`
	PTS    int64            `json:"pts_ns"`
	Error  string           `json:"error,omitempty"`
}

// appendHeader appends the line of an answer; one with an error has no pixels behind it.
func appendHeader(b []byte, p Picture, err error) ([]byte, error) {
	var v any = header{Format: p.Format, Width: p.Width, Height: p.Height, Seq: p.Seq, PTS: p.PTS}
	if err != nil {
		text := err.Error()
		v = map[string]string{"error": text[:min(len(text), maxHeader/8)]} // a byte may become six
	}
	line, err := json.Marshal(v)
	if err != nil {
		return b, err
	}
	return append(append(b, line...), '\n'), nil
}

// errAnswer: what came is no answer.
var errAnswer = errors.New("bad answer")

// read reads an answer. Memory is taken for as many pixels as a picture of a sensible size has, whatever the line claims.
func read(r io.Reader) (Picture, error) {
	b := bufio.NewReaderSize(r, maxHeader)
	line, err := b.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return Picture{}, fmt.Errorf("%w: its first line has more than %d bytes", errAnswer, maxHeader)
	}
	if err != nil {
		return Picture{}, err
	}
	var h header
	if err := json.Unmarshal(line, &h); err != nil {
		return Picture{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	if h.Error != "" {
		return Picture{}, fmt.Errorf("the publisher says %q", h.Error)
	}
	p := Picture{Format: h.Format, Width: h.Width, Height: h.Height, Seq: h.Seq, PTS: h.PTS}
	n, err := p.size()
	if err != nil {
		return Picture{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	p.Pixels = make([]byte, n) // the kernel gives pages as they are filled
	if _, err := io.ReadFull(b, p.Pixels); err != nil {
		return Picture{}, err
	}
	return p, nil
}
