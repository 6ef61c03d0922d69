package nnrp

import "fmt"

// SectionDescLen is the size of a TensorSectionDesc.
const SectionDescLen = 32

// Section flags.
const (
	SectionCodecTable  = 1 // a codec_table stands behind the descriptor, one byte a tile
	SectionFixedStride = 2 // every tile's slot is padded to payload_stride_bytes
)

// Section is one tensor_section (section 12): descriptor, codec_table, length_table and payload stand one after another without
// padding; sections begin at multiples of 8.
//
//	Offset Size Field                   Offset Size Field
//	0      2    role_id                 12     4    codec_table_bytes
//	2      1    codec_id                16     4    length_table_bytes
//	3      1    dtype_id                20     4    payload_bytes
//	4      1    layout_id               24     4    payload_stride_bytes
//	5      1    scale_policy            28     4    reserved
//	6      2    flags
//	8      4    element_count_per_tile
type Section struct {
	RoleID              uint16
	CodecID             uint8
	DType               DType
	Layout              Layout
	ScalePolicy         uint8
	Flags               uint16
	ElementCountPerTile uint32
	PayloadStrideBytes  uint32
	Reserved            uint32

	CodecTable  []byte // codec ids by tile, with SectionCodecTable
	LengthTable []byte // little-endian u32 by tile: encoded bytes, without padding to the stride
	Payload     []byte // the tiles in the order of the tile index
}

// AppendLength adds an entry to a length table.
func AppendLength(table []byte, n int) []byte { return le.AppendUint32(table, uint32(n)) }

// Length returns the encoded bytes of tile i.
func (s *Section) Length(i int) int { return int(le.Uint32(s.LengthTable[4*i:])) }

// Codec returns the codec of tile i.
func (s *Section) Codec(i int) uint8 {
	if s.Flags&SectionCodecTable != 0 {
		return s.CodecTable[i]
	}
	return s.CodecID
}

// TileBytes returns the decoded bytes of one tile, 0 for an unknown dtype.
func (s *Section) TileBytes() int64 { return int64(s.ElementCountPerTile) * int64(s.DType.Size()) }

// TileCursor walks the tiles of a section.
type TileCursor struct {
	s      *Section
	i, off int
}

// Tiles returns a cursor in front of the first tile.
func (s *Section) Tiles() TileCursor { return TileCursor{s: s} }

// Next returns the codec and the encoded bytes of the next tile.
func (c *TileCursor) Next() (codec uint8, data []byte, ok bool) {
	if 4*c.i >= len(c.s.LengthTable) {
		return 0, nil, false
	}
	n := c.s.Length(c.i)
	codec, data = c.s.Codec(c.i), c.s.Payload[c.off:c.off+n:c.off+n]
	c.i++
	if c.s.PayloadStrideBytes != 0 {
		n = int(c.s.PayloadStrideBytes)
	}
	c.off += n
	return codec, data, true
}

// problem says what is wrong with the section for a frame of the given number of tiles: the field's offset from the descriptor.
func (s *Section) problem(tiles int) (off int, detail string) {
	table := 0
	if s.Flags&SectionCodecTable != 0 {
		table = tiles
	}
	payload := SectionDescLen + len(s.CodecTable) + len(s.LengthTable)
	switch {
	case len(s.CodecTable) != table:
		return 12, fmt.Sprintf("codec_table_bytes is %d, want %d", len(s.CodecTable), table)
	case len(s.LengthTable) != 4*tiles:
		return 16, fmt.Sprintf("length_table_bytes is %d, want %d", len(s.LengthTable), 4*tiles)
	case (s.PayloadStrideBytes != 0) != (s.Flags&SectionFixedStride != 0):
		return 24, fmt.Sprintf("payload_stride_bytes is %d with flags %#x", s.PayloadStrideBytes, s.Flags)
	}
	if stride := uint64(s.PayloadStrideBytes); stride != 0 {
		if uint64(len(s.Payload)) != stride*uint64(tiles) {
			return 20, fmt.Sprintf("payload_bytes is %d, want %d slots of %d", len(s.Payload), tiles, stride)
		}
		for i := range tiles {
			n := uint64(s.Length(i))
			if n > stride {
				return SectionDescLen + len(s.CodecTable) + 4*i, fmt.Sprintf("tile of %d bytes is longer than its slot of %d", n, stride)
			}
			for j := uint64(i)*stride + n; j < uint64(i+1)*stride; j++ {
				if s.Payload[j] != 0 {
					return payload + int(j), "padding to the stride is not zero"
				}
			}
		}
		return 0, ""
	}
	var sum uint64
	for i := range tiles {
		sum += uint64(s.Length(i))
	}
	if sum != uint64(len(s.Payload)) {
		return 20, fmt.Sprintf("payload_bytes is %d, the lengths add up to %d", len(s.Payload), sum)
	}
	return 0, ""
}

// sectionSizes adds up what the section table of a message says about its sections.
func sectionSizes(t MsgType, sections []Section, tiles int) (descriptors, data uint64, err error) {
	if len(sections) > 65535 {
		return 0, 0, fmt.Errorf("nnrp: encode %s: %d sections are above 65535", t, len(sections))
	}
	for i := range sections {
		s := &sections[i]
		if _, detail := s.problem(tiles); detail != "" {
			return 0, 0, fmt.Errorf("nnrp: encode %s: section %d: %s", t, i, detail)
		}
		if i > 0 && s.RoleID <= sections[i-1].RoleID {
			return 0, 0, fmt.Errorf("nnrp: encode %s: section %d: role_id %d does not rise", t, i, s.RoleID)
		}
		descriptors += SectionDescLen + uint64(len(s.CodecTable)) + uint64(len(s.LengthTable))
		data += uint64(len(s.Payload))
	}
	return descriptors, data, nil
}

