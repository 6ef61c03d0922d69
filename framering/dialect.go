package framering

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

	// vmmFDs: SUBSCRIBE_RESP is followed by VMM_FDS (§3.7), with which the handshake ends.
	vmmFDs bool
	// subscribeFlags: the first of the 12 reserved bytes of HELLO_REQ are subscribe_flags, and HELLO_RESP may carry the
	// packet ring (§10.9). Elsewhere flags read as zero, which means frames alone.
	subscribeFlags bool
	// shortInitialSeq: SUBSCRIBE_RESP of 24 bytes with a 32-bit initial_seq is accepted as well.
	shortInitialSeq bool
	// noPackets answers a subscriber that wants packets where there is no packet ring.
	noPackets Code
}

var protocol4 = dialect{version: 4, magic: MagicV4, vmmFDs: true, subscribeFlags: true, noPackets: ErrNotFound}

// dialects lists what this package speaks; the first one is the default.
var dialects = []*dialect{&protocol4}

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
