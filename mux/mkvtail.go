package mux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/cfpipe/cfpipe/internal/av"
)

const (
	// leastTail is read at first from the end of a Matroska file: 2 s of 1 Mbit/s.
	leastTail = 256 << 10
	// mostTail is the most: a cluster has 5 MB and as much as one picture more.
	mostTail = 16 << 20
	// maxMkvHead bounds the elements in front of the first cluster.
	maxMkvHead = 64
)

// mkvTail returns when the newest picture of a Matroska file ends that does not say so itself: it is being written, or was cut off. The clusters
// between its first and its last ones are left out; false = that cannot be done.
func mkvTail(ctx context.Context, r io.ReaderAt, size int64) (end time.Duration, ok bool) {
	head := firstCluster(r, size)
	for n := int64(leastTail); head > 0 && n <= mostTail && n < size-head; n *= 4 {
		b := make([]byte, n)
		if _, err := r.ReadAt(b, size-n); err != nil {
			return 0, false
		}
		at := wholeCluster(b)
		if at < 0 {
			continue
		}
		in, err := av.OpenFile(ctx, io.NewSectionReader(&cutOut{r, head, size - n + int64(at)}, 0, head+n-int64(at)), nil)
		if err != nil {
			continue // a cluster that has hardly begun
		}
		end, ok, err = lastPicture(in)
		in.Close()
		if err != nil || ok {
			return end, ok && err == nil
		}
	}
	return 0, false
}

// cutOut is a file without the bytes from one place to another.
type cutOut struct {
	io.ReaderAt
	from, to int64
}

func (c *cutOut) ReadAt(b []byte, at int64) (n int, err error) {
	if at < c.from {
		n, err = c.ReaderAt.ReadAt(b[:min(int64(len(b)), c.from-at)], at)
		if err != nil && !errors.Is(err, io.EOF) || n == len(b) {
			return n, err
		}
	}
	m, err := c.ReaderAt.ReadAt(b[n:], at+int64(n)-c.from+c.to)
	return n + m, err
}

// firstCluster returns where the first cluster begins; 0 = it is not found.
func firstCluster(r io.ReaderAt, size int64) int64 {
	var b [16]byte
	at := int64(0)
	for range maxMkvHead {
		n, err := r.ReadAt(b[:], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0
		}
		id, length, skip := element(b[:n])
		switch {
		case id == mkvCluster && at > 0:
			return at
		case id == mkvSegment:
			at += int64(skip)
		case skip == 0 || (at == 0) != (id == mkvHead) || length < 0 || length > size-at:
			return 0
		default:
			at += int64(skip) + length
		}
	}
	return 0
}

// wholeCluster finds the first cluster in the end of a file from which on there is nothing but clusters, the last of which may be cut off; -1 = there
// is none. It goes through b once, whatever stands there.
func wholeCluster(b []byte) int {
	for from := 0; ; {
		i := bytes.Index(b[from:], binary.BigEndian.AppendUint32(nil, mkvCluster))
		if i < 0 {
			return -1
		}
		n := clusters(b[from+i:])
		if from+i+n >= len(b) {
			return from + i
		}
		from += i + max(n, 1)
	}
}

// clusters returns how many bytes b begins with that are clusters.
func clusters(b []byte) (n int) {
	for n < len(b) {
		id, length, skip := element(b[n:])
		if id != mkvCluster {
			return n
		}
		body := b[n+skip:]
		if id, length, skip := element(body); id == mkvCRC && length == 4 {
			body = body[min(skip+4, len(body)):]
		}
		if id, _, _ := element(body); id != mkvTimestamp {
			return n
		}
		if length < 0 || length > int64(len(b)-n-skip) { // it goes on to the end
			return len(b)
		}
		n += skip + int(length)
	}
	return n
}
