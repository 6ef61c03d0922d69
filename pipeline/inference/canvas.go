package inference

import (
	"github.com/cfpipe/cfpipe/nnrp"
)

// canvas is the newest whole picture of a view, put together from the tiles that came.
//
// A frame that holds every tile starts it anew. A frame with some of the tiles names in dependency_frame_id a frame that the canvas has
// taken in; its tiles are all that changed since then, so they may go on top of any later state as well. When that frame is not known
// here, the answer is cache_miss, and the client sends a whole picture.
type canvas struct {
	g       geometry
	tileW   int
	tileH   int
	pixels  []byte
	applied [canvasHistory]uint32 // ids of the frames taken in since the last whole one
	count   int
}

// canvasHistory is how far a client may look back: a client that gets no result for so many frames starts anew.
const canvasHistory = 256

func (c *canvas) knows(id uint32) bool {
	for _, a := range c.applied[:min(c.count, canvasHistory)] {
		if a == id {
			return true
		}
	}
	return false
}

func (c *canvas) note(id uint32) {
	c.applied[c.count%canvasHistory] = id
	c.count++
}

// forget makes the next frame a whole one.
func (c *canvas) forget() { c.pixels, c.count = nil, 0 }

// apply takes a frame in.
func (c *canvas) apply(id uint32, m *nnrp.FrameSubmit, g geometry, ids []uint32, codecs []nnrp.Codec, scratch []byte) ([]byte, error) {
	columns, rows := m.Tensor.Grid()
	size := g.width * g.height * g.channels * g.dtype.Size()
	whole := len(ids) == columns*rows
	if !whole {
		if c.pixels == nil || c.g != g || c.tileW != int(m.Tensor.TileWidth) || c.tileH != int(m.Tensor.TileHeight) || !c.knows(m.DependencyFrameID) {
			return scratch, nnrp.NewError(nnrp.CodeCacheMiss, "frame %d holds %d of %d tiles and depends on frame %d, which is not here",
				id, len(ids), columns*rows, m.DependencyFrameID)
		}
	} else {
		c.g, c.tileW, c.tileH, c.count = g, int(m.Tensor.TileWidth), int(m.Tensor.TileHeight), 0
		if cap(c.pixels) < size {
			c.pixels = make([]byte, size)
		}
		c.pixels = c.pixels[:size]
	}
	scratch, err := forTiles(&m.Sections[0], codecs, scratch, func(i int, tile []byte) { c.place(int(ids[i]), columns, tile) })
	if err != nil {
		c.forget() // half a frame is in
		return scratch, err
	}
	c.note(id)
	return scratch, nil
}

// forTiles decodes the tiles one by one.
func forTiles(s *nnrp.Section, codecs []nnrp.Codec, scratch []byte, f func(i int, tile []byte)) ([]byte, error) {
	n := int(s.TileBytes())
	if cap(scratch) < n {
		scratch = make([]byte, n)
	}
	scratch = scratch[:n]
	cursor := s.Tiles()
	for i := 0; ; i++ {
		codec, data, ok := cursor.Next()
		if !ok {
			return scratch, nil
		}
		tile := data
		if codec != nnrp.CodecRaw || len(data) != n {
			tile = scratch
			if err := nnrp.DecodeTile(tile, codec, data, codecs); err != nil {
				e := nnrp.NewError(nnrp.CodeMalformedBody, "tile %d: %s", i, err)
				e.Scope = nnrp.ScopeFrame
				return scratch, e
			}
		}
		f(i, tile)
	}
}

// place copies a tile to its position; what lies beyond the picture's right and lower edge is padding.
func (c *canvas) place(id, columns int, tile []byte) {
	x, y := id%columns*c.tileW, id/columns*c.tileH
	w, h := min(c.tileW, c.g.width-x), min(c.tileH, c.g.height-y)
	e := c.g.dtype.Size()
	if c.g.layout == nnrp.NHWC {
		e *= c.g.channels
		for row := range h {
			copy(c.pixels[((y+row)*c.g.width+x)*e:][:w*e], tile[row*c.tileW*e:])
		}
		return
	}
	for ch := range c.g.channels {
		plane, from := c.pixels[ch*c.g.width*c.g.height*e:], tile[ch*c.tileW*c.tileH*e:]
		for row := range h {
			copy(plane[((y+row)*c.g.width+x)*e:][:w*e], from[row*c.tileW*e:])
		}
	}
}
