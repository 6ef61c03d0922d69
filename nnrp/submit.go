package nnrp

import "fmt"

// FrameSubmitLen and TensorSubmitLen are the sizes of FRAME_SUBMIT's fixed metadata and of its tensor_submit_block.
const (
	FrameSubmitLen  = 32
	TensorSubmitLen = 32
)

// FrameSubmit carries one frame to the server (section 11). Body: tensor_submit_block, camera_block, tile_index_block, sections.
//
//	Offset Size Field                   Offset Size Field
//	0      2    profile_id              12     4    dependency_frame_id
//	2      1    payload_kind            16     4    profile_block_bytes
//	3      1    frame_class             20     4    payload_descriptor_bytes
//	4      2    submit_flags            24     4    payload_data_bytes
//	6      2    profile_flags           28     4    reserved0
//	8      2    latency_budget_ms
//	10     2    cadence_hint_x100
//
// The tensor_submit_block:
//
//	Offset Size Field                   Offset Size Field
//	0      2    src_width               13     1    tensor_flags
//	2      2    src_height              14     2    reserved0
//	4      2    tile_width              16     4    tile_base_id
//	6      2    tile_height             20     4    camera_bytes
//	8      2    tile_count              24     4    tile_index_bytes
//	10     2    section_count           28     4    reserved1
//	12     1    tile_index_mode
type FrameSubmit struct {
	ProfileID         uint16
	PayloadKind       uint8
	FrameClass        FrameClass
	SubmitFlags       uint16
	ProfileFlags      uint16
	LatencyBudgetMs   uint16
	CadenceHintX100   uint16
	DependencyFrameID uint32
	Reserved0         uint32

	Tensor    TensorSubmit
	Camera    []byte
	TileIndex TileIndex
	Sections  []Section
}

// TensorSubmit holds the fields of the tensor_submit_block that are no lengths.
type TensorSubmit struct {
	SrcWidth    uint16
	SrcHeight   uint16
	TileWidth   uint16
	TileHeight  uint16
	TensorFlags uint8
	Reserved0   uint16
	Reserved1   uint32
}

// Grid returns how many tiles lie side by side and one below the other; 0, 0 where a tile has no size.
func (t *TensorSubmit) Grid() (columns, rows int) {
	if t.TileWidth == 0 || t.TileHeight == 0 {
		return 0, 0
	}
	w, h := int(t.TileWidth), int(t.TileHeight)
	return (int(t.SrcWidth) + w - 1) / w, (int(t.SrcHeight) + h - 1) / h
}

// Type returns FRAME_SUBMIT.
func (*FrameSubmit) Type() MsgType { return MsgFrameSubmit }

// Append adds the whole message.
func (m *FrameSubmit) Append(b []byte, h Header) ([]byte, error) { return m.append(b, h, nil) }

// Gather writes the message as slices: heads in g's own memory, large payloads as they are.
func (m *FrameSubmit) Gather(g *Gather, h Header) error {
	g.cuts = g.cuts[:0]
	b, err := m.append(g.head[:0], h, g)
	if err == nil {
		g.finish(b)
	}
	return err
}

func (m *FrameSubmit) append(b []byte, h Header, g *Gather) ([]byte, error) {
	if err := m.TileIndex.check(MsgFrameSubmit, 0, 0); err != nil {
		return b, fmt.Errorf("nnrp: encode: %w", err)
	}
	descriptors, data, err := sectionSizes(MsgFrameSubmit, m.Sections, int(m.TileIndex.Count))
	if err != nil {
		return b, err
	}
	size := bodySize(m.Sections, TensorSubmitLen, len(m.Camera), len(m.TileIndex.Data))
	if b, err = h.begin(b, MsgFrameSubmit, size); err != nil {
		return b, err
	}
	b = le.AppendUint16(b, m.ProfileID)
	b = append(b, m.PayloadKind, byte(m.FrameClass))
	b = le.AppendUint16(b, m.SubmitFlags)
	b = le.AppendUint16(b, m.ProfileFlags)
	b = le.AppendUint16(b, m.LatencyBudgetMs)
	b = le.AppendUint16(b, m.CadenceHintX100)
	b = le.AppendUint32(b, m.DependencyFrameID)
	b = le.AppendUint32(b, uint32(TensorSubmitLen+len(m.Camera)+len(m.TileIndex.Data)))
	b = le.AppendUint32(b, uint32(descriptors))
	b = le.AppendUint32(b, uint32(data))
	b = le.AppendUint32(b, m.Reserved0)

	b = le.AppendUint16(b, m.Tensor.SrcWidth)
	b = le.AppendUint16(b, m.Tensor.SrcHeight)
	b = le.AppendUint16(b, m.Tensor.TileWidth)
	b = le.AppendUint16(b, m.Tensor.TileHeight)
	b = le.AppendUint16(b, m.TileIndex.Count)
	b = le.AppendUint16(b, uint16(len(m.Sections)))
	b = append(b, byte(m.TileIndex.Mode), m.Tensor.TensorFlags)
	b = le.AppendUint16(b, m.Tensor.Reserved0)
	b = le.AppendUint32(b, m.TileIndex.Base)
	b = le.AppendUint32(b, uint32(len(m.Camera)))
	b = le.AppendUint32(b, uint32(len(m.TileIndex.Data)))
	b = le.AppendUint32(b, m.Tensor.Reserved1)

	w := bodyWriter{b: b, off: TensorSubmitLen, g: g}
	w.block(m.Camera)
	w.block(m.TileIndex.Data)
	w.sections(m.Sections)
	return w.b, nil
}

