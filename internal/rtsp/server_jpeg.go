package rtsp

import (
	"bytes"
	"errors"
	"fmt"
)

// jpegPayloader: RFC 2435. What its receivers rebuild for themselves is not sent: markers, and the Huffman tables, which are the
// example tables of the JPEG standard. Quantisers go in front of every picture (Q = 255).
type jpegPayloader struct {
	head    [8 + 4 + 4 + 4*64]byte // main, restart and quantiser headers, quantisers
	picture jpegPicture
}

// jpegPicture is what RFC 2435 sends of a picture.
type jpegPicture struct {
	typ           byte // 0: 4:2:2, 1: 4:2:0
	width, height int
	restart       int
	tables        [4][]byte // quantisers by id
	used          [2]byte   // ids of the luma's and the chroma's
	scan          []byte    // entropy-coded data
}

var errNoJPEG = errors.New("not a JPEG that RTP can carry")

// jpegDCs and jpegACs are the Huffman tables that receivers assume: counts of codes by length, then symbols.
var (
	jpegDCs = [2][]byte{append(lumaDCCodes[:], dcSymbols[:]...), append(chromaDCCodes[:], dcSymbols[:]...)}
	jpegACs = [2][]byte{append(lumaACCodes[:], lumaACSymbols[:]...), append(chromaACCodes[:], chromaACSymbols[:]...)}
)

// parse reads the segments in front of the scan.
func (p *jpegPicture) parse(b []byte) error {
	*p = jpegPicture{}
	if len(b) < 4 || b[0] != 0xFF || b[1] != 0xD8 {
		return errNoJPEG
	}
	b = b[2:]
	for len(b) >= 4 {
		if b[0] != 0xFF {
			return errNoJPEG
		}
		if b[1] == 0xFF { // fill byte
			b = b[1:]
			continue
		}
		marker, n := b[1], int(b[2])<<8|int(b[3])
		if n < 2 || n+2 > len(b) {
			return errNoJPEG
		}
		segment := b[4 : 2+n]
		b = b[2+n:]
		switch {
		case marker == 0xDA:
			if end := len(b); end >= 2 && b[end-2] == 0xFF && b[end-1] == 0xD9 {
				b = b[:end-2]
			}
			p.scan = b
			return p.check()
		case marker == 0xDB:
			if err := p.quantisers(segment); err != nil {
				return err
			}
		case marker == 0xC4:
			if err := standardHuffman(segment); err != nil {
				return err
			}
		case marker == 0xDD && len(segment) >= 2:
			p.restart = int(segment[0])<<8 | int(segment[1])
		case marker == 0xC0 || marker == 0xC1:
			if err := p.frame(segment); err != nil {
				return err
			}
		case marker >= 0xC2 && marker <= 0xCF:
			return fmt.Errorf("%w: not baseline", errNoJPEG)
		}
	}
	return errNoJPEG
}

func (p *jpegPicture) quantisers(b []byte) error {
	for ; len(b) >= 65; b = b[65:] {
		if b[0] > 3 { // 16-bit tables, or an id that does not exist
			return fmt.Errorf("%w: quantisers of 16 bits", errNoJPEG)
		}
		p.tables[b[0]] = b[1:65]
	}
	return nil
}

// frame takes the frame header: three components, the chroma halved in width or in both directions.
func (p *jpegPicture) frame(b []byte) error {
	if len(b) < 15 || b[0] != 8 || b[5] != 3 {
		return fmt.Errorf("%w: not three components of 8 bits", errNoJPEG)
	}
	p.height, p.width = int(b[1])<<8|int(b[2]), int(b[3])<<8|int(b[4])
	switch luma, cb, cr := b[7], b[10], b[13]; {
	case luma == 0x21 && cb == 0x11 && cr == 0x11:
		p.typ = 0
	case luma == 0x22 && cb == 0x11 && cr == 0x11:
		p.typ = 1
	default:
		return fmt.Errorf("%w: chroma is neither 4:2:2 nor 4:2:0", errNoJPEG)
	}
	if b[8] > 3 || b[11] > 3 || b[11] != b[14] {
		return fmt.Errorf("%w: quantisers", errNoJPEG)
	}
	p.used = [2]byte{b[8], b[11]}
	return nil
}

func (p *jpegPicture) check() error {
	const most = 255 * 8
	switch {
	case p.width == 0 || p.height == 0 || len(p.scan) == 0 || len(p.scan) >= 1<<24:
		return errNoJPEG
	case p.width > most || p.height > most:
		return fmt.Errorf("%w: %dx%d is larger than %dx%d", errNoJPEG, p.width, p.height, most, most)
	case p.tables[p.used[0]] == nil || p.tables[p.used[1]] == nil:
		return fmt.Errorf("%w: quantisers are missing", errNoJPEG)
	}
	return nil
}

// standardHuffman checks that receivers, who are not sent the tables, have them.
func standardHuffman(b []byte) error {
	for len(b) >= 17 {
		n := 17
		for _, c := range b[1:17] {
			n += int(c)
		}
		if n > len(b) {
			return errNoJPEG
		}
		table, known := b[1:n], jpegDCs[:]
		if b[0]>>4 != 0 {
			known = jpegACs[:]
		}
		if id := b[0] & 0x0F; id > 1 || !bytes.Equal(table, known[id]) {
			return fmt.Errorf("%w: it has Huffman tables of its own", errNoJPEG)
		}
		b = b[n:]
	}
	return nil
}

func (p *jpegPayloader) payloads(unit []byte, out rtpSink) error {
	j := &p.picture
	if err := j.parse(unit); err != nil {
		return err
	}
	h := append(p.head[:0], 0, 0, 0, 0, j.typ, 255, byte((j.width+7)/8), byte((j.height+7)/8))
	if j.restart > 0 {
		h[4] |= 64
		h = append(h, byte(j.restart>>8), byte(j.restart), 0xFF, 0xFF) // a packet may begin anywhere in the scan
	}
	short := len(h)
	h = append(h, 0, 0, 0, 128)
	h = append(h, j.tables[j.used[0]]...)
	h = append(h, j.tables[j.used[1]]...)
	for offset := 0; offset < len(j.scan); h = h[:short] {
		h[1], h[2], h[3] = byte(offset>>16), byte(offset>>8), byte(offset)
		part := j.scan[offset:min(len(j.scan), offset+maxRTPPayload-len(h))]
		offset += len(part)
		out.payload(h, part, offset == len(j.scan), 0)
	}
	return nil
}
