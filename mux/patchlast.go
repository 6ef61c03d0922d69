package mux

import "io"

// patchLast is an output whose beginning is changed when all else is in it. The muxer makes an ordinary MP4 of a fragmented one by a box
// over all that it has written, and writes the index after that: a disk that is full then, or a loss of power, would leave neither of the
// two.
type patchLast struct {
	out     io.WriteSeeker
	pos     int64 // where the muxer is
	end     int64 // where the output is
	patches []patch
}

type patch struct {
	at int64
	b  []byte
}

// Write keeps what goes over earlier bytes, which are a few.
func (p *patchLast) Write(b []byte) (int, error) {
	if p.pos < p.end {
		p.patches = append(p.patches, patch{p.pos, append([]byte(nil), b...)})
		p.pos += int64(len(b))
		return len(b), nil
	}
	n, err := p.out.Write(b)
	p.pos, p.end = p.pos+int64(n), p.end+int64(n)
	return n, err
}

// Seek moves the muxer, not the output.
func (p *patchLast) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
		p.pos = offset
	case io.SeekCurrent:
		p.pos += offset
	case io.SeekEnd:
		p.pos = p.end + offset
	}
	return p.pos, nil
}

// apply makes the changes, and leaves the output at its end.
func (p *patchLast) apply() error {
	for _, c := range p.patches {
		if _, err := p.out.Seek(c.at, io.SeekStart); err != nil {
			return err
		}
		if _, err := p.out.Write(c.b); err != nil {
			return err
		}
	}
	p.patches = nil
	_, err := p.out.Seek(p.end, io.SeekStart)
	return err
}
