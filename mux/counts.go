package mux

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Counts are what only the recorder of a file knows without reading all of it, which a finished recording says at its end: in Tags of Matroska, in a
// uuid box of MP4, in a null packet of a transport stream. Players leave out all three.
type Counts struct {
	Packets   int   // access units of video
	Keyframes int   // of them
	Lost      int64 // access units that were published and are in no file, in front of this one and in it
}

// unknownCounts are those of a file that does not say.
var unknownCounts = Counts{-1, -1, -1}

const (
	countsText = "packets=%d keyframes=%d lost=%d"
	// maxCounts bounds what is read of it: three numbers of 19 digits, with room for the elements around them.
	maxCounts = 160
	// mkvCountsWithin is how far in front of the cues it may stand.
	mkvCountsWithin = 64 << 10
	// mkvCountsName is the name of the tag that has it.
	mkvCountsName = "CFPIPE_COUNTS"
	// tsCounts stands in front of it in its null packet, the last but one.
	tsCounts = "cfpipe: "
)

// countsBox is the type of the box that has it.
var countsBox = [16]byte{0x2b, 0x94, 0xc1, 0x0e, 0x63, 0x7d, 0x4f, 0x5a, 0x9d, 0x11, 0x63, 0x66, 0x70, 0x69, 0x70, 0x65}

// element writes the counts as the end of a file of a format has them; nil = it has no place for them.
func (c Counts) element(f Format) []byte {
	text := fmt.Sprintf(countsText, c.Packets, c.Keyframes, c.Lost)
	switch f {
	case FMP4, MP4:
		b := binary.BigEndian.AppendUint32(nil, uint32(8+len(countsBox)+len(text)))
		return append(append(append(b, "uuid"...), countsBox[:]...), text...)
	case MKV:
		simple := append(mkvElement(mkvTagName, []byte(mkvCountsName)), mkvElement(mkvTagString, []byte(text))...)
		return mkvElement(mkvTags, mkvElement(mkvTag, append(mkvElement(mkvTargets, nil), mkvElement(mkvSimpleTag, simple)...)))
	case TS:
		return nullPacket(tsCounts + text)
	}
	return nil
}

// readCounts reads them back. What no recorder would say of a file of so many bytes is not believed.
func readCounts(text string, size int64) (c Counts, ok bool) {
	var written Counts
	if len(text) > maxCounts {
		return unknownCounts, false
	}
	if _, err := fmt.Sscanf(text, countsText, &written.Packets, &written.Keyframes, &written.Lost); err != nil {
		return unknownCounts, false
	}
	if written.Keyframes < 0 || written.Keyframes > written.Packets || int64(written.Packets) > size || written.Lost < 0 {
		return unknownCounts, false
	}
	return written, true
}

// tsCountsOf reads the counts of a transport stream whose end is marked.
func tsCountsOf(r io.ReaderAt, size int64) (Counts, bool) {
	var b [2 * tsPacket]byte
	if n, _ := r.ReadAt(b[:], max(size-int64(len(b)), 0)); n < len(b) || !bytes.Equal(b[tsPacket:], tsEnd) {
		return unknownCounts, false
	}
	head := nullPacket(tsCounts)[:4+len(tsCounts)]
	text, found := bytes.CutPrefix(bytes.TrimRight(b[:tsPacket], "\xff"), head)
	if !found {
		return unknownCounts, false
	}
	return readCounts(string(text), size)
}

// mp4Counts reads the counts in the body of a uuid box.
func mp4Counts(body []byte, size int64) (Counts, bool) {
	text, found := bytes.CutPrefix(body, countsBox[:])
	if !found {
		return unknownCounts, false
	}
	return readCounts(string(text), size)
}

// The elements of Matroska around the counts (RFC 9559).
const (
	mkvSeekHead     = 0x114D9B74
	mkvSeek         = 0x4DBB
	mkvSeekID       = 0x53AB
	mkvSeekPosition = 0x53AC
	mkvCues         = 0x1C53BB6B
	mkvTags         = 0x1254C367
	mkvTag          = 0x7373
	mkvTargets      = 0x63C0
	mkvSimpleTag    = 0x67C8
	mkvTagName      = 0x45A3
	mkvTagString    = 0x4487
)

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

// mkvCountsOf reads the counts of a Matroska file: they stand in front of its cues, but for a cluster of one piece of sound that the muxer may have kept
// back, and its first bytes say where these are.
func mkvCountsOf(r io.ReaderAt, size int64) (Counts, bool) {
	b := make([]byte, 1<<10)
	n, _ := r.ReadAt(b, 0)
	b = b[:n]
	_, length, skip := element(b) // the EBML header
	if skip == 0 || length < 0 || length > int64(n-skip) {
		return unknownCounts, false
	}
	at := skip + int(length)
	id, _, skip := element(b[at:])
	if id != mkvSegment {
		return unknownCounts, false
	}
	at += skip
	cues := mkvCuesAt(mkvChild(b[at:], mkvSeekHead))
	if cues <= 0 || cues >= uint64(size) {
		return unknownCounts, false
	}
	end := int64(at) + int64(cues)
	from := max(end-mkvCountsWithin, int64(at))
	tail := make([]byte, max(end-from, 0))
	if n, _ := r.ReadAt(tail, from); n < len(tail) {
		return unknownCounts, false
	}
	i := bytes.LastIndex(tail, binary.BigEndian.AppendUint32(nil, mkvTags))
	if i < 0 {
		return unknownCounts, false
	}
	simple := mkvChild(tail[i:], mkvTags, mkvTag, mkvSimpleTag)
	if string(mkvChild(simple, mkvTagName)) != mkvCountsName {
		return unknownCounts, false
	}
	return readCounts(string(mkvChild(simple, mkvTagString)), size)
}

// mkvCuesAt returns where the cues are, from the beginning of the segment's body; 0 = it is not said.
func mkvCuesAt(seekHead []byte) (at uint64) {
	for len(seekHead) > 0 {
		_, length, skip := element(seekHead)
		if skip == 0 || length < 0 || length > int64(len(seekHead)-skip) {
			return 0
		}
		one := seekHead[:skip+int(length)]
		seekHead = seekHead[len(one):]
		id, position := mkvChild(one, mkvSeek, mkvSeekID), mkvChild(one, mkvSeek, mkvSeekPosition)
		if !bytes.Equal(id, binary.BigEndian.AppendUint32(nil, mkvCues)) || len(position) > 8 {
			continue
		}
		for _, c := range position {
			at = at<<8 | uint64(c)
		}
		return at
	}
	return 0
}
