package inference

import (
	"fmt"
	"slices"

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
	o    TilerOptions
	grid tileGrid
	tile int      // bytes
	sent []byte   // a tensor: what every tile held when it was sent last; nil where the picture is one tile
	in   []uint32 // the frame that was
	base uint32   // newest frame that the server has, 0 = none

	m       nnrp.FrameSubmit
	sums    []int
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
	t := &Tiler{o: o, grid: newTileGrid(o.Format, w, h), tile: w * h * o.Format.Channels * o.Format.DType.Size()}
	if t.Tiles() > 65535 {
		return nil, fmt.Errorf("infer: tiles of %d pixels make %d of them, 65535 can be sent", o.Tile, t.Tiles())
	}
	t.m.ProfileID = nnrp.ProfileTensor
	t.m.LatencyBudgetMs = o.Latency
	t.m.Tensor = nnrp.TensorSubmit{SrcWidth: uint16(o.Format.Width), SrcHeight: uint16(o.Format.Height), TileWidth: uint16(w), TileHeight: uint16(h)}
	t.m.Sections = []nnrp.Section{{RoleID: 1, DType: o.Format.DType, Layout: o.Format.Layout, ElementCountPerTile: uint32(w * h * o.Format.Channels)}}
	if t.Tiles() > 1 {
		t.sent, t.in, t.sums = make([]byte, o.Format.Size()), make([]uint32, t.Tiles()), make([]int, t.grid.columns)
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
		plain = t.tile
		t.ids = append(t.ids, 0)
		switch {
		case t.tile != len(tensor): // the tile is larger than the picture
			t.encode(tensor, 0, compress)
		case compress:
			t.compress(tensor)
		default: // no need to copy
			t.lengths, s.Payload = nnrp.AppendLength(t.lengths, len(tensor)), tensor
		}
	} else {
		for row := range t.grid.rows {
			t.changed(id, tensor, row, whole)
		}
		for _, i := range t.ids {
			plain += t.tile
			t.encode(tensor, int(i), compress)
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

// changed adds the tiles of a row that must go out, and notes that they do.
func (t *Tiler) changed(id uint32, tensor []byte, row int, whole bool) {
	limit := t.o.Threshold * t.tile
	if !whole {
		t.grid.compare(t.sums, tensor, t.sent, row, limit)
	}
	for column := range t.grid.columns {
		i := row*t.grid.columns + column
		if whole || t.in[i] > t.base || t.sums[column] > limit {
			t.grid.move(t.sent, tensor, row, column)
			t.in[i] = id
			t.ids = append(t.ids, uint32(i))
		}
	}
}

// encode appends one tile.
func (t *Tiler) encode(tensor []byte, i int, compress bool) {
	row, column := i/t.grid.columns, i%t.grid.columns
	if compress {
		t.grid.cut(t.one, tensor, row, column)
		t.compress(t.one)
		return
	}
	start := len(t.payload)
	t.payload = slices.Grow(t.payload, t.tile)[:start+t.tile]
	t.grid.cut(t.payload[start:], tensor, row, column)
	t.lengths = nnrp.AppendLength(t.lengths, t.tile)
}

// compress appends one tile as the codec makes it, or as it is where that is shorter.
func (t *Tiler) compress(tile []byte) {
	start, codec := len(t.payload), t.o.Codecs[0]
	out, ok := codec.Append(t.payload, tile)
	if ok {
		t.payload, t.table = out, append(t.table, codec.ID())
	} else {
		t.payload, t.table = append(t.payload[:start], tile...), append(t.table, nnrp.CodecRaw)
	}
	t.lengths = nnrp.AppendLength(t.lengths, len(t.payload)-start)
}

// Tiles returns how many tiles a whole picture has.
func (t *Tiler) Tiles() int { return t.grid.columns * t.grid.rows }
