package inference

import (
	"bytes"
	"fmt"

	"github.com/cfpipe/cfpipe/nnrp"
)

// TilerOptions configure a Tiler.
type TilerOptions struct {
	Format    Format
	Tile      int    // side of a tile in pixels; 0 = the whole picture is one tile
	Threshold int    // a tile has changed when its mean absolute difference, in bytes of the tensor, is above this; 0 = when any byte differs
	Latency   uint16 // latency_budget_ms; 0 = the session's
	Codecs    []nnrp.Codec
}

// Tiler makes FRAME_SUBMITs out of tensors. With tiles it sends what has changed against what the server is known to have: the tiles
// that differ from what was sent last, and those that were sent in frames that have had no result yet. It is not safe for use by
// several goroutines.
type Tiler struct {
	o       TilerOptions
	columns int
	rows    int
	tile    int      // bytes
	sent    []byte   // what every tile held when it was sent last, tile after tile
	in      []uint32 // the frame that was
	base    uint32   // newest frame that the server has, 0 = none

	m       nnrp.FrameSubmit
	ids     []uint32
	index   []byte
	payload []byte
	lengths []byte
	table   []byte
	one     []byte
	skip    int // frames that go uncompressed because it did not pay
}

// skipFrames is how long compression that saved less than a tenth is left alone.
const skipFrames = 30

// NewTiler checks the options.
func NewTiler(o TilerOptions) (*Tiler, error) {
	if err := o.Format.check(); err != nil {
		return nil, fmt.Errorf("infer: %w", err)
	}
	w, h := o.Format.Width, o.Format.Height
	if o.Tile > 0 {
		w, h = o.Tile, o.Tile
	}
	t := &Tiler{o: o, columns: (o.Format.Width + w - 1) / w, rows: (o.Format.Height + h - 1) / h, tile: w * h * o.Format.Channels * o.Format.DType.Size()}
	if t.columns*t.rows > 65535 {
		return nil, fmt.Errorf("infer: tiles of %d pixels make %d of them, 65535 can be sent", o.Tile, t.columns*t.rows)
	}
	t.m.ProfileID = nnrp.ProfileTensor
	t.m.LatencyBudgetMs = o.Latency
	t.m.Tensor = nnrp.TensorSubmit{SrcWidth: uint16(o.Format.Width), SrcHeight: uint16(o.Format.Height), TileWidth: uint16(w), TileHeight: uint16(h)}
	t.m.Sections = []nnrp.Section{{RoleID: 1, DType: o.Format.DType, Layout: o.Format.Layout, ElementCountPerTile: uint32(w * h * o.Format.Channels)}}
	if t.columns*t.rows > 1 {
		t.sent, t.in = make([]byte, t.columns*t.rows*t.tile), make([]uint32, t.columns*t.rows)
	}
	t.one = make([]byte, t.tile)
	return t, nil
}

// Reset makes the next frame a whole one: after a new session, or a cache_miss.
func (t *Tiler) Reset() { t.base = 0 }

// Has notes that the server has answered frame id: it has what that frame and those before it held.
func (t *Tiler) Has(id uint32) { t.base = max(t.base, id) }

// Frame returns the message for a tensor of Format.Size bytes, and how many tiles it holds; with 0 nothing has changed, and sending it
// is the caller's choice. The message is valid until the next call and refers to tensor; its ids must rise.
func (t *Tiler) Frame(id uint32, tensor []byte) (*nnrp.FrameSubmit, int, error) {
	if len(tensor) != t.o.Format.Size() {
		return nil, 0, fmt.Errorf("infer: tensor of %d bytes, want %d", len(tensor), t.o.Format.Size())
	}
	t.payload, t.lengths, t.table, t.ids = t.payload[:0], t.lengths[:0], t.table[:0], t.ids[:0]
	m := &t.m
	m.FrameClass, m.DependencyFrameID = nnrp.ClassKeyframe, 0
	whole := t.base == 0 || t.sent == nil
	if !whole {
		m.FrameClass, m.DependencyFrameID = nnrp.ClassDiscardable, t.base
	}
	compress := len(t.o.Codecs) > 0 && t.skip == 0
	if t.skip > 0 {
		t.skip--
	}
	s := &m.Sections[0]
	var plain int
	s.Payload = nil
	if t.sent == nil {
		tile := tensor
		if f := t.o.Format; f.Width != int(m.Tensor.TileWidth) || f.Height != int(m.Tensor.TileHeight) {
			t.cut(t.one, tensor, 0)
			tile = t.one
		}
		plain = t.tile
		t.ids = append(t.ids, 0)
		if compress {
			t.encode(tile, true)
		} else { // no need to copy
			t.lengths, s.Payload = nnrp.AppendLength(t.lengths, len(tile)), tile
		}
	} else {
		for i := range t.in {
			t.cut(t.one, tensor, i)
			old := t.sent[i*t.tile:][:t.tile]
			if !whole && t.in[i] <= t.base && !t.changed(old, t.one) {
				continue
			}
			copy(old, t.one)
			t.in[i] = id
			t.ids = append(t.ids, uint32(i))
			plain += t.tile
			t.encode(t.one, compress)
		}
	}
	if compress && 10*len(t.payload) > 9*plain {
		t.skip = skipFrames
	}
	var err error
	if m.TileIndex, err = nnrp.MakeTileIndex(nnrp.SmallestMode(t.ids), t.ids, t.index); err != nil {
		return nil, 0, err
	}
	t.index = m.TileIndex.Data
	s.Flags, s.CodecTable = 0, nil
	if compress {
		s.Flags, s.CodecTable = nnrp.SectionCodecTable, t.table
	}
	s.LengthTable = t.lengths
	if s.Payload == nil {
		s.Payload = t.payload
	}
	return m, len(t.ids), nil
}

// encode appends one tile.
func (t *Tiler) encode(tile []byte, compress bool) {
	codec, start := byte(nnrp.CodecRaw), len(t.payload)
	if compress {
		if out, ok := t.o.Codecs[0].Append(t.payload, tile); ok {
			t.payload, codec = out, t.o.Codecs[0].ID()
		}
		t.table = append(t.table, codec)
	}
	if codec == nnrp.CodecRaw {
		t.payload = append(t.payload[:start], tile...)
	}
	t.lengths = nnrp.AppendLength(t.lengths, len(t.payload)-start)
}

func (t *Tiler) changed(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return false
	}
	if t.o.Threshold == 0 {
		return true
	}
	sum := 0
	for i := range a {
		d := int(a[i]) - int(b[i])
		sum += max(d, -d)
	}
	return sum > t.o.Threshold*len(a)
}

// cut copies tile i out of the picture; what lies beyond the right and lower edge is zero.
func (t *Tiler) cut(dst, tensor []byte, i int) {
	f := t.o.Format
	tw, th := int(t.m.Tensor.TileWidth), int(t.m.Tensor.TileHeight)
	x, y := i%t.columns*tw, i/t.columns*th
	w, h := min(tw, f.Width-x), min(th, f.Height-y)
	if w < tw || h < th {
		clear(dst)
	}
	e, planes := f.DType.Size()*f.Channels, 1
	if f.Layout == nnrp.NCHW {
		e, planes = f.DType.Size(), f.Channels
	}
	for p := range planes {
		src, out := tensor[p*f.Width*f.Height*e:], dst[p*tw*th*e:]
		for row := range h {
			copy(out[row*tw*e:], src[((y+row)*f.Width+x)*e:][:w*e])
		}
	}
}

// Tiles returns how many tiles a whole picture has.
func (t *Tiler) Tiles() int { return t.columns * t.rows }
