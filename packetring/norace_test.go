//go:build !race

package packetring

const raceEnabled = false
