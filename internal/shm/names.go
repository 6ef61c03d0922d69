package shm

import (
	"fmt"
	"path"
	"strings"
)

// Dir is where segments live. Tests point it at a tmpfs of their own; nothing else changes it.
var Dir = "/dev/shm"

// Prefix begins the name of every segment.
const Prefix = "cuframes-"

// MaxKey is the longest key in bytes (cuframes §1).
const MaxKey = 63

// ValidKey tells whether key matches ^[a-zA-Z0-9_-]{1,63}$ (cuframes §1): such a key needs no care in file names.
func ValidKey(key string) bool {
	for i := range len(key) {
		switch c := key[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return len(key) >= 1 && len(key) <= MaxKey
}

// FrameName is the name of a key's frame SHM, which is its control block too; PacketName that of its packet ring.
func FrameName(key string) string  { return Prefix + key }
func PacketName(key string) string { return Prefix + key + "-packets" }

// BaseName returns the file name of a segment's path, which may be absolute or relative to /dev/shm (A3). What is not directly in
// it, or does not begin with Prefix, gives ErrName: a path may be a stranger's.
func BaseName(p string) (string, error) {
	name := strings.TrimPrefix(p, Dir+"/")
	if name != path.Base(name) || len(name) <= len(Prefix) || !strings.HasPrefix(name, Prefix) || len(name) > 255 || strings.IndexByte(name, 0) >= 0 {
		return "", fmt.Errorf("%w: %q", ErrName, p)
	}
	return name, nil
}
