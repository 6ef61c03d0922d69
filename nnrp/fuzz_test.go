package nnrp

import (
	"bytes"
	"errors"
	"testing"
)

// FuzzMessage: what a parser accepts comes back byte for byte; what it refuses is an *Error or ErrShort.
func FuzzMessage(f *testing.F) {
	for _, c := range golden {
		f.Add(hx(c.bytes), goldenLimits(c.msg).SDK)
	}
	f.Fuzz(func(t *testing.T, b []byte, sdk bool) {
		l := &Limits{SDK: sdk}
		h, m, n, err := ParseMessage(b, l)
		if err != nil {
			checkRefusal(t, err, len(b))
			return
		}
		roundTrip(t, h, m, b[:n], l)
	})
}

// FuzzBody reaches further: every input is metadata and body of a message of a known type whose header fits.
func FuzzBody(f *testing.F) {
	for _, c := range golden {
		f.Add(uint8(c.msg.Type()), hx(c.bytes)[HeaderLen:], goldenLimits(c.msg).SDK)
	}
	f.Fuzz(func(t *testing.T, typ uint8, payload []byte, sdk bool) {
		m := NewMessage(MsgType(typ))
		if m == nil || len(payload) < m.Type().MetaLen() {
			return
		}
		l := &Limits{SDK: sdk}
		h := Header{Type: m.Type(), MetaLen: uint32(m.Type().MetaLen()), BodyLen: uint32(len(payload) - m.Type().MetaLen())}
		wire := append(h.Append(nil), payload...)
		if err := m.Parse(&h, payload, l); err != nil {
			checkRefusal(t, err, len(wire))
			return
		}
		roundTrip(t, h, m, wire, l)
	})
}

// FuzzMutate changes bytes of a valid message in place and cuts it.
func FuzzMutate(f *testing.F) {
	for i := range golden {
		f.Add(uint8(i), uint16(40), uint32(0xffffffff), uint16(0))
		f.Add(uint8(i), uint16(72), uint32(1), uint16(1))
	}
	f.Fuzz(func(t *testing.T, which uint8, at uint16, value uint32, cut uint16) {
		c := golden[int(which)%len(golden)]
		b := hx(c.bytes)
		if int(at)+4 <= len(b) {
			le.PutUint32(b[at:], value)
		}
		b = b[:len(b)-int(cut)%len(b)]
		l := goldenLimits(c.msg)
		h, m, n, err := ParseMessage(b, l)
		if err != nil {
			checkRefusal(t, err, len(b))
			return
		}
		roundTrip(t, h, m, b[:n], l)
	})
}

func checkRefusal(t *testing.T, err error, size int) {
	t.Helper()
	var e *Error
	if errors.Is(err, ErrShort) {
		return
	}
	if !errors.As(err, &e) {
		t.Fatalf("refused with %T %v", err, err)
	}
	if e.Offset < 0 || e.Offset > int64(size) {
		t.Fatalf("offset %d of %v lies outside the %d bytes", e.Offset, err, size)
	}
}

func roundTrip(t *testing.T, h Header, m Message, want []byte, l *Limits) {
	t.Helper()
	got, err := m.Append(nil, h)
	if err != nil {
		t.Fatalf("parsed, but not encoded: %v", err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("parsed and encoded differ:\n%x\n%x", want, got)
	}
	switch m := m.(type) {
	case *FrameSubmit:
		if ids := m.TileIndex.AppendIDs(nil); len(ids) != int(m.TileIndex.Count) {
			t.Fatalf("%d ids of %d tiles", len(ids), m.TileIndex.Count)
		}
		walk(t, m.Sections, int(m.TileIndex.Count))
	case *ResultPush:
		walk(t, m.Sections, int(m.TileIndex.Count))
	case *ClientHello:
		for block := m.Extensions; len(block) > 0; {
			_, rest, ok := NextExtension(block)
			if !ok {
				t.Fatal("accepted extensions cannot be walked")
			}
			block = rest
		}
	}
	_, _, _, err = ParseMessage(got, l)
	if err != nil {
		t.Fatalf("encoded, but not parsed: %v", err)
	}
}

func walk(t *testing.T, sections []Section, tiles int) {
	t.Helper()
	for i := range sections {
		c, n := sections[i].Tiles(), 0
		for {
			if _, _, ok := c.Next(); !ok {
				break
			}
			n++
		}
		if n != tiles {
			t.Fatalf("section %d: %d tiles of %d", i, n, tiles)
		}
	}
}
