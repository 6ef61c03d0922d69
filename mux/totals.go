package mux

// Totals are the access units of video that a Segmenter was given since it began. What waits for the end of its fragment is in none
// of the counts; in front of the first keyframe nothing counts.
type Totals struct {
	Kept    uint64 // in files, up to the end of a fragment
	Dropped uint64 // not in a file: the disk did not take them
	Newest  int64  // PTS (Unix ns) of the newest one kept; 0 = none yet
}

// Totals returns the totals. None of them ever goes back.
func (s *Segmenter) Totals() Totals { return s.totals }

// drop counts access units that are in no file.
func (s *Segmenter) drop(n int) {
	s.lost += uint64(n)
	s.totals.Dropped += uint64(n)
}

// keep counts the first n access units of the open file as safe.
func (s *Segmenter) keep(n int, newest int64) {
	s.totals.Kept += uint64(max(n-s.packets, 0))
	s.packets = n
	s.totals.Newest = max(s.totals.Newest, newest)
}
