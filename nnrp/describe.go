package nnrp

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Field is one field of a fixed layout, by its name in the specification.
type Field struct {
	Name   string
	Offset int
	Size   int // 1, 2, 4 or 8 bytes, little-endian; the magic is 4 letters
}

// layout reads "name:size name:size …".
func layout(s string) []Field {
	var fields []Field
	off := 0
	for f := range strings.FieldsSeq(s) {
		name, size, _ := strings.Cut(f, ":")
		n, err := strconv.Atoi(size)
		if err != nil {
			panic(f)
		}
		fields = append(fields, Field{name, off, n})
		off += n
	}
	return fields
}

var headerFields = layout("magic:4 version_major:1 wire_format:1 msg_type:1 header_len:1 flags:4 meta_len:4 body_len:4 " +
	"session_id:4 frame_id:4 view_id:2 route_id:2 trace_id:8")

var metaFields = map[MsgType][]Field{
	MsgClientHello: layout("min_version_major:1 max_version_major:1 supported_stage_bitmap:2 supported_profile_bitmap:4 " +
		"supported_payload_kind_bitmap:4 supported_codec_bitmap:4 supported_compression_bitmap:4 supported_dtype_bitmap:4 " +
		"supported_layout_bitmap:4 cache_digest_bitmap:2 cache_object_bitmap:2 cache_namespace_count:2 max_lane_count:2 max_cache_entries:4 " +
		"max_cache_bytes:4 target_cadence_x100:2 latency_budget_ms:2 quality_tier:2 degrade_policy:2 requested_session_id:4 auth_bytes:4 " +
		"control_extension_bytes:4"),
	MsgServerHelloAck: layout("selected_version_major:1 selected_wire_format:1 auth_status:1 reserved0:1 session_id:4 " +
		"accepted_profile_bitmap:4 accepted_payload_kind_bitmap:4 accepted_codec_bitmap:4 accepted_compression_bitmap:4 " +
		"accepted_dtype_bitmap:4 accepted_layout_bitmap:4 cache_digest_bitmap:4 cache_object_bitmap:4 max_cache_entries:4 max_cache_bytes:4 " +
		"max_lane_count:2 max_concurrent_frames:2 target_cadence_x100:2 latency_budget_ms:2 quality_tier:2 degrade_policy:2 " +
		"max_body_bytes:4 token_ttl_ms:4 retry_after_ms:4 control_extension_bytes:4 server_flags:4"),
	MsgSessionPatch: layout("profile_id:2 reserved0:2 patch_mask:4 target_cadence_x100:4 quality_tier:2 degrade_policy:2 " +
		"active_lane_mask:8 preferred_codec_bitmap:4 preferred_compression_bitmap:4 profile_patch_bytes:4"),
	MsgSessionPatchAck: layout("status:2 reason:2 applied_patch_mask:4 rejected_patch_mask:4 retry_after_ms:4 effective_profile_id:2 reserved0:2 " +
		"effective_target_cadence_x100:4 effective_quality_tier:2 effective_degrade_policy:2 effective_lane_mask:8 effective_codec_bitmap:4 " +
		"effective_compression_bitmap:4 profile_patch_ack_bytes:4"),
	MsgError: layout("code:4 scope:4 is_fatal:4 retry_after_ms:4 session_id:4 frame_id:4 view_id:4 diagnostic_bytes:4"),
	MsgFrameSubmit: layout("profile_id:2 payload_kind:1 frame_class:1 submit_flags:2 profile_flags:2 latency_budget_ms:2 " +
		"cadence_hint_x100:2 dependency_frame_id:4 profile_block_bytes:4 payload_descriptor_bytes:4 payload_data_bytes:4 reserved0:4"),
	MsgResultPush: layout("status_code:2 result_flags:2 active_profile_id:2 payload_kind:1 reserved0:1 inference_ms:2 " +
		"queue_ms:2 server_total_ms:2 reserved1:2 profile_block_bytes:4 payload_descriptor_bytes:4 payload_data_bytes:4 reserved2:4"),
	MsgCachePut:        layout("namespace:4 object_kind:4 key_hi:8 key_lo:8 ttl_ms:4 object_bytes:4 codec_bitmap:4 flags:4"),
	MsgCacheAck:        layout("namespace:4 status:4 key_hi:8 key_lo:8 accepted_ttl_ms:4 max_object_bytes:4 detail_code:4 reserved:4"),
	MsgCacheInvalidate: layout("scope:4 namespace:4 key_hi:8 key_lo:8 object_kind:4 reason_code:4"),
}

var (
	tensorSubmitFields = layout("src_width:2 src_height:2 tile_width:2 tile_height:2 tile_count:2 section_count:2 tile_index_mode:1 " +
		"tensor_flags:1 reserved0:2 tile_base_id:4 camera_bytes:4 tile_index_bytes:4 reserved1:4")
	tensorResultFields = layout("section_count:2 tile_count:2 tile_index_mode:1 tensor_flags:1 reserved0:2 tile_base_id:4 tile_index_bytes:4")
	sectionFields      = layout("role_id:2 codec_id:1 dtype_id:1 layout_id:1 scale_policy:1 flags:2 element_count_per_tile:4 " +
		"codec_table_bytes:4 length_table_bytes:4 payload_bytes:4 payload_stride_bytes:4 reserved:4")
	clampFields = layout("min_width:4 min_height:4 max_width:4 max_height:4")
)

// describer builds one JSON object, fields in the order of the wire.
type describer struct{ b []byte }

func (d *describer) key(name string) {
	if n := len(d.b); n > 0 && d.b[n-1] != '{' && d.b[n-1] != '[' {
		d.b = append(d.b, ',')
	}
	if name != "" {
		d.b = strconv.AppendQuote(d.b, name)
		d.b = append(d.b, ':')
	}
}

