package framering

import "slices"

// MagicV4 begins the frame SHM of protocol 4 and MagicLegacy that of protocols 1 to 3; MagicPackets begins a packet ring of any.
const (
	MagicV4      = 0xCC7C1DCE
	MagicLegacy  = 0xCC7C1DCC
	MagicPackets = 0xCC7C1DCD
)

// A dialect is what differs between the versions of the wire protocol. All that is not in this table is the same in every
// version: framing, header, slots, subscriber table, and every message but those switched here.
type dialect struct {
	version uint32 // proto_version in the header and in the messages
	magic   uint32 // of the frame SHM

	// noRing is the proto_version of a publisher without a packet ring, where it is another one (protocol 1 and 2, §10.1).
	noRing uint32
	// serves lists the versions of HELLO_REQ that a publisher takes, answers those of HELLO_RESP that a subscriber takes.
	serves, answers []uint32

	// vmmFDs: SUBSCRIBE_RESP is followed by VMM_FDS (§3.7), with which the handshake ends.
	vmmFDs bool
	// ipc: a slot's memory is named by the cudaIpcMemHandle_t in its descriptor, and the header holds the cudaIpcEventHandle_t that
	// frames are synchronised by.
	ipc bool
	// eventFD: EVENT_FD brings a subscriber the eventfd that is rung with each publish (protocol 1 and 2, §3.7).
	eventFD bool
	// subscribeFlags: the first of the 12 reserved bytes of HELLO_REQ are subscribe_flags, and HELLO_RESP may carry the
	// packet ring (§10.9). Elsewhere flags read as zero, which means frames alone.
	subscribeFlags bool
	// shortInitialSeq: SUBSCRIBE_RESP of 24 bytes with a 32-bit initial_seq is accepted as well.
	shortInitialSeq bool
	// noPackets answers a subscriber that wants packets where there is no packet ring.
	noPackets Code
}

var (
	protocol4 = dialect{
		version: 4, magic: MagicV4, serves: []uint32{4}, answers: []uint32{4},
		vmmFDs: true, subscribeFlags: true, noPackets: ErrNotFound,
	}
	// A publisher of protocol 2 serves subscribers of protocol 1 (frames alone), and is one of protocol 1 to everybody who looks as
	// long as it has no packet ring.
	protocol2 = dialect{
		version: 2, magic: MagicLegacy, noRing: 1, serves: []uint32{1, 2}, answers: []uint32{1, 2},
		ipc: true, eventFD: true, subscribeFlags: true, shortInitialSeq: true, noPackets: ErrNoPacketRing,
	}
	protocol1 = dialect{
		version: 1, magic: MagicLegacy, serves: []uint32{1}, answers: []uint32{1, 2},
		ipc: true, eventFD: true, shortInitialSeq: true, noPackets: ErrNoPacketRing,
	}
)

// dialects lists what this package speaks; the first one is the default.
var dialects = []*dialect{&protocol4, &protocol2, &protocol1}

// announced is the proto_version that a publisher writes into its header and its HELLO_RESP.
func (d *dialect) announced(packets bool) uint32 {
	if d.noRing != 0 && !packets {
		return d.noRing
	}
	return d.version
}

func (d *dialect) servesVersion(v uint32) bool  { return slices.Contains(d.serves, v) }
func (d *dialect) answersVersion(v uint32) bool { return slices.Contains(d.answers, v) }

// dialectFor returns the dialect of a protocol version (0 = the default), nil when there is none.
func dialectFor(version uint32) *dialect {
	if version == 0 {
		return dialects[0]
	}
	for _, d := range dialects {
		if d.version == version {
			return d
		}
	}
	return nil
}

// dialectOf returns the dialect of a frame SHM's magic and version, nil when there is none.
func dialectOf(magic, version uint32) *dialect {
	if d := dialectFor(version); d != nil && d.magic == magic && version != 0 {
		return d
	}
	return nil
}
