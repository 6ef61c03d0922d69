// Package nearest finds the name that was probably meant by one that is not known.
package nearest

import "strings"

// maxGiven bounds what is compared: longer than any name there is.
const maxGiven = 100

// Name returns the name that was probably meant, "" when none is near.
func Name(given string, names []string) string {
	if len(given) > maxGiven {
		return ""
	}
	best, least := "", max(len(given)/3, 1)+1
	for _, n := range names {
		if len(given) > 2 && strings.HasPrefix(n, given) {
			return n
		}
		if d := distance(given, n); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance is the number of letters to insert, remove, replace or swap with their neighbour (optimal string alignment).
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
