// Package framering is the control plane of a cuframes key and the layout of its frame ring: the control socket, the
// handshake, the subscriber table in shared memory, liveness and takeover.
//
// A publisher claims a key ([NewPublisher]), says what it has (a packet ring, frame memory, or both) and serves the control
// socket ([Publisher.Serve]). A subscriber dials the socket ([Dial]) and learns where the rings are; the data then never
// passes through the socket, which stays open so that each side sees the other's end.
//
// The package knows neither codecs nor CUDA: frame memory is file descriptors and a granularity ([Memory]), packet
// rings are paths. Section numbers in comments (§) are those of the cuframes wire protocol, version 4,
// unless they name another. Versions 2 and 1 differ in what dialect.go lists; their frames are in frames_ipc.go, their wake-ups in bells.go.
package framering
