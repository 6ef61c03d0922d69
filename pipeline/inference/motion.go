package inference

import (
	"encoding/binary"
	"math"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Motion is the engine without a model: for every tile of a frame it gives the mean absolute difference of luma (0 to 255) to the same
// tile of the frame before, as one fp32 in section role 1. Tiles that were never seen before count as still. It takes uint8, NHWC or
// NCHW, one channel (luma) or three (RGB), of any size; with changed tiles only those are compared.
type Motion struct{}

// MotionRole is the section role_id of Motion's result.
const MotionRole = 1

// Spec describes the engine.
func (Motion) Spec() Spec {
	return Spec{Name: "motion", DTypes: []nnrp.DType{nnrp.Uint8}, Layouts: []nnrp.Layout{nnrp.NHWC, nnrp.NCHW}, MaxBatch: 16, Tiled: true, Workers: 2,
		Outputs: []Output{{Role: MotionRole, Name: "luma_difference", DType: nnrp.FP32, Shape: []int64{1}}}}
}

// Close does nothing.
func (Motion) Close() error { return nil }

// motionView holds the luma of every tile that was seen, tile after tile.
type motionView struct {
	tile, grid int // pixels a tile, tiles
	luma       []byte
	seen       []bool
}

// Infer compares the tiles of each item with those before.
func (Motion) Infer(items []*Item) error {
	for _, it := range items {
		m := it.Submit
		s := &m.Sections[0]
		columns, rows := m.Tensor.Grid()
		pixels := int(m.Tensor.TileWidth) * int(m.Tensor.TileHeight)
		channels := int(s.ElementCountPerTile) / pixels
		v, _ := it.View.Data.(*motionView)
		if v == nil || v.tile != pixels || v.grid != columns*rows {
			v = &motionView{tile: pixels, grid: columns * rows, luma: make([]byte, columns*rows*pixels), seen: make([]bool, columns*rows)}
			it.View.Data = v
		}
		n := len(it.IDs)
		values := make([]byte, 0, 4*n)
		lengths := make([]byte, 0, 4*n)
		for i, id := range it.IDs {
			diff := compareLuma(v.luma[int(id)*pixels:][:pixels], it.Tiles[i*pixels*channels:][:pixels*channels], channels, s.Layout)
			if !v.seen[id] {
				diff, v.seen[id] = 0, true
			}
			values = binary.LittleEndian.AppendUint32(values, math.Float32bits(float32(diff)/float32(pixels)))
			lengths = nnrp.AppendLength(lengths, 4)
		}
		it.Result.TileIndex = m.TileIndex
		it.Result.TileIndex.Data = append([]byte(nil), m.TileIndex.Data...) // the frame's memory goes before the result is sent
		it.Result.Sections = []nnrp.Section{{RoleID: MotionRole, DType: nnrp.FP32, ElementCountPerTile: 1, LengthTable: lengths, Payload: values}}
	}
	return nil
}

// compareLuma replaces the luma in old by that of the tile and returns the sum of absolute differences.
func compareLuma(old, tile []byte, channels int, layout nnrp.Layout) int {
	sum := 0
	add := func(i int, y byte) {
		d := int(y) - int(old[i])
		sum += max(d, -d)
		old[i] = y
	}
	switch {
	case channels == 1:
		for i := range old {
			add(i, tile[i])
		}
	case layout == nnrp.NHWC:
		for i := range old {
			p := tile[3*i : 3*i+3]
			add(i, luma(p[0], p[1], p[2]))
		}
	default:
		n := len(old)
		r, g, b := tile[:n], tile[n:2*n], tile[2*n:3*n]
		for i := range old {
			add(i, luma(r[i], g[i], b[i]))
		}
	}
	return sum
}

// luma is BT.601's, in 8-bit fixed point: the weights add up to 256.
func luma(r, g, b byte) byte { return byte((77*int(r) + 150*int(g) + 29*int(b)) >> 8) }
