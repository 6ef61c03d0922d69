package media

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Flags of a packet. The bits are those of a packet ring's slot (spec v4 §10.5).
type Flags uint32

// Packet flags.
const (
	FlagKey           Flags = 1 << iota // decoding can start here
	FlagCorrupt                         // something of this access unit was lost on the way
	FlagDiscontinuity                   // there was a gap, or time stepped, in front of this packet
	FlagLastInAU                        // the packet ends an access unit (sources always set it: a packet is an access unit)
)

// Packet is one access unit of video or one frame of audio.
type Packet struct {
	PTS, DTS int64 // Unix time, ns
	Flags    Flags
	// Data is valid until the call that hands the packet over returns. H.264 and H.265: Annex B with 4-byte start codes and the
	// parameter sets in front of every keyframe. AV1: a temporal unit of OBUs with size fields, without temporal delimiter.
	// MJPEG: a JPEG. Audio: one frame (AAC without ADTS header), or the samples of one RTP packet.
	Data []byte
}

// Sink takes what a source delivers. A source calls it from one goroutine at a time.
type Sink interface {
	// Tracks is called before the first packet, and again when a track's description has changed: parameter sets learned from
	// the stream, another picture size, another codec after a reconnect. Tracks keep their index while a connection lasts.
	// Extradata is empty as long as the source does not know it; it is known before the track's first packet.
	Tracks(tracks []Track) error
	// Packet hands over one packet of tracks[track]. An error ends the source's Run with that error.
	Packet(track int, p Packet) error
}

// Source delivers one connection's worth of media: Run connects, feeds the sink and returns nil at the end of the input, the
// context's error when cancelled, else what went wrong. Run may be called again to reconnect.
type Source interface {
	Run(ctx context.Context, sink Sink) error
}

// ErrUnsupported marks errors that trying again cannot mend: an unknown scheme, no track of a known codec.
var ErrUnsupported = errors.New("not supported")

// ErrLogin marks a refused user name or password. Trying again soon does harm: cameras lock accounts. It Is os.ErrPermission.
var ErrLogin = fmt.Errorf("login refused: %w", os.ErrPermission)
