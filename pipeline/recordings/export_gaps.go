package recordings

import "time"

const (
	// smallestGap is the least time without pictures that is told of: between two files of one recording there is none.
	smallestGap = 250 * time.Millisecond
	// inFlight is how far a file that is being written may be behind: what its recorder holds is no gap.
	inFlight = 5 * time.Second
)

// Gap is a time of which there is no picture.
type Gap struct {
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	LeftOut bool      `json:"left_out"` // something is recorded there, and is not in the export
}

// Gaps finds the times between files, sorted by time, of one key.
func Gaps(list []File) (gaps []Gap) {
	var end time.Time
	for _, f := range list {
		if !end.IsZero() && f.Start.Sub(end) > smallestGap {
			gaps = append(gaps, Gap{From: end, To: f.Start})
		}
		if f.End.After(end) {
			end = f.End
		}
	}
	return gaps
}

// missing completes the gaps of an export: those at the ends of the span that was asked for, and which of them are recorded.
func (e *exporter) missing(files []File) {
	gaps := e.done.Gaps
	if e.done.Start.Sub(e.o.From) > smallestGap {
		gaps = append([]Gap{{From: e.o.From.UTC(), To: e.done.Start}}, gaps...)
	}
	late := smallestGap
	for _, f := range files {
		if f.Open && time.Since(e.done.End) < inFlight {
			late = inFlight
		}
	}
	if e.o.To.Sub(e.done.End) > late {
		gaps = append(gaps, Gap{From: e.done.End, To: e.o.To.UTC()})
	}
	e.done.Gaps = []Gap{}
	for _, g := range gaps {
		e.done.Gaps = append(e.done.Gaps, g.split(files)...)
	}
}

// split tells what of a gap files, sorted by time, hold from what nothing does.
func (g Gap) split(files []File) (parts []Gap) {
	at := g.From
	add := func(to time.Time, leftOut bool) {
		n := len(parts)
		switch {
		case to.Sub(at) <= smallestGap: // the times of files are known to some pictures
			return
		case n > 0 && parts[n-1].LeftOut == leftOut:
			parts[n-1].To = to
		default:
			parts = append(parts, Gap{at, to, leftOut})
		}
		at = to
	}
	for _, f := range files {
		from, to := f.Start, f.End
		if from.Before(at) {
			from = at
		}
		if to.After(g.To) {
			to = g.To
		}
		if to.Sub(from) > smallestGap {
			add(from, false)
			add(to, true)
		}
	}
	add(g.To, false)
	if len(parts) == 0 {
		return []Gap{g}
	}
	parts[len(parts)-1].To = g.To
	return parts
}
