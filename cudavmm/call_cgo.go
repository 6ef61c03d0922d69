//go:build cgo

package cudavmm

// #include <stdint.h>
// static int32_t call(uintptr_t f, uintptr_t a, uintptr_t b, uintptr_t c) {
//   return ((int32_t (*)(uintptr_t, uintptr_t, uintptr_t))f)(a, b, c);
// }
import "C"

// call calls the driver's function at an address with up to three arguments, pointers or integers of 32 bits and more. A function of
// fewer does not look at the rest. It allocates nothing.
func call(address, a, b, c uintptr) result {
	return result(C.call(C.uintptr_t(address), C.uintptr_t(a), C.uintptr_t(b), C.uintptr_t(c)))
}
