package rtsp

import (
	"github.com/bluenviron/mediacommon/v2/pkg/codecs/jpeg"
)

// jpegDepacketizer makes JPEGs of RTP payloads (RFC 2435): the headers are not sent, they are made from what the first packet
// says. A picture with a part missing is dropped: every picture stands alone, and half of one helps nobody.
type jpegDepacketizer struct {
	max     int
	out     func(unit)
	dropped func()

	buf    []byte
	u      unit
	open   bool
	next   int // offset in the picture of the part that must come next
	tables [][]byte
	gap    bool
}

func (a *jpegDepacketizer) packet(p *rtpPacket, lost bool) {
	if lost {
		a.gap, a.open = true, false
	}
	b := p.payload
	if len(b) < 8 {
		a.open, a.gap = false, true
		return
	}
	offset := int(b[1])<<16 | int(b[2])<<8 | int(b[3])
	typ, q := b[4], b[5]
	width, height := int(b[6])*8, int(b[7])*8
	b = b[8:]
	restart := 0
	if typ >= 64 && typ < 128 {
		if len(b) < 4 {
			a.open, a.gap = false, true
			return
		}
		restart = int(b[0])<<8 | int(b[1])
		b = b[4:]
	}
	if offset == 0 {
		if b = a.quantizers(q, b); b == nil {
			a.open, a.gap = false, true
			return
		}
		a.open, a.next = true, 0
		a.u = unit{time: p.time, at: p.at, key: true, idr: true}
		a.buf = jpegHeader(a.buf[:0], typ&63, width, height, restart, a.tables)
	}
	if !a.open || offset != a.next || p.time != a.u.time || len(a.buf)+len(b)+2 > a.max {
		if a.open && len(a.buf)+len(b)+2 > a.max {
			a.dropped()
		}
		a.open, a.gap = false, true
		return
	}
	a.buf = append(a.buf, b...)
	a.next += len(b)
	if !p.marker {
		return
	}
	a.open = false
	if n := len(a.buf); a.buf[n-2] != 0xFF || a.buf[n-1] != 0xD9 {
		a.buf = append(a.buf, 0xFF, 0xD9)
	}
	a.u.data = a.buf
	a.u.gap, a.gap = a.gap, false
	a.out(a.u)
}

// quantizers sets the tables of Q and returns what follows the table header, nil when it is malformed or no table is known.
func (a *jpegDepacketizer) quantizers(q byte, b []byte) []byte {
	switch {
	case q >= 1 && q <= 99:
		a.tables = quantizersOf(int(q))
		return b
	case q < 128 || len(b) < 4:
		return nil
	}
	n := int(b[2])<<8 | int(b[3])
	precision := b[1]
	b = b[4:]
	if n > len(b) {
		return nil
	}
	if n > 0 { // 0: those of the last picture with this Q
		if precision != 0 || n%64 != 0 || n > 256 {
			return nil
		}
		a.tables = nil
		for i := 0; i < n; i += 64 {
			a.tables = append(a.tables, append([]byte{}, b[i:i+64]...))
		}
	}
	if len(a.tables) == 0 {
		return nil
	}
	return b[n:]
}

// quantizersOf scales the example tables of the JPEG standard (annex K), in zigzag order (RFC 2435, appendix A).
func quantizersOf(q int) [][]byte {
	scale := 200 - 2*q
	if q < 50 {
		scale = 5000 / q
	}
	tables := make([][]byte, 2)
	for i, base := range [2][64]byte{lumaQuantizer, chromaQuantizer} {
		tables[i] = make([]byte, 64)
		for j, v := range base {
			tables[i][j] = byte(max(1, min(255, (int(v)*scale+50)/100)))
		}
	}
	return tables
}

func jpegHeader(b []byte, typ byte, width, height, restart int, tables [][]byte) []byte {
	b = jpeg.StartOfImage{}.Marshal(b)
	var dqt jpeg.DefineQuantizationTable
	for i, t := range tables {
		dqt.Tables = append(dqt.Tables, jpeg.QuantizationTable{ID: uint8(i), Data: t})
	}
	b = dqt.Marshal(b)
	if restart > 0 {
		b = append(b, 0xFF, 0xDD, 0, 4, byte(restart>>8), byte(restart))
	}
	b = jpeg.StartOfFrame1{Type: typ, Width: width, Height: height, QuantizationTableCount: uint8(len(tables))}.Marshal(b)
	for i, h := range [4]struct{ codes, symbols []byte }{
		{lumaDCCodes[:], dcSymbols[:]}, {lumaACCodes[:], lumaACSymbols[:]},
		{chromaDCCodes[:], dcSymbols[:]}, {chromaACCodes[:], chromaACSymbols[:]},
	} {
		b = jpeg.DefineHuffmanTable{Codes: h.codes, Symbols: h.symbols, TableNumber: i / 2, TableClass: i % 2}.Marshal(b)
	}
	return jpeg.StartOfScan{}.Marshal(b)
}

// Tables of ITU-T T.81, annex K: what RFC 2435 senders use and do not send.
var (
	lumaQuantizer = [64]byte{
		16, 11, 12, 14, 12, 10, 16, 14, 13, 14, 18, 17, 16, 19, 24, 40, 26, 24, 22, 22, 24, 49, 35, 37, 29, 40, 58, 51, 61, 60, 57, 51,
		56, 55, 64, 72, 92, 78, 64, 68, 87, 69, 55, 56, 80, 109, 81, 87, 95, 98, 103, 104, 103, 62, 77, 113, 121, 112, 100, 120, 92, 101, 103, 99,
	}
	chromaQuantizer = [64]byte{
		17, 18, 18, 24, 21, 24, 47, 26, 26, 47, 99, 66, 56, 66, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
		99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
	}
	lumaDCCodes   = [16]byte{0, 1, 5, 1, 1, 1, 1, 1, 1}
	chromaDCCodes = [16]byte{0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	dcSymbols     = [12]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	lumaACCodes   = [16]byte{0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d}
	chromaACCodes = [16]byte{0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77}
	lumaACSymbols = [162]byte{
		0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22, 0x71, 0x14, 0x32, 0x81,
		0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0, 0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0a, 0x16, 0x17, 0x18,
		0x19, 0x1a, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
		0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75,
		0x76, 0x77, 0x78, 0x79, 0x7a, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
		0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3,
		0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5,
		0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
	}
	chromaACSymbols = [162]byte{
		0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13, 0x22, 0x32, 0x81, 0x08,
		0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0, 0x15, 0x62, 0x72, 0xd1, 0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25,
		0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47,
		0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74,
		0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97,
		0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba,
		0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe2, 0xe3, 0xe4,
		0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
	}
)
