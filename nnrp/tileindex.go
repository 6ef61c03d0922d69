package nnrp

import (
	"fmt"
	"math/bits"
)

// TileIndexMode is a tile_index_mode (section 11.5).
type TileIndexMode uint8

// Tile index modes.
const (
	DenseRange TileIndexMode = 0 // ids base … base+count-1, no bytes
	RawU16     TileIndexMode = 1 // one u16 an id, in any order
	DeltaU16   TileIndexMode = 2 // the first id, then differences > 0
	Bitset     TileIndexMode = 3 // bit i of byte i/8, least significant first, up to the last id's byte
)

// TileIndex names the tiles of a frame in the order in which every section holds them.
type TileIndex struct {
	Mode  TileIndexMode
	Count uint16
	Base  uint32 // first id of DenseRange; the other modes carry it without using it
	Data  []byte // tile_index_block
}

// check verifies Data against mode and count; off is where the block stands in its message, modeOff the mode.
func (t *TileIndex) check(m MsgType, off, modeOff int) error {
	n := int(t.Count)
	switch t.Mode {
	case DenseRange:
		if len(t.Data) != 0 {
			return malformedBody(m, off, "tile_index_bytes is %d, dense_range has none", len(t.Data))
		}
		if n > 0 && uint64(t.Base)+uint64(n) > 1<<32 {
			return malformedBody(m, off, "tile ids run over 32 bits")
		}
	case RawU16, DeltaU16:
		if len(t.Data) != 2*n {
			return malformedBody(m, off, "tile_index_bytes is %d, want %d for %d tiles", len(t.Data), 2*n, n)
		}
		if t.Mode == DeltaU16 {
			for i := 1; i < n; i++ {
				if le.Uint16(t.Data[2*i:]) == 0 {
					return malformedBody(m, off+2*i, "difference of 0 in delta_u16")
				}
			}
		}
	case Bitset:
		if len(t.Data) > maxBitset {
			return malformedBody(m, off, "bitset of %d bytes is above %d", len(t.Data), maxBitset)
		}
		ones := 0
		for _, b := range t.Data {
			ones += bits.OnesCount8(b)
		}
		if ones != n {
			return malformedBody(m, off, "bitset names %d tiles, tile_count is %d", ones, n)
		}
		if k := len(t.Data); k > 0 && t.Data[k-1] == 0 {
			return malformedBody(m, off+k-1, "bitset goes on behind the last tile")
		}
	default:
		return codeError(CodeUnsupportedCapability, m, modeOff, "tile_index_mode %d is not known", t.Mode)
	}
	return nil
}

// AppendIDs adds the tile ids, Count of them.
func (t *TileIndex) AppendIDs(ids []uint32) []uint32 {
	switch t.Mode {
	case DenseRange:
		for i := range uint32(t.Count) {
			ids = append(ids, t.Base+i)
		}
	case RawU16:
		for i := 0; i+1 < len(t.Data); i += 2 {
			ids = append(ids, uint32(le.Uint16(t.Data[i:])))
		}
	case DeltaU16:
		var id uint32
		for i := 0; i+1 < len(t.Data); i += 2 {
			id += uint32(le.Uint16(t.Data[i:]))
			ids = append(ids, id)
		}
	case Bitset:
		for i, b := range t.Data {
			for ; b != 0; b &= b - 1 {
				ids = append(ids, uint32(8*i+bits.TrailingZeros8(b)))
			}
		}
	}
	return ids
}

// MakeTileIndex encodes ids in the given mode; Data is appended to buf[:0]. The ids ascend, except in RawU16.
func MakeTileIndex(mode TileIndexMode, ids []uint32, buf []byte) (TileIndex, error) {
	t := TileIndex{Mode: mode, Count: uint16(len(ids)), Data: buf[:0]}
	if len(ids) > 65535 {
		return t, fmt.Errorf("nnrp: encode tile index: %d tiles are above 65535", len(ids))
	}
	for i, id := range ids {
		switch {
		case i > 0 && mode != RawU16 && id <= ids[i-1]:
			return t, fmt.Errorf("nnrp: encode tile index: id %d after %d does not ascend", id, ids[i-1])
		case mode == DenseRange && id != ids[0]+uint32(i):
			return t, fmt.Errorf("nnrp: encode tile index: id %d breaks the dense range from %d", id, ids[0])
		case mode != DenseRange && id > 65535:
			return t, fmt.Errorf("nnrp: encode tile index: id %d is above 65535", id)
		}
	}
	switch mode {
	case DenseRange:
		if len(ids) > 0 {
			t.Base = ids[0]
		}
	case RawU16:
		for _, id := range ids {
			t.Data = le.AppendUint16(t.Data, uint16(id))
		}
	case DeltaU16:
		var last uint32
		for _, id := range ids {
			t.Data = le.AppendUint16(t.Data, uint16(id-last))
			last = id
		}
	case Bitset:
		if len(ids) == 0 {
			break
		}
		for range ids[len(ids)-1]/8 + 1 {
			t.Data = append(t.Data, 0)
		}
		for _, id := range ids {
			t.Data[id/8] |= 1 << (id % 8)
		}
	default:
		return t, fmt.Errorf("nnrp: encode tile index: mode %d is not known", mode)
	}
	return t, nil
}

// SmallestMode returns the mode that takes the fewest bytes for ascending ids: dense_range where they are contiguous, else
// delta_u16 or bitset.
func SmallestMode(ids []uint32) TileIndexMode {
	n := len(ids)
	if n == 0 || ids[n-1]-ids[0] == uint32(n-1) {
		return DenseRange
	}
	if int(ids[n-1]/8+1) < 2*n {
		return Bitset
	}
	return DeltaU16
}
