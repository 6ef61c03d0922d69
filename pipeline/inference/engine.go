// Package inference is the NNRP runtime: engines behind one interface, a scheduler that shares an engine between sessions, and the
// server that puts both on the network. It also holds what a client needs to turn pictures into tensors.
package inference

import (
	"fmt"

	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/session"
)

// Engine turns pictures into results. Infer is called by one goroutine at a time for any one view, and by as many at a time as the
// scheduler has workers.
type Engine interface {
	Spec() Spec
	// Infer runs a batch of 1 to Spec().MaxBatch items. It fills in each item's Result, or its Err; the error that it returns itself
	// concerns all of them. It blocks until the batch is done.
	Infer(items []*Item) error
	Close() error
}

// Spec says what an engine takes and gives.
type Spec struct {
	Name     string // of the model, for logs and for clients that ask for one
	Width    int    // pixels; 0 = any
	Height   int
	Channels int // 0 = 1 or 3
	DTypes   []nnrp.DType
	Layouts  []nnrp.Layout
	MaxBatch int // 1 = no batch axis
	Tiled    bool
	Workers  int // batches at a time that make sense; 0 = 1
	Outputs  []Output
}

// Output names a tensor of a result: section role_id Role.
type Output struct {
	Role  uint16
	Name  string
	DType nnrp.DType
	Shape []int64 // without the batch axis; -1 = varies
}

// Item is one frame on its way through an engine.
type Item struct {
	Submit *nnrp.FrameSubmit
	View   *View

	// Picture is the whole picture in the frame's dtype and layout, with the tiles of this frame in their places. Not for engines whose
	// Spec is Tiled: those get the decoded tiles one after another in Tiles.
	Picture []byte
	Tiles   []byte
	IDs     []uint32 // tile ids of the frame

	Result nnrp.ResultPush
	Err    *nnrp.Error

	frame *session.Frame
}

// View is what the runtime remembers of one lane of one session between frames.
type View struct {
	Data any // the engine's

	canvas canvas
	last   uint32 // newest frame that was worked on
}

// geometry describes a frame's tensor for comparisons and messages.
type geometry struct {
	width, height, channels int
	dtype                   nnrp.DType
	layout                  nnrp.Layout
}

func (g geometry) String() string {
	return fmt.Sprintf("%s %s %s×%s×%s", g.dtype, g.layout, orAny(g.width), orAny(g.height), orAny(g.channels))
}

func orAny(n int) string {
	if n == 0 {
		return "any"
	}
	return fmt.Sprint(n)
}

// frameGeometry reads a frame's geometry: one section, whose tiles are tile_width × tile_height pixels of some channels.
func frameGeometry(m *nnrp.FrameSubmit) (geometry, error) {
	if len(m.Sections) != 1 {
		return geometry{}, nnrp.NewError(nnrp.CodeUnsupportedCapability, "%d tensor sections, this engine takes one", len(m.Sections))
	}
	s, t := &m.Sections[0], &m.Tensor
	g := geometry{width: int(t.SrcWidth), height: int(t.SrcHeight), dtype: s.DType, layout: s.Layout}
	pixels := int64(t.TileWidth) * int64(t.TileHeight)
	if pixels == 0 || int64(s.ElementCountPerTile)%pixels != 0 || s.ElementCountPerTile == 0 {
		e := nnrp.NewError(nnrp.CodeMalformedBody, "element_count_per_tile %d is no multiple of the tile's %d pixels", s.ElementCountPerTile, pixels)
		e.Scope = nnrp.ScopeFrame
		return g, e
	}
	g.channels = int(int64(s.ElementCountPerTile) / pixels)
	return g, nil
}

// check answers unsupported_capability, with both sides named, when the engine does not take such a tensor.
func (s *Spec) check(g geometry) error {
	ok := (s.Width == 0 || s.Width == g.width) && (s.Height == 0 || s.Height == g.height)
	switch s.Channels {
	case 0:
		ok = ok && (g.channels == 1 || g.channels == 3)
	default:
		ok = ok && s.Channels == g.channels
	}
	ok = ok && bitmap(s.DTypes)>>g.dtype&1 != 0 && bitmap(s.Layouts)>>g.layout&1 != 0
	if ok {
		return nil
	}
	return nnrp.NewError(nnrp.CodeUnsupportedCapability, "tensor is %s, %s takes %s", g, s.Name, s)
}

// String describes the input: "fp32 nchw 640×640×3".
func (s *Spec) String() string {
	var text string
	for i, d := range s.DTypes {
		if i > 0 {
			text += "|"
		}
		text += d.String()
	}
	text += " "
	for i, l := range s.Layouts {
		if i > 0 {
			text += "|"
		}
		text += l.String()
	}
	channels := orAny(s.Channels)
	if s.Channels == 0 {
		channels = "1|3"
	}
	return fmt.Sprintf("%s %s×%s×%s", text, orAny(s.Width), orAny(s.Height), channels)
}

func bitmap[T nnrp.DType | nnrp.Layout](ids []T) uint32 {
	var m uint32
	for _, id := range ids {
		m |= 1 << id
	}
	return m
}
