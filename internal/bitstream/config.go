package bitstream

import (
	"fmt"

	"github.com/cfpipe/cfpipe/internal/media"
)

// ParseConfigRecord reads an avcC (H.264) or hvcC (H.265) record: the parameter sets and the size of the length prefixes of the
// access units that go with it. What could be read is returned beside an error.
func ParseConfigRecord(codec uint32, b []byte) (sets [][]byte, lengthSize int, err error) {
	take := func(n int) []byte {
		if len(b) < n {
			b = nil
			err = fmt.Errorf("configuration record: %w", errTruncated)
			return nil
		}
		v := b[:n]
		b = b[n:]
		return v
	}
	takeSet := func() {
		if h := take(2); h != nil {
			if nal := take(int(h[0])<<8 | int(h[1])); len(nal) > 0 {
				sets = append(sets, nal)
			}
		}
	}
	if codec == media.HEVC {
		h := take(23)
		if h == nil {
			return nil, 0, err
		}
		lengthSize = int(h[21]&3) + 1
		for range int(h[22]) {
			a := take(3)
			if a == nil {
				break
			}
			for range int(a[1])<<8 | int(a[2]) {
				if takeSet(); err != nil {
					return sets, lengthSize, err
				}
			}
		}
		return sets, lengthSize, err
	}
	h := take(6)
	if h == nil {
		return nil, 0, err
	}
	lengthSize = int(h[4]&3) + 1
	for range int(h[5] & 0x1F) {
		takeSet()
	}
	if n := take(1); n != nil && err == nil {
		for range int(n[0]) {
			takeSet()
		}
	}
	return sets, lengthSize, err
}
