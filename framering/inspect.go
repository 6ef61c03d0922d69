package framering

// Header is a copy of the header of a frame SHM (§2.0).
type Header struct {
	Version          uint32
	LibVersion       [3]uint32
	ProducerPID      uint64
	RingSize         int // 0 = packet-only publisher
	OwnershipMode    Ownership
	Policy           Policy
	MaxSubscribers   uint64
	Meta             FrameMeta
	GlobalSeq        uint64
	SubscriberBitmap uint64
	ShutDown         bool
}

// SlotInfo is a copy of a slot descriptor (§2.2). Its fields were not read in one step.
type SlotInfo struct {
	Seq          uint64
	PTS          int64 // Unix ns
	AckBitmap    uint64
	WrittenBytes uint64
	Valid        bool // false: no frame, or one is being written
}

// SubscriberState is the state of an entry of the subscriber table (§2.3).
type SubscriberState uint64

// The states of a subscriber's bit.
const (
	SubscriberFree       SubscriberState = 0
	SubscriberConnecting SubscriberState = 1
	SubscriberActive     SubscriberState = 2
	SubscriberDraining   SubscriberState = 3
)

func (s SubscriberState) String() string {
	return nameOf(s, "state(%d)", "free", "connecting", "active", "draining")
}

// SubscriberSlot is a copy of an entry of the subscriber table (§2.3).
type SubscriberSlot struct {
	Bit         int
	State       SubscriberState
	PID         uint64 // 0 = in another PID namespace
	LastSeenSeq uint64 // of the frame ring
	LastAckNS   int64  // Unix ns; 0 = no ACK yet
	Name        string // printable
}

func (b *block) header() Header {
	meta := b.hdr.meta
	return Header{
		Version: b.hdr.protoVersion.Load(), LibVersion: b.hdr.libVersion, ProducerPID: b.hdr.producerPID, RingSize: len(b.slots),
		OwnershipMode: Ownership(b.hdr.ownershipMode), Policy: Policy(b.hdr.policy), MaxSubscribers: b.hdr.maxSubscribers,
		Meta: parseFrameMeta(&meta), GlobalSeq: b.hdr.globalSeq.Load(), SubscriberBitmap: b.hdr.bitmap.Load(),
		ShutDown: b.hdr.shutdownFlag.Load() != 0,
	}
}

func (b *block) slot(i int) SlotInfo {
	s := &b.slots[i]
	seq := s.seq.Load()
	return SlotInfo{
		Seq: seq, PTS: s.ptsNS.Load(), AckBitmap: s.ackBitmap.Load(), WrittenBytes: s.writtenBytes.Load(), Valid: seq != invalidSeq,
	}
}

func (b *block) subscriber(bit int) SubscriberSlot {
	s := &b.subs[bit]
	return SubscriberSlot{
		Bit: bit, State: SubscriberState(s.state.Load()), PID: s.consumerPID.Load(), LastSeenSeq: s.lastSeenSeq.Load(),
		LastAckNS: s.lastAckNS.Load(), Name: s.loadName(),
	}
}
