//go:build race

package packetring

// raceEnabled: the race detector makes a step about thirty times as dear.
const raceEnabled = true
