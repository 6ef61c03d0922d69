package inference

import (
	"encoding/binary"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Control extensions of this project, in the vendor range. None is CRITICAL: peers that do not know them lose nothing but comfort.
const (
	// ExtModelName, both ways: UTF-8. The client asks for a model, the server names the one it runs.
	ExtModelName = 0x8001
	// ExtModelInput, server to client: width u32, height u32, channels u16, dtype_id u8, layout_id u8, max_batch u16, reserved u16;
	// 0 = any. One entry for each dtype and layout that is taken, the best first.
	ExtModelInput = 0x8002
	// ExtModelOutput, server to client, one for each section of a result: role_id u16, dtype_id u8, rank u8, rank × dimension i32
	// (-1 = varies), then the name in UTF-8.
	ExtModelOutput = 0x8003
)

const modelInputLen = 16

// appendModel adds the extensions that describe an engine.
func appendModel(b []byte, s *Spec) []byte {
	b = nnrp.AppendExtension(b, nnrp.Extension{Type: ExtModelName, Data: []byte(s.Name)})
	for _, d := range s.DTypes {
		for _, l := range s.Layouts {
			p := binary.LittleEndian.AppendUint32(nil, uint32(s.Width))
			p = binary.LittleEndian.AppendUint32(p, uint32(s.Height))
			p = binary.LittleEndian.AppendUint16(p, uint16(s.Channels))
			p = append(p, byte(d), byte(l))
			p = binary.LittleEndian.AppendUint16(p, uint16(s.MaxBatch))
			b = nnrp.AppendExtension(b, nnrp.Extension{Type: ExtModelInput, Data: append(p, 0, 0)})
		}
	}
	for _, o := range s.Outputs {
		p := binary.LittleEndian.AppendUint16(nil, o.Role)
		p = append(p, byte(o.DType), byte(len(o.Shape)))
		for _, n := range o.Shape {
			p = binary.LittleEndian.AppendUint32(p, uint32(int32(n)))
		}
		b = nnrp.AppendExtension(b, nnrp.Extension{Type: ExtModelOutput, Data: append(p, o.Name...)})
	}
	return b
}

// maxOutputs bounds what a server can make a client hold.
const maxOutputs = 64

// ParseModel reads what a server says about its engine; entries that make no sense are ignored. Without any, Name is empty and every
// number 0.
func ParseModel(extensions []byte) Spec {
	var s Spec
	for block := extensions; ; {
		e, rest, ok := nnrp.NextExtension(block)
		if !ok {
			return s
		}
		block = rest
		switch e.Type {
		case ExtModelName:
			s.Name = string(e.Data)
		case ExtModelInput:
			if len(e.Data) < modelInputLen {
				continue
			}
			s.Width, s.Height = int(binary.LittleEndian.Uint32(e.Data)), int(binary.LittleEndian.Uint32(e.Data[4:]))
			s.Channels = int(binary.LittleEndian.Uint16(e.Data[8:]))
			s.MaxBatch = int(binary.LittleEndian.Uint16(e.Data[12:]))
			if d := nnrp.DType(e.Data[10]); d.Size() > 0 && bitmap(s.DTypes)>>d&1 == 0 {
				s.DTypes = append(s.DTypes, d)
			}
			if l := nnrp.Layout(e.Data[11]); l <= nnrp.NCHW && bitmap(s.Layouts)>>l&1 == 0 {
				s.Layouts = append(s.Layouts, l)
			}
		case ExtModelOutput:
			if len(s.Outputs) == maxOutputs || len(e.Data) < 4 || len(e.Data) < 4+4*int(e.Data[3]) {
				continue
			}
			o := Output{Role: binary.LittleEndian.Uint16(e.Data), DType: nnrp.DType(e.Data[2])}
			rank := int(e.Data[3])
			for i := range rank {
				o.Shape = append(o.Shape, int64(int32(binary.LittleEndian.Uint32(e.Data[4+4*i:]))))
			}
			o.Name = string(e.Data[4+4*rank:])
			s.Outputs = append(s.Outputs, o)
		}
	}
}

// modelName returns the model that a client asks for, "" for any.
func modelName(extensions []byte) string {
	for {
		e, rest, ok := nnrp.NextExtension(extensions)
		if !ok {
			return ""
		}
		if e.Type == ExtModelName {
			return string(e.Data)
		}
		extensions = rest
	}
}
