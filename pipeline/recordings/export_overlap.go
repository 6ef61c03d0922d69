package recordings

import (
	"hash/maphash"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/mux"
)

const (
	// compared is how many access units of a file are looked for in the one that it overlaps.
	compared = 8
	// sameTime is more than the ticks of containers change the time of an access unit.
	sameTime = int64(3 * time.Millisecond)
)

// leaves returns the time (DTS) at which f is left for one of the later files, which overlaps it and goes on behind its end; 0 = f is read to its
// end, because none does, or because the one that does holds the same access units and goes on behind the last of them.
func (e *exporter) leaves(f File, later []File) int64 {
	for _, g := range later {
		if !g.Start.Before(f.End) {
			break
		}
		if g.End.After(f.End) {
			if at := e.switches(f, g); at != 0 {
				return at
			}
		}
	}
	return 0
}

// switches returns the time of the newest keyframe of g in front of the end of f; 0 where g holds what f does. What of the two cannot be read
// switches nothing: reading it for the output tells why.
func (e *exporter) switches(f, g File) int64 {
	b, err := e.open(g)
	if err != nil {
		return 0
	}
	defer b.Close()
	var units []unit
	for len(units) < compared {
		track, p, err := b.Next()
		if err != nil {
			break
		}
		if track == mux.VideoTrack {
			units = append(units, unit{p.PTS, p.DTS, maphash.Bytes(e.seed, p.Data)})
		}
	}
	if len(units) == 0 || e.holds(f, units) || b.SeekKey(f.End) != nil {
		return 0
	}
	for {
		track, p, err := b.Next()
		if err != nil {
			return 0
		}
		if track == mux.VideoTrack && p.Flags&media.FlagKey != 0 {
			return p.DTS
		}
	}
}

// holds says whether one of the access units is in a file.
func (e *exporter) holds(f File, units []unit) bool {
	a, err := e.open(f)
	if err != nil {
		return true
	}
	defer a.Close()
	if a.SeekKey(time.Unix(0, units[0].pts)) != nil {
		return true
	}
	for {
		track, p, err := a.Next()
		if err != nil || p.DTS > units[len(units)-1].pts+sameTime {
			return false
		}
		if track != mux.VideoTrack {
			continue
		}
		sum := maphash.Bytes(e.seed, p.Data)
		for _, u := range units {
			if d := u.pts - p.PTS; u.sum == sum && d > -sameTime && d < sameTime {
				return true
			}
		}
	}
}