// parseSections reads count sections into dst, whose capacity it reuses, and compares their sums with the metadata.
func parseSections(body *bodyReader, dst []Section, count, tiles int, descriptors, data uint32) ([]Section, error) {
	dst = dst[:0]
	if uint64(count)*SectionDescLen > uint64(body.left()) { // before dst grows
		return dst, malformedBody(body.t, body.at(), "%d sections do not fit in %d bytes", count, body.left())
	}
	var sumDescriptors, sumData uint64
	for i := range count {
		if err := body.align(); err != nil {
			return dst, err
		}
		at := body.at()
		d, err := body.take(SectionDescLen, "section descriptor")
		if err != nil {
			return dst, err
		}
		s := Section{
			RoleID: le.Uint16(d), CodecID: d[2], DType: DType(d[3]), Layout: Layout(d[4]), ScalePolicy: d[5], Flags: le.Uint16(d[6:]),
			ElementCountPerTile: le.Uint32(d[8:]),
			PayloadStrideBytes:  le.Uint32(d[24:]),
			Reserved:            le.Uint32(d[28:]),
		}
		codecs, lengths, payload := le.Uint32(d[12:]), le.Uint32(d[16:]), le.Uint32(d[20:])
		if s.CodecTable, err = body.take(uint64(codecs), "codec_table"); err != nil {
			return dst, err
		}
		if s.LengthTable, err = body.take(uint64(lengths), "length_table"); err != nil {
			return dst, err
		}
		if s.Payload, err = body.take(uint64(payload), "payload_blob"); err != nil {
			return dst, err
		}
		if off, detail := s.problem(tiles); detail != "" {
			return dst, malformedBody(body.t, at+off, "section %d: %s", i, detail)
		}
		if i > 0 && s.RoleID <= dst[i-1].RoleID {
			return dst, malformedBody(body.t, at, "section %d: role_id %d does not rise", i, s.RoleID)
		}
		sumDescriptors += SectionDescLen + uint64(codecs) + uint64(lengths)
		sumData += uint64(payload)
		dst = append(dst, s)
	}
	if sumDescriptors != uint64(descriptors) {
		return dst, malformedBody(body.t, HeaderLen+20, "payload_descriptor_bytes is %d, the sections have %d", descriptors, sumDescriptors)
	}
	if sumData != uint64(data) {
		return dst, malformedBody(body.t, HeaderLen+24, "payload_data_bytes is %d, the sections have %d", data, sumData)
	}
	return dst, body.end()
}

// Gather is a message as a list of slices, so that large payloads need not be copied into one buffer. Its memory is reused.
type Gather struct {
	head []byte
	cuts []gatherCut
	list [][]byte
}

type gatherCut struct {
	at      int // in head
	payload []byte
}

// gatherMin is the payload size from which a slice of its own is cheaper than a copy.
const gatherMin = 4096

// Buffers returns the slices in order; they are valid until the Gather is used again.
func (g *Gather) Buffers() [][]byte { return g.list }

func (g *Gather) finish(head []byte) {
	g.head, g.list = head, g.list[:0]
	last := 0
	for _, c := range g.cuts {
		g.list = append(g.list, head[last:c.at], c.payload)
		last = c.at
	}
	if last < len(head) {
		g.list = append(g.list, head[last:])
	}
}

// bodyWriter appends the blocks of a body; with g set, large payloads are noted there instead.
type bodyWriter struct {
	b   []byte
	off uint64
	g   *Gather
}

func (w *bodyWriter) block(p []byte) {
	if len(p) == 0 {
		return
	}
	w.align()
	w.bytes(p)
}

func (w *bodyWriter) align() {
	n := int(align8(w.off) - w.off)
	w.b = append(w.b, zeros8[:n]...)
	w.off += uint64(n)
}

func (w *bodyWriter) bytes(p []byte) {
	w.b = append(w.b, p...)
	w.off += uint64(len(p))
}

func (w *bodyWriter) sections(sections []Section) {
	for i := range sections {
		s := &sections[i]
		w.align()
		w.b = le.AppendUint16(w.b, s.RoleID)
		w.b = append(w.b, s.CodecID, byte(s.DType), byte(s.Layout), s.ScalePolicy)
		w.b = le.AppendUint16(w.b, s.Flags)
		w.b = le.AppendUint32(w.b, s.ElementCountPerTile)
		w.b = le.AppendUint32(w.b, uint32(len(s.CodecTable)))
		w.b = le.AppendUint32(w.b, uint32(len(s.LengthTable)))
		w.b = le.AppendUint32(w.b, uint32(len(s.Payload)))
		w.b = le.AppendUint32(w.b, s.PayloadStrideBytes)
		w.b = le.AppendUint32(w.b, s.Reserved)
		w.off += SectionDescLen
		w.bytes(s.CodecTable)
		w.bytes(s.LengthTable)
		if w.g == nil || len(s.Payload) < gatherMin {
			w.bytes(s.Payload)
			continue
		}
		w.g.cuts = append(w.g.cuts, gatherCut{len(w.b), s.Payload})
		w.off += uint64(len(s.Payload))
	}
}

// bodySize adds the padding of the layout to the logical sizes.
func bodySize(sections []Section, blocks ...int) uint64 {
	var off uint64
	for _, n := range blocks {
		if n > 0 {
			off = align8(off) + uint64(n)
		}
	}
	for i := range sections {
		s := &sections[i]
		off = align8(off) + SectionDescLen + uint64(len(s.CodecTable)) + uint64(len(s.LengthTable)) + uint64(len(s.Payload))
	}
	return off
}