func (d *describer) open(name string, c byte) {
	d.key(name)
	d.b = append(d.b, c)
}

func (d *describer) close(c byte) { d.b = append(d.b, c) }

func (d *describer) number(name string, v uint64) {
	d.key(name)
	d.b = strconv.AppendUint(d.b, v, 10)
}

func (d *describer) text(name, s string) {
	d.key(name)
	q, err := json.Marshal(s)
	if err != nil { // no string fails
		q = []byte(`""`)
	}
	d.b = append(d.b, q...)
}

func (d *describer) fields(list []Field, p []byte) {
	for _, f := range list {
		switch v := p[f.Offset:]; {
		case f.Name == "magic":
			d.text(f.Name, string(v[:4]))
		case f.Size == 1:
			d.number(f.Name, uint64(v[0]))
		case f.Size == 2:
			d.number(f.Name, uint64(le.Uint16(v)))
		case f.Size == 4:
			d.number(f.Name, uint64(le.Uint32(v)))
		default:
			d.number(f.Name, le.Uint64(v))
		}
	}
}

func (d *describer) object(name string, list []Field, p []byte) {
	d.open(name, '{')
	d.fields(list, p)
	d.close('}')
}

// blob shows small blocks in hex and large ones by their SHA-256.
func (d *describer) blob(name string, p []byte) {
	const small = 64
	if len(p) <= small {
		d.text(name, hex.EncodeToString(p))
		return
	}
	sum := sha256.Sum256(p)
	d.text(name+"_sha256", hex.EncodeToString(sum[:]))
}

func (d *describer) extensions(block []byte) {
	if len(block) == 0 {
		return
	}
	d.open("control_extension_block", '[')
	for {
		e, rest, ok := NextExtension(block)
		if !ok {
			break
		}
		d.open("", '{')
		d.number("ext_type", uint64(e.Type))
		d.number("ext_flags", uint64(e.Flags))
		d.number("ext_len", uint64(len(e.Data)))
		d.blob("payload", e.Data)
		d.close('}')
		block = rest
	}
	d.close(']')
}

func (d *describer) tiles(x *TileIndex) {
	if len(x.Data) > 0 {
		d.blob("tile_index_block", x.Data)
	}
	d.open("tile_ids", '[')
	for _, id := range x.AppendIDs(nil) {
		d.number("", uint64(id))
	}
	d.close(']')
}

func (d *describer) sections(list []Section) {
	d.open("tensor_sections", '[')
	var w bodyWriter
	for i := range list {
		s := &list[i]
		w.b, w.off = w.b[:0], 0
		w.sections(list[i : i+1])
		d.open("", '{')
		d.fields(sectionFields, w.b)
		if len(s.CodecTable) > 0 {
			d.open("codec_table", '[')
			for _, c := range s.CodecTable {
				d.number("", uint64(c))
			}
			d.close(']')
		}
		d.open("length_table", '[')
		for k := range len(s.LengthTable) / 4 {
			d.number("", uint64(s.Length(k)))
		}
		d.close(']')
		d.blob("payload_blob", s.Payload)
		d.close('}')
	}
	d.close(']')
}

// Describe returns a message as one line of JSON with every field by its name in the specification; wire is the message's bytes, m what
// ParseMessage made of them, offset where they stand in their file. Secrets (auth_block) are left out, large blocks are shown by
// their SHA-256.
func Describe(offset int64, wire []byte, m Message) ([]byte, error) {
	t := m.Type()
	if len(wire) < HeaderLen+t.MetaLen() {
		return nil, fmt.Errorf("nnrp: describe %s: %w", t, ErrShort)
	}
	body := wire[HeaderLen+t.MetaLen():]
	d := &describer{}
	d.open("", '{')
	d.number("offset", uint64(offset))
	d.text("message", t.String())
	d.fields(headerFields, wire)
	if list := metaFields[t]; list != nil {
		d.object("metadata", list, wire[HeaderLen:])
	}
	switch m := m.(type) {
	case *ClientHello:
		d.extensions(m.Extensions)
	case *ServerHelloAck:
		d.extensions(m.Extensions)
	case *SessionPatch:
		d.clamp("tensor_profile_patch_block", m.ProfilePatch)
		d.extensions(m.Extensions)
	case *SessionPatchAck:
		d.clamp("tensor_profile_patch_ack_block", m.ProfilePatchAck)
		d.extensions(m.Extensions)
	case *Close:
		d.extensions(m.Extensions)
	case *ErrorMessage:
		d.text("error", m.Code.String())
		d.text("diagnostic", strings.ToValidUTF8(string(m.Diagnostic), string(utf8.RuneError)))
		d.extensions(m.Extensions)
	case *FrameSubmit:
		d.object("tensor_submit_block", tensorSubmitFields, body)
		if len(m.Camera) > 0 {
			d.blob("camera_block", m.Camera)
		}
		d.tiles(&m.TileIndex)
		d.sections(m.Sections)
	case *ResultPush:
		d.object("tensor_result_block", tensorResultFields, body)
		d.tiles(&m.TileIndex)
		d.sections(m.Sections)
	case *CachePut:
		d.blob("object", m.Object)
	case *CacheAck:
		d.extensions(m.Extensions)
	case *CacheInvalidate:
		d.extensions(m.Extensions)
	}
	d.close('}')
	return d.b, nil
}

func (d *describer) clamp(name string, p []byte) {
	switch {
	case len(p) == TensorClampLen:
		d.object(name, clampFields, p)
	case len(p) > 0:
		d.blob(name, p)
	}
}
