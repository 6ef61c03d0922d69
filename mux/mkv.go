package mux

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// The elements of Matroska that are read or written here (RFC 9559).
const (
	mkvHead      = 0x1A45DFA3 // the EBML header
	mkvSegment   = 0x18538067
	mkvCluster   = 0x1F43B675
	mkvCRC       = 0xBF
	mkvTimestamp = 0xE7 // of a cluster: its first element but for the checksum

	mkvSeekHead     = 0x114D9B74
	mkvSeek         = 0x4DBB
	mkvSeekID       = 0x53AB
	mkvSeekPosition = 0x53AC
	mkvCues         = 0x1C53BB6B

	mkvTags      = 0x1254C367
	mkvTag       = 0x7373
	mkvTargets   = 0x63C0
	mkvSimpleTag = 0x67C8
	mkvTagName   = 0x45A3
	mkvTagString = 0x4487
)

// element reads the head of an element: its id, the length of its body, -1 where it is not known, and its own; 0 = there is none.
func element(b []byte) (id uint32, length int64, skip int) {
	idBytes := vint(b)
	if idBytes == 0 || idBytes > 4 {
		return 0, 0, 0
	}
	for _, c := range b[:idBytes] {
		id = id<<8 | uint32(c)
	}
	n := vint(b[idBytes:])
	if n == 0 {
		return 0, 0, 0
	}
	v := uint64(b[idBytes]) & (0xFF >> n)
	for _, c := range b[idBytes+1 : idBytes+n] {
		v = v<<8 | uint64(c)
	}
	if v == 1<<(7*n)-1 {
		return id, -1, idBytes + n
	}
	return id, int64(v), idBytes + n
}

// vint returns how many bytes a number of variable length has; 0 = it is none, or cut off.
func vint(b []byte) int {
	if len(b) == 0 || b[0] == 0 {
		return 0
	}
	n := bits.LeadingZeros8(b[0]) + 1
	if n > len(b) {
		return 0
	}
	return n
}

// mkvElement writes an element of less than 16 KiB.
func mkvElement(id uint32, body []byte) []byte {
	b := bytes.TrimLeft(binary.BigEndian.AppendUint32(nil, id), "\x00")
	return append(binary.BigEndian.AppendUint16(b, 0x4000|uint16(len(body))), body...)
}

// mkvChild finds an element by its path.
func mkvChild(b []byte, path ...uint32) []byte {
	for _, want := range path {
		for {
			id, length, skip := element(b)
			if skip == 0 || length < 0 || length > int64(len(b)-skip) {
				return nil
			}
			body := b[skip : skip+int(length)]
			if id == want {
				b = body
				break
			}
			b = b[skip+int(length):]
		}
	}
	return b
}
