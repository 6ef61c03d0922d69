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
	age    time.Duration // of a ring that holds all that was published in it; 0 = it has passed something on
	remedy string        // how it can be made to reach back further
}

// late says why an event does not begin as long before its trigger as it should.
func (v ringView) late() string {
	switch {
	case v.age > 0:
		return fmt.Sprintf("the event begins late: the ring is %v old, nothing was published before", v.age.Round(time.Second))
	case v.remedy == "":
		return "the event begins late: the camera was not published before"
	}
	return "the event begins late: the ring did not reach back as far as --pre; " + v.remedy
}

// viewRing looks at a ring without being its reader. Of a key that is not there, or whose publisher is dead, nothing is known.
func viewRing(key string) ringView {
	s, err := packetring.Inspect(framering.PacketShmName(key))
	if err != nil || !s.Alive {
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
	if s.Packets[0].Seq <= 1 {
		v.age = max(time.Duration(now.UnixNano()-s.Packets[0].PTS)-v.shift, 1)
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
