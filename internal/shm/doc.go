// Package shm is the operating system layer of the rings: named segments in /dev/shm and memfds, the locks that tell whether their
// owner lives, futex waiting and waking, memory barriers, faults turned into errors, and file descriptors over Unix sockets.
//
// It is the only package that uses golang.org/x/sys/unix and assembly. It runs on Linux, amd64 and arm64 (both little-endian, as
// the wire formats are).
package shm