// ParseMeta reads the fixed metadata alone (32 bytes), so that a receiver can refuse a frame before it reads the body.
func (m *FrameSubmit) ParseMeta(p []byte) error {
	if len(p) < FrameSubmitLen {
		return ErrShort
	}
	sections := m.Sections[:0]
	*m = FrameSubmit{
		ProfileID: le.Uint16(p), PayloadKind: p[2], FrameClass: FrameClass(p[3]),
		SubmitFlags:       le.Uint16(p[4:]),
		ProfileFlags:      le.Uint16(p[6:]),
		LatencyBudgetMs:   le.Uint16(p[8:]),
		CadenceHintX100:   le.Uint16(p[10:]),
		DependencyFrameID: le.Uint32(p[12:]),
		Reserved0:         le.Uint32(p[28:]),
		Sections:          sections,
	}
	if err := checkTensor(MsgFrameSubmit, m.ProfileID, 0, m.PayloadKind, 2); err != nil {
		return err
	}
	if m.FrameClass > ClassDiscardable {
		return malformedBody(MsgFrameSubmit, HeaderLen+3, "frame_class %d is not known", m.FrameClass)
	}
	return nil
}

// checkTensor refuses what is not a tensor of the tensor profile; the offsets are those in the metadata.
func checkTensor(t MsgType, profile uint16, profileOff int, kind uint8, kindOff int) error {
	if profile != ProfileTensor {
		return codeError(CodeUnsupportedCapability, t, HeaderLen+profileOff, "profile_id %d is not known, 1 is the tensor profile", profile)
	}
	if kind != PayloadTensor && kind != PayloadTensorSDK {
		return codeError(CodeUnsupportedCapability, t, HeaderLen+kindOff, "payload_kind %d is not tensor", kind)
	}
	return nil
}

// Parse reads metadata and body. It reuses the capacity of m.Sections.
func (m *FrameSubmit) Parse(h *Header, payload []byte, l *Limits) error {
	err := m.parse(h, payload, l)
	return forFrame(err, h)
}

func forFrame(err error, h *Header) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // it comes straight from a parser of this package
		_ = e.ForFrame(h.ViewID, h.FrameID)
	}
	return err
}

func (m *FrameSubmit) parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgFrameSubmit, payload, l)
	if err != nil {
		return err
	}
	if err := m.ParseMeta(p); err != nil {
		return err
	}
	at := body.at()
	d, err := body.take(TensorSubmitLen, "tensor_submit_block")
	if err != nil {
		return err
	}
	m.Tensor = TensorSubmit{
		SrcWidth: le.Uint16(d), SrcHeight: le.Uint16(d[2:]), TileWidth: le.Uint16(d[4:]), TileHeight: le.Uint16(d[6:]),
		TensorFlags: d[13], Reserved0: le.Uint16(d[14:]), Reserved1: le.Uint32(d[28:]),
	}
	count := le.Uint16(d[10:])
	m.TileIndex = TileIndex{Mode: TileIndexMode(d[12]), Count: le.Uint16(d[8:]), Base: le.Uint32(d[16:])}
	if err := checkCounts(MsgFrameSubmit, m.TileIndex.Count, at+8, count, at+10, l); err != nil {
		return err
	}
	camera, index := le.Uint32(d[20:]), le.Uint32(d[24:])
	if sum := TensorSubmitLen + uint64(camera) + uint64(index); sum != uint64(le.Uint32(p[16:])) {
		return malformedBody(MsgFrameSubmit, HeaderLen+16, "profile_block_bytes is %d, its blocks have %d", le.Uint32(p[16:]), sum)
	}
	if m.Camera, err = body.block(uint64(camera), "camera_block"); err != nil {
		return err
	}
	if m.TileIndex.Data, err = body.block(uint64(index), "tile_index_block"); err != nil {
		return err
	}
	if err := m.TileIndex.check(MsgFrameSubmit, body.at()-len(m.TileIndex.Data), at+12); err != nil {
		return err
	}
	m.Sections, err = parseSections(&body, m.Sections, int(count), int(m.TileIndex.Count), le.Uint32(p[20:]), le.Uint32(p[24:]))
	return err
}

func checkCounts(t MsgType, tiles uint16, tilesAt int, sections uint16, sectionsAt int, l *Limits) error {
	if tiles > l.tiles() {
		return codeError(CodeLimitExceeded, t, tilesAt, "tile_count is %d, the limit %d", tiles, l.tiles())
	}
	if sections > l.sections() {
		return codeError(CodeLimitExceeded, t, sectionsAt, "section_count is %d, the limit %d", sections, l.sections())
	}
	return nil
}
