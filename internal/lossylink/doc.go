// Package lossylink makes network paths with delay and loss, for benchmarks and tests.
package lossylink

import (
	"errors"
	"time"
)

// ErrUnavailable: this process may not make network namespaces or TUN devices.
var ErrUnavailable = errors.New("lossylink: no network namespaces here")

// Addresses of the two ends.
const (
	AddrA = "10.255.77.1"
	AddrB = "10.255.77.2"
)

// Options describe the path.
type Options struct {
	OneWay time.Duration // each direction
	Loss   float64       // 0 to 1, each packet on its own
	Rate   float64       // bytes a second each direction; 0 = no limit. Link alone
	Queue  int           // packets under way a direction; more are lost; 0 = 1000
	Seed   uint64        // of the losses
}

// delayed is a packet on its way.
type delayed struct {
	due time.Time
	b   []byte
}
