package shm

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// MaxSocketPath is how many bytes the path of a socket may have: sun_path of the kernel without its terminator.
const MaxSocketPath = 107

// ListenUnix makes a socket under a name of its own (path's with a dot in front and its last extension cut off), gives it its mode, 0600
// or with a gid 0660, and renames it into place: there is no moment at which it is open to more than it should be, whoever finds it at
// path can connect, and a dead owner's socket is replaced in one step. The caller sees to it that both names are its own, and removes
// path when it has closed the listener.
func ListenUnix(path string, gid int) (*net.UnixListener, error) {
	dir, name := filepath.Split(path)
	temp := dir + "." + strings.TrimSuffix(name, filepath.Ext(name)) // not longer than path
	_ = os.Remove(temp)                                              // of one that was killed just here
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it would remove temp
	err = func() error {
		mode := fs.FileMode(0o600)
		if gid != 0 {
			mode = 0o660
			if err := os.Chown(temp, -1, gid); err != nil {
				return fmt.Errorf("give the socket to group %d: %w", gid, err)
			}
		}
		if err := os.Chmod(temp, mode); err != nil {
			return err
		}
		return os.Rename(temp, path)
	}()
	if err != nil {
		l.Close()
		_ = os.Remove(temp)
		return nil, err
	}
	return l, nil
}
