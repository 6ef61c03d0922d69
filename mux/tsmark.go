package mux

import (
	"bytes"
	"io"
)

// tsPacket is the size of a packet of a transport stream.
const tsPacket = 188

// A transport stream has nothing by which a whole file could be told from one that was cut off. A recording has: its first packet says that
// the last one will say so. Both are null packets (PID 0x1FFF), which every reader of transport streams leaves out.
var (
	tsBegin = nullPacket("cfpipe: the end of this recording is marked")
	tsEnd   = nullPacket("cfpipe: the end of this recording")
)

func nullPacket(text string) []byte {
	b := append([]byte{0x47, 0x1F, 0xFF, 0x10}, text...)
	return append(b, bytes.Repeat([]byte{0xFF}, tsPacket-len(b))...)
}

// tsCut says whether a transport stream says of itself that it ought to have an end, and has none.
func tsCut(r io.ReaderAt, size int64) bool {
	var b [tsPacket]byte
	is := func(want []byte, at int64) bool {
		_, err := r.ReadAt(b[:], at)
		return (err == nil || err == io.EOF) && bytes.Equal(b[:], want)
	}
	return is(tsBegin, 0) && !is(tsEnd, size-tsPacket)
}
