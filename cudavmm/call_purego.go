//go:build !cgo

package cudavmm

import "github.com/ebitengine/purego"

// call is that of builds with cgo, for those without; each call costs purego two small allocations.
func call(address, a, b, c uintptr) result {
	r, _, _ := purego.SyscallN(address, a, b, c)
	return result(r)
}
