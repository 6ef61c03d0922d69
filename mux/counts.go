package mux

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// Counts are what only the recorder of a file knows without reading all of it, which a finished recording says at its end: in Tags of
// Matroska, in a uuid box of MP4, in a null packet of a transport stream. Players leave out all three.
type Counts struct {
	Packets   int   // access units of video
	Keyframes int   // of them
	Lost      int64 // access units that were published and are in no file, in front of this one and in it
}

// unknownCounts are those of a file that does not say, or says what cannot be.
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

// encode writes the counts as the end of a file of a format has them; nil = it has no place for them.
func (c Counts) encode(f Format) []byte {
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
func readCounts(text string, size int64) (c Counts) {
	if len(text) > maxCounts {
		return unknownCounts
	}
	if _, err := fmt.Sscanf(text, countsText, &c.Packets, &c.Keyframes, &c.Lost); err != nil {
		return unknownCounts
	}
	if c.Keyframes < 0 || c.Keyframes > c.Packets || int64(c.Packets) > size || c.Lost < 0 {
		return unknownCounts
	}
	return c
}

// tsCountsOf reads the counts of a transport stream whose end is marked.
func tsCountsOf(r io.ReaderAt, size int64) Counts {
	var b [2 * tsPacket]byte
	if n, _ := r.ReadAt(b[:], max(size-int64(len(b)), 0)); n < len(b) || !bytes.Equal(b[tsPacket:], tsEnd) {
		return unknownCounts
	}
	head := nullPacket(tsCounts)[:4+len(tsCounts)]
	text, found := bytes.CutPrefix(bytes.TrimRight(b[:tsPacket], "\xff"), head)
	if !found {
		return unknownCounts
	}
	return readCounts(string(text), size)
}

// mp4Counts reads the counts in the body of a uuid box.
func mp4Counts(body []byte, size int64) Counts {
	text, found := bytes.CutPrefix(body, countsBox[:])
	if !found {
		return unknownCounts
	}
	return readCounts(string(text), size)
}

// mkvCountsOf reads the counts of a Matroska file: they stand in front of its cues, but for a cluster of one piece of sound that the muxer
// may have kept back, and its first bytes say where these are.
func mkvCountsOf(r io.ReaderAt, size int64) Counts {
	b := make([]byte, 1<<10)
	n, _ := r.ReadAt(b, 0)
	b = b[:n]
	_, length, skip := element(b) // the EBML header
	if skip == 0 || length < 0 || length > int64(n-skip) {
		return unknownCounts
	}
	at := skip + int(length)
	id, _, skip := element(b[at:])
	if id != mkvSegment {
		return unknownCounts
	}
	at += skip
	cues := mkvCuesAt(mkvChild(b[at:], mkvSeekHead))
	if cues <= 0 || cues >= uint64(size) {
		return unknownCounts
	}
	end := int64(at) + int64(cues)
	from := max(end-mkvCountsWithin, int64(at))
	tail := make([]byte, max(end-from, 0))
	if n, _ := r.ReadAt(tail, from); n < len(tail) {
		return unknownCounts
	}
	i := bytes.LastIndex(tail, binary.BigEndian.AppendUint32(nil, mkvTags))
	if i < 0 {
		return unknownCounts
	}
	simple := mkvChild(tail[i:], mkvTags, mkvTag, mkvSimpleTag)
	if string(mkvChild(simple, mkvTagName)) != mkvCountsName {
		return unknownCounts
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
