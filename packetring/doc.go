// Package packetring shares encoded access units between processes through a ring in /dev/shm: one writer, any number of readers,
// none of which can slow the writer or each other (cuframes protocol 2 and 4, section 10).
//
// The ring keeps the newest packets; a reader that falls behind loses whole packets, is told how many, and goes on at a keyframe.
// docs/packet-ring.md tells how another implementation reads and writes it; the byte table is in layout.go.
package packetring
