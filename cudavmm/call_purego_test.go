//go:build !cgo

package cudavmm

const allocsPerCall = 2.0
