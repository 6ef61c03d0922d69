package pipeline

import (
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/packetring"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// ringView is what a recorder wants to know of a key's ring that is to remember the time before it.
type ringView struct {
	reach  time.Duration // how far back it will reach when it is full, at the least: to its oldest keyframe; 0 = not known
	shift  time.Duration // the system's clock less the ring's, where the ring's is no Unix time
	age    time.Duration // of a ring that holds all that was published in it; 0 = it has passed something on
	oldest time.Time     // its oldest keyframe, by the system's clock; zero = it holds none

	slots, bytes       int     // what it is made of
	unitRate, byteRate float64 // what comes in a second, as far as the ring shows it; 0 = not known
	keyframeInterval   time.Duration
}

// late says why what begins does not begin pre before now, as it should.
func (v ringView) late(what string, pre time.Duration) string {
	switch {
	case v.age > 0:
		return fmt.Sprintf("%s begins late: the ring is %v old, nothing was published before", what, v.age.Round(time.Second))
	case v.unitRate == 0:
		return what + " begins late: the camera was not published before"
	}
	return what + " begins late: the ring did not reach back as far as --pre; " + v.remedy(pre)
}

// remedy says how the ring can be made to reach back by pre.
func (v ringView) remedy(pre time.Duration) string {
	const spare = 1.1 // what comes is not always as much
	seconds := (pre + v.keyframeInterval).Seconds() * spare
	slots, mebibytes := math.Ceil(v.unitRate*seconds), math.Ceil(v.byteRate*seconds/(1<<20))
	if slots > packetring.MaxSlots {
		return fmt.Sprintf("a ring holds %d access units at most, %.0fs of this camera: shorten --pre, or let the camera send fewer a second",
			packetring.MaxSlots, packetring.MaxSlots/v.unitRate)
	}
	var more []string
	if mebibytes*(1<<20) > float64(v.bytes) {
		more = append(more, fmt.Sprintf("--packet-bytes %.0fMiB", mebibytes))
	}
	if slots > float64(v.slots) {
		more = append(more, fmt.Sprintf("--packet-slots %.0f", slots))
	}
	if len(more) == 0 {
		more = []string{fmt.Sprintf("--packet-bytes above %d", v.bytes), fmt.Sprintf("--packet-slots above %d", v.slots)}
	}
	return "give the ring more room: ingest " + strings.Join(more, " ") + " (in a site file packet_bytes, packet_slots)"
}

// note says what an event that begins now and is to begin at start will lack; "" = nothing.
func (v ringView) note(start time.Time, pre time.Duration) string {
	switch late := v.oldest.Sub(start); {
	case v.oldest.IsZero():
		return "nothing is published now: the event begins with what comes"
	case late > 0:
		return fmt.Sprintf("%s (%v)", v.late("the event", pre), late.Round(100*time.Millisecond))
	}
	return ""
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
	v.slots, v.bytes = s.Slots, s.DataSize
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
			if v.oldest.IsZero() {
				v.oldest = time.Unix(0, p.PTS).Add(v.shift)
			}
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
	seconds := span / float64(time.Second)
	v.unitRate, v.byteRate, v.keyframeInterval = float64(n)/seconds, float64(bytes)/seconds, time.Duration(gop)
	holds := min(float64(s.Slots)/v.unitRate, float64(s.DataSize)/v.byteRate) * float64(time.Second)
	switch {
	case gop > 0:
		v.reach = time.Duration(max(holds-float64(gop), 1))
	case s.Packets[0].Seq > 1: // full, and it holds no two keyframes
		v.reach = 1
	}
	return v
}

// lookBack tells how far the ring reaches back, once that is known, and warns when Pre is longer.
func (r *recorder) lookBack() {
	v := viewRing(r.o.Key)
	if v.reach == 0 {
		return
	}
	pre, reach := slog.Duration("pre", r.o.Pre), slog.Duration("ring_reaches_back", v.reach.Round(100*time.Millisecond))
	short := v.reach < r.o.Pre
	switch {
	case short && !r.on.short:
		r.log.Warn("the ring does not reach back as far as --pre: events will begin late; "+v.remedy(r.o.Pre), pre, reach)
	case !short && !r.on.reach:
		what := "the ring reaches back far enough"
		if v.age > 0 && v.age < r.o.Pre {
			what = "the ring will reach back far enough once it has been filled"
		}
		r.log.Info(what, pre, reach)
	}
	r.on.reach, r.on.short = true, short
}

// lookPace is when to look back next: soon as long as the ring has not shown how far it reaches.
func (r *recorder) lookPace() time.Duration {
	if r.on.reach {
		return reachPace
	}
	return firstReachPace
}

// handle answers a trigger, with what the event that it begins will lack.
func (r *recorder) handle(q trigger.Request, now time.Time) trigger.Answer {
	a := r.on.plan.Handle(q, now)
	if a.State == trigger.Started {
		a.Note = viewRing(r.o.Key).note(a.Event.Start, r.o.Pre)
	}
	return a
}

// beginsLate warns where a recording that runs all the time begins later than Pre asks for, with its first picture, because the ring has
// passed on what lay before. A ring that holds all that was ever published in it could not have more.
func (r *recorder) beginsLate(first item, asked time.Time) {
	v := viewRing(r.o.Key)
	if late := time.Unix(0, first.PTS).Sub(asked); late > 0 && v.age == 0 && v.shift == 0 && v.unitRate > 0 {
		r.log.Warn(v.late("the recording", r.o.Pre), "pre", r.o.Pre, "late", late.Round(time.Millisecond))
	}
}
