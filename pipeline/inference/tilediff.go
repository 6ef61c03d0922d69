package inference

import (
	"bytes"
	"encoding/binary"

	"github.com/cfpipe/cfpipe/nnrp"
)

// tileGrid is how the pixels of a tensor lie and where its tiles are.
type tileGrid struct {
	columns, rows int
	tileW, tileH  int // pixels
	height        int // pixels
	planes        int // NHWC: 1, NCHW: the channels
	pixel         int // bytes of a pixel in a plane
	pitch         int // bytes of a row of a plane
}

func newTileGrid(f Format, tileW, tileH int) tileGrid {
	g := tileGrid{columns: (f.Width + tileW - 1) / tileW, rows: (f.Height + tileH - 1) / tileH, tileW: tileW, tileH: tileH,
		height: f.Height, planes: 1, pixel: f.DType.Size() * f.Channels}
	if f.Layout == nnrp.NCHW {
		g.planes, g.pixel = f.Channels, f.DType.Size()
	}
	g.pitch = f.Width * g.pixel
	return g
}

// lines returns where the first line of row's tiles begins in plane p, and how many lines there are.
func (g *tileGrid) lines(p, row int) (at, n int) {
	y := row * g.tileH
	return (p*g.height + y) * g.pitch, min(g.tileH, g.height-y)
}

// span returns where column's tiles begin and end in a line.
func (g *tileGrid) span(column int) (from, to int) {
	step := g.tileW * g.pixel
	return column * step, min((column+1)*step, g.pitch)
}

// cut copies a tile out of the tensor; what lies beyond the right and lower edge is zero.
func (g *tileGrid) cut(dst, tensor []byte, row, column int) {
	from, to := g.span(column)
	step := g.tileW * g.pixel
	for p := range g.planes {
		at, n := g.lines(p, row)
		out := dst[p*g.tileH*step:][:g.tileH*step]
		if to-from < step || n < g.tileH {
			clear(out)
		}
		for i := range n {
			copy(out[i*step:], tensor[at+i*g.pitch+from:at+i*g.pitch+to])
		}
	}
}

// move copies a tile from one tensor to its place in another.
func (g *tileGrid) move(dst, src []byte, row, column int) {
	from, to := g.span(column)
	for p := range g.planes {
		at, n := g.lines(p, row)
		for i := range n {
			copy(dst[at+i*g.pitch+from:at+i*g.pitch+to], src[at+i*g.pitch+from:])
		}
	}
}

// compare adds up, for every tile of a row, by how much the bytes of two tensors differ, until the sum is above limit; what is above
// limit is not exact. Most lines of a camera that stands still are equal: they are compared as a whole, which costs the least.
func (g *tileGrid) compare(sums []int, a, b []byte, row, limit int) {
	clear(sums)
	for p := range g.planes {
		at, n := g.lines(p, row)
		for range n {
			x, y := a[at:at+g.pitch], b[at:at+g.pitch]
			at += g.pitch
			if bytes.Equal(x, y) {
				continue
			}
			for c := range sums {
				from, to := g.span(c)
				switch {
				case sums[c] > limit || bytes.Equal(x[from:to], y[from:to]):
				case limit == 0:
					sums[c] = 1
				default:
					sums[c] += difference(x[from:to], y[from:to])
				}
			}
		}
	}
}

// difference is the sum of absolute differences, eight bytes at a time in lanes of 16 bits.
func difference(a, b []byte) (sum int) {
	const (
		low  = 0x00ff00ff00ff00ff
		one  = 0x0001000100010001
		most = 1024 // bytes until a lane could overflow: 128 × 2 × 255 < 65536
	)
	b = b[:len(a)]
	for len(a) >= 8 {
		n := min(len(a), most) &^ 7
		var lanes uint64
		for i := 0; i < n; i += 8 {
			x, y := binary.LittleEndian.Uint64(a[i:n]), binary.LittleEndian.Uint64(b[i:n])
			// 256 + x - y: where the ninth bit is gone, y is the larger one, and the difference is the complement.
			even := (x&low | one<<8) - y&low
			odd := (x>>8&low | one<<8) - y>>8&low
			less, lessOdd := ^even>>8&one, ^odd>>8&one
			lanes += (even^(less<<8-less))&low + less + (odd^(lessOdd<<8-lessOdd))&low + lessOdd
		}
		sum += int(lanes&0xffff + lanes>>16&0xffff + lanes>>32&0xffff + lanes>>48)
		a, b = a[n:], b[n:]
	}
	for i := range a {
		d := int(a[i]) - int(b[i])
		sum += max(d, -d)
	}
	return sum
}
