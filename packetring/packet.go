package packetring

import "strings"

// Flags of a packet (section 10.5).
type Flags uint32

const (
	FlagKey           Flags = 1 << iota // decoding can start here
	FlagCorrupt                         // damaged on its way to the publisher
	FlagDiscontinuity                   // something is missing in front of this packet
	FlagLastInAU                        // the access unit ends with this packet
)

func (f Flags) String() string {
	var s []string
	for i, name := range []string{"KEY", "CORRUPT", "DISCONTINUITY", "LAST_IN_AU"} {
		if f&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	return strings.Join(s, "|")
}

// Packet is one access unit, Annex B with parameter sets in front of keyframes where the codec is H.264 or H.265. Publishers other
// than this project's may put one NAL unit into each packet; FlagLastInAU ends the access unit then.
type Packet struct {
	Seq      uint64 // set by the writer: 1, 2, 3 …
	PTS, DTS int64  // Unix time in ns
	Flags    Flags
	Data     []byte
}
