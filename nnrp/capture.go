package nnrp

import (
	"errors"
	"fmt"
	"io"
)

// CaptureReader reads messages one after another from captured bytes.
type CaptureReader struct {
	r      io.Reader
	limits Limits
	offset int64 // of the next message
	buf    []byte
}

// Captured is one message of a capture; Wire and what Message refers to are valid until the next call.
type Captured struct {
	Offset  int64
	Header  Header
	Message Message
	Wire    []byte
}

// NewCaptureReader reads from r. Limits that are 0 are as wide as the wire allows, except for control messages (MaxControlBody).
func NewCaptureReader(r io.Reader, l Limits) *CaptureReader {
	if l.MaxBody == 0 {
		l.MaxBody = 1<<32 - 1
	}
	if l.MaxSections == 0 {
		l.MaxSections = 65535
	}
	return &CaptureReader{r: r, limits: l}
}

// Next returns the next message, or io.EOF behind the last one. A malformed message is an *Error whose Offset counts from the beginning
// of the capture; one that is cut short is malformed_header or malformed_body at the end of the bytes.
func (c *CaptureReader) Next() (*Captured, error) {
	c.buf = c.buf[:0]
	if err := c.fill(HeaderLen); err != nil {
		if err == io.EOF && len(c.buf) == 0 { //nolint:errorlint // from fill
			return nil, io.EOF
		}
		if _, perr := ParseHeader(c.buf); err == io.EOF && errors.Is(perr, ErrShort) { //nolint:errorlint // from fill
			perr = NewError(CodeMalformedHeader, "the bytes end inside a header")
			perr.(*Error).Offset = int64(len(c.buf)) //nolint:errorlint // made above
			return nil, c.blame(perr)
		} else if err == io.EOF { //nolint:errorlint // from fill
			return nil, c.blame(perr)
		}
		return nil, err
	}
	h, err := ParseHeader(c.buf)
	if err == nil {
		err = h.Check(&c.limits)
	}
	if err != nil {
		return nil, c.blame(err)
	}
	switch err := c.fill(h.Size()); {
	case err == io.EOF: //nolint:errorlint // from fill
		return nil, c.blame(malformedBody(h.Type, len(c.buf), "the bytes end inside the message, which has %d", h.Size()))
	case err != nil:
		return nil, err
	}
	_, m, _, err := ParseMessage(c.buf, &c.limits)
	if err != nil {
		return nil, c.blame(err)
	}
	got := &Captured{Offset: c.offset, Header: h, Message: m, Wire: c.buf}
	c.offset += h.Size()
	return got, nil
}

func (c *CaptureReader) blame(err error) error {
	var e *Error
	if errors.As(err, &e) {
		e.Offset += c.offset
	}
	return err
}

// fill reads until buf has n bytes; io.EOF: there are fewer. Memory grows with what is there, not with what a header says.
func (c *CaptureReader) fill(n int64) error {
	for int64(len(c.buf)) < n {
		if len(c.buf) == cap(c.buf) {
			c.buf = append(c.buf, make([]byte, min(n-int64(len(c.buf)), max(64<<10, int64(len(c.buf)))))...)[:len(c.buf)]
		}
		room := min(n, int64(cap(c.buf)))
		k, err := c.r.Read(c.buf[len(c.buf):room])
		c.buf = c.buf[:len(c.buf)+k]
		if errors.Is(err, io.EOF) {
			if int64(len(c.buf)) < n {
				return io.EOF
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("nnrp: read capture: %w", err)
		}
	}
	return nil
}
