package pipeline

import (
	"fmt"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/packetring"
)

// ringView is what a recorder on events wants to know of a key's ring.
type ringView struct {
	reach  time.Duration // how far back it will reach when it is full, at the least: to its oldest keyframe; 0 = not known
	shift  time.Duration // the system's clock less the ring's, where the ring's is no Unix time
	remedy string        // how it can be made to reach back further
}

// viewRing looks at a ring without being its reader. A key that is not there is not known.
func viewRing(key string) ringView {
	s, err := packetring.Inspect(framering.PacketShmName(key))
	if err != nil {
		return ringView{}
	}
	return reachOf(s, time.Now())
}

// reachOf takes the rate of what the ring holds for that of what comes.
func reachOf(s packetring.Snapshot, now time.Time) (v ringView) {
	n := len(s.Packets)
	if n == 0 {
		return v
	}
	if newest := s.Packets[n-1].PTS; newest < notUnix {
		v.shift = time.Duration(now.UnixNano() - newest)
	}
	var bytes, gop, key int64
	for _, p := range s.Packets {
		bytes += int64(p.Size)
		if p.Flags&packetring.FlagKey != 0 {
			if key != 0 {
				gop = max(gop, p.DTS-key)
			}
			key = p.DTS
		}
	}
	span := float64(s.Packets[n-1].DTS - s.Packets[0].DTS)
	if span <= 0 || bytes == 0 {
		return v
	}
	bySlots := span * float64(s.Slots) / float64(n)
	byBytes := span * float64(s.DataSize) / float64(bytes)
	holds := min(bySlots, byBytes)
	switch {
	case gop > 0:
		v.reach = time.Duration(max(holds-float64(gop), 1))
	case s.Packets[0].Seq > 1: // full, and it holds no two keyframes
		v.reach = 1
	}
	switch {
	case byBytes < bySlots:
		v.remedy = fmt.Sprintf("give the ring more than its %d MiB: ingest --packet-bytes, in a site file packet_bytes", s.DataSize>>20)
	case s.Slots < packetring.MaxSlots:
		v.remedy = fmt.Sprintf("give the ring more than its %d slots: ingest --packet-slots, in a site file packet_slots", s.Slots)
	default:
		v.remedy = fmt.Sprintf("a ring holds %d access units at most: shorten --pre, or let the camera send fewer a second", packetring.MaxSlots)
	}
	return v
}
