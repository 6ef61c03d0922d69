// Package lz4codec is NNRP's codec 1: one LZ4 block a tile, without frame header or checksum.
package lz4codec

import (
	"fmt"
	"sync"

	"github.com/pierrec/lz4/v4"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Codec implements nnrp.Codec. It may be used by several goroutines.
type Codec struct{}

var compressors = sync.Pool{New: func() any { return new(lz4.Compressor) }}

// ID returns the codec's id on the wire.
func (Codec) ID() uint8 { return nnrp.CodecLZ4 }

// Append adds the LZ4 block of src; ok is false when it would not be shorter than src.
func (Codec) Append(dst, src []byte) ([]byte, bool) {
	if len(src) == 0 {
		return dst, false
	}
	start := len(dst)
	if cap(dst)-start < len(src) { // a block as long as src is of no use
		dst = append(dst, make([]byte, len(src))...)[:start]
	}
	c := compressors.Get().(*lz4.Compressor)
	n, err := c.CompressBlock(src, dst[start:start+len(src)])
	compressors.Put(c)
	if err != nil || n == 0 || n >= len(src) {
		return dst, false
	}
	return dst[:start+n], true
}

// Decode fills dst from one LZ4 block.
func (Codec) Decode(dst, src []byte) error {
	n, err := lz4.UncompressBlock(src, dst)
	if err != nil {
		return fmt.Errorf("lz4 tile: %w", err)
	}
	if n != len(dst) {
		return fmt.Errorf("lz4 tile: %d bytes, want %d", n, len(dst))
	}
	return nil
}
