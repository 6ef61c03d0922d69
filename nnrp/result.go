package nnrp

import "fmt"

// ResultPushLen and TensorResultLen are the sizes of RESULT_PUSH's fixed metadata and of its tensor_result_block.
const (
	ResultPushLen   = 32
	TensorResultLen = 16
)

// ResultPush carries one result to the client (section 13). Body: tensor_result_block, tile_index_block, sections.
//
//	Offset Size Field                   Offset Size Field
//	0      2    status_code             12     2    server_total_ms
//	2      2    result_flags            14     2    reserved1
//	4      2    active_profile_id       16     4    profile_block_bytes
//	6      1    payload_kind            20     4    payload_descriptor_bytes
//	7      1    reserved0               24     4    payload_data_bytes
//	8      2    inference_ms            28     4    reserved2
//	10     2    queue_ms
//
// The tensor_result_block:
//
//	Offset Size Field                   Offset Size Field
//	0      2    section_count           6      2    reserved0
//	2      2    tile_count              8      4    tile_base_id
//	4      1    tile_index_mode         12     4    tile_index_bytes
//	5      1    tensor_flags
type ResultPush struct {
	StatusCode      uint16
	ResultFlags     uint16
	ActiveProfileID uint16
	PayloadKind     uint8
	Reserved0       uint8
	InferenceMs     uint16
	QueueMs         uint16
	ServerTotalMs   uint16
	Reserved1       uint16
	Reserved2       uint32

	TensorFlags     uint8 // of the tensor_result_block
	TensorReserved0 uint16
	TileIndex       TileIndex
	Sections        []Section
}

// Type returns RESULT_PUSH.
func (*ResultPush) Type() MsgType { return MsgResultPush }

// Append adds the whole message.
func (m *ResultPush) Append(b []byte, h Header) ([]byte, error) { return m.append(b, h, nil) }

// Gather writes the message as slices: heads in g's own memory, large payloads as they are.
func (m *ResultPush) Gather(g *Gather, h Header) error {
	g.cuts = g.cuts[:0]
	b, err := m.append(g.head[:0], h, g)
	if err == nil {
		g.finish(b)
	}
	return err
}

func (m *ResultPush) append(b []byte, h Header, g *Gather) ([]byte, error) {
	if err := m.TileIndex.check(MsgResultPush, 0, 0); err != nil {
		return b, fmt.Errorf("nnrp: encode: %w", err)
	}
	descriptors, data, err := sectionSizes(MsgResultPush, m.Sections, int(m.TileIndex.Count))
	if err != nil {
		return b, err
	}
	if b, err = h.begin(b, MsgResultPush, bodySize(m.Sections, TensorResultLen, len(m.TileIndex.Data))); err != nil {
		return b, err
	}
	b = le.AppendUint16(b, m.StatusCode)
	b = le.AppendUint16(b, m.ResultFlags)
	b = le.AppendUint16(b, m.ActiveProfileID)
	b = append(b, m.PayloadKind, m.Reserved0)
	b = le.AppendUint16(b, m.InferenceMs)
	b = le.AppendUint16(b, m.QueueMs)
	b = le.AppendUint16(b, m.ServerTotalMs)
	b = le.AppendUint16(b, m.Reserved1)
	b = le.AppendUint32(b, uint32(TensorResultLen+len(m.TileIndex.Data)))
	b = le.AppendUint32(b, uint32(descriptors))
	b = le.AppendUint32(b, uint32(data))
	b = le.AppendUint32(b, m.Reserved2)

	b = le.AppendUint16(b, uint16(len(m.Sections)))
	b = le.AppendUint16(b, m.TileIndex.Count)
	b = append(b, byte(m.TileIndex.Mode), m.TensorFlags)
	b = le.AppendUint16(b, m.TensorReserved0)
	b = le.AppendUint32(b, m.TileIndex.Base)
	b = le.AppendUint32(b, uint32(len(m.TileIndex.Data)))

	w := bodyWriter{b: b, off: TensorResultLen, g: g}
	w.block(m.TileIndex.Data)
	w.sections(m.Sections)
	return w.b, nil
}

// Parse reads metadata and body. It reuses the capacity of m.Sections.
func (m *ResultPush) Parse(h *Header, payload []byte, l *Limits) error {
	return forFrame(m.parse(h, payload, l), h)
}

func (m *ResultPush) parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgResultPush, payload, l)
	if err != nil {
		return err
	}
	*m = ResultPush{
		StatusCode: le.Uint16(p), ResultFlags: le.Uint16(p[2:]), ActiveProfileID: le.Uint16(p[4:]), PayloadKind: p[6], Reserved0: p[7],
		InferenceMs:   le.Uint16(p[8:]),
		QueueMs:       le.Uint16(p[10:]),
		ServerTotalMs: le.Uint16(p[12:]),
		Reserved1:     le.Uint16(p[14:]),
		Reserved2:     le.Uint32(p[28:]),
		Sections:      m.Sections[:0],
	}
	if err := checkTensor(MsgResultPush, m.ActiveProfileID, 4, m.PayloadKind, 6); err != nil {
		return err
	}
	at := body.at()
	d, err := body.take(TensorResultLen, "tensor_result_block")
	if err != nil {
		return err
	}
	count, index := le.Uint16(d), le.Uint32(d[12:])
	m.TileIndex = TileIndex{Mode: TileIndexMode(d[4]), Count: le.Uint16(d[2:]), Base: le.Uint32(d[8:])}
	m.TensorFlags, m.TensorReserved0 = d[5], le.Uint16(d[6:])
	if err := checkCounts(MsgResultPush, m.TileIndex.Count, at+2, count, at, l); err != nil {
		return err
	}
	if sum := TensorResultLen + uint64(index); sum != uint64(le.Uint32(p[16:])) {
		return malformedBody(MsgResultPush, HeaderLen+16, "profile_block_bytes is %d, its blocks have %d", le.Uint32(p[16:]), sum)
	}
	if m.TileIndex.Data, err = body.block(uint64(index), "tile_index_block"); err != nil {
		return err
	}
	if err := m.TileIndex.check(MsgResultPush, body.at()-len(m.TileIndex.Data), at+4); err != nil {
		return err
	}
	m.Sections, err = parseSections(&body, m.Sections, int(count), int(m.TileIndex.Count), le.Uint32(p[20:]), le.Uint32(p[24:]))
	return err
}
