package framering

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// DefaultRuntimeDir is where control sockets live unless $CUFRAMES_RUNTIME_DIR or an option says otherwise (§1).
const DefaultRuntimeDir = "/run/cuframes"

// KeyError says that a name is no key. errors.Is(err, ErrInvalidArg).
type KeyError struct {
	Key string
	Max int // characters that it may have where it is used
}

func (e *KeyError) Error() string {
	note := ""
	if strings.Contains(e.Key, " ") {
		note = " (no spaces)"
	}
	return fmt.Sprintf("key %q: use 1 to %d of a-z A-Z 0-9 _ -%s", cut(printable(e.Key), 100), e.Max, note)
}

func (e *KeyError) Unwrap() error { return ErrInvalidArg }

// CheckKey returns a *KeyError unless key matches ^[a-zA-Z0-9_-]{1,63}$ (§1).
func CheckKey(key string) error {
	if !shm.ValidKey(key) {
		return &KeyError{key, shm.MaxKey}
	}
	return nil
}

// RuntimeDir resolves the option: dir itself, else $CUFRAMES_RUNTIME_DIR, else DefaultRuntimeDir.
func RuntimeDir(dir string) string {
	if dir == "" {
		dir = os.Getenv("CUFRAMES_RUNTIME_DIR")
	}
	if dir == "" {
		dir = DefaultRuntimeDir
	}
	return dir
}

// SocketPath returns the path of a key's control socket.
func SocketPath(runtimeDir, key string) string {
	return filepath.Join(RuntimeDir(runtimeDir), key+".sock")
}

// ShmName returns the name of a key's frame SHM in /dev/shm.
func ShmName(key string) string { return shm.FrameName(key) }

// PacketShmName returns the name of a key's packet ring in /dev/shm.
func PacketShmName(key string) string { return shm.PacketName(key) }

func checkSocketPath(path string) error {
	if len(path) > shm.MaxSocketPath {
		return fmt.Errorf("socket path %s has %d bytes, the kernel takes %d: choose a shorter runtime directory or key: %w",
			path, len(path), shm.MaxSocketPath, ErrInvalidArg)
	}
	return nil
}

// GroupID resolves the name or number of a Unix group; "" is 0, which opens nothing to any group.
func GroupID(name string) (int, error) {
	if name == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(name, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(name)
	var unknown user.UnknownGroupError
	if errors.As(err, &unknown) {
		return 0, fmt.Errorf("this host has no group %q", name)
	}
	if err != nil {
		return 0, fmt.Errorf("group %q: %w", name, err)
	}
	return strconv.Atoi(g.Gid)
}
