//go:build cgo

package cudavmm

const allocsPerCall = 0.0
