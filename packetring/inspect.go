package packetring

import (
	"fmt"
	"slices"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Snapshot is what Inspect finds in a ring.
type Snapshot struct {
	Info
	Name            string // relative to /dev/shm
	Alive           bool   // its writer holds the lock, or is foreign and maps the ring
	ShutDown        bool
	GlobalSeq       uint64
	LastKeyframeSeq uint64
	WriteOffset     uint64
	Packets         []Meta // those that are still whole, in order
}

// Meta describes a packet in the ring.
type Meta struct {
	Seq      uint64
	PTS, DTS int64
	Flags    Flags
	Offset   uint64 // cursor of its first byte in the data
	Size     int
}

// Inspect reads the header and the slots of a ring, no payload. Its writer and readers do not notice. Errors: those of Open, ErrFault.
func Inspect(path string) (Snapshot, error) {
	seg, err := shm.Open(path, shm.OpenOptions{ReadOnly: true, MinSize: headerSize})
	if err != nil {
		return Snapshot{}, fmt.Errorf("inspect packet ring: %w", err)
	}
	defer seg.Close()
	s := Snapshot{Name: seg.Name()}
	head := make([]byte, 0x40)
	guarded := shm.Guard(func() {
		var r ring
		if r, err = openRing(seg.Bytes()); err == nil {
			s.read(&r)
		}
		copy(head, seg.Bytes())
	})
	if guarded != nil {
		err = guarded
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("inspect packet ring %s: %w", seg.Name(), err)
	}
	s.Alive = shm.Locked(seg) || foreignAlive(seg.Name(), head)
	return s, nil
}

func (s *Snapshot) read(r *ring) {
	h := r.hdr
	s.Info = Info{
		CodecID: h.codecID.Load(), Extradata: r.extradata(), Slots: len(r.slots), DataSize: len(r.data), Protocol: h.version.Load(),
		ProducerPID: int(min(h.producerPID.Load(), 1<<31-1)),
	}
	s.ShutDown = h.shutdown.Load() != 0
	s.LastKeyframeSeq = h.lastKeyframe.Load()
	s.GlobalSeq = r.newest()
	for seq := r.oldest(s.GlobalSeq); seq <= s.GlobalSeq; seq++ {
		x := r.at(seq)
		if x.seq.Load() != seq {
			continue // being written
		}
		d := description{pts: x.pts.Load(), dts: x.dts.Load(), offset: x.offset.Load(), size: x.size.Load(), flags: x.flags.Load()}
		if x.seq.Load() != seq || !r.whole(d, h.writeOffset.Load(), 0) {
			continue // overwritten meanwhile, or its data is
		}
		s.Packets = append(s.Packets, Meta{
			Seq: seq, PTS: d.pts, DTS: d.dts, Flags: Flags(d.flags), Offset: d.offset, Size: int(d.size),
		})
	}
	s.WriteOffset = h.writeOffset.Load()
	s.Packets = slices.Clip(s.Packets)
}
