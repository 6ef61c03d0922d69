package shm

import (
	"bufio"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProcessMaps tells whether the process pid has the segment name mapped, as its publisher has for its life. It is what a pid
// found in a segment without a lock is worth: the process behind the number may be another one by now, or init. Where the
// kernel does not let this process look, a living process of the segment's owner counts as its publisher, except pid 1, which
// is what a publisher in a container of its own writes; one of somebody else does not. This process itself never does: it
// would hold the lock.
func ProcessMaps(pid int, name string) bool {
	name, err := BaseName(name)
	if err != nil || pid == os.Getpid() || !PIDAlive(pid) {
		return false
	}
	var file, proc unix.Stat_t
	if unix.Lstat(Dir+"/"+name, &file) != nil {
		return false
	}
	dir := "/proc/" + strconv.Itoa(pid)
	f, err := os.Open(dir + "/maps")
	if err != nil {
		return pid != 1 && unix.Stat(dir, &proc) == nil && proc.Uid == file.Uid
	}
	defer f.Close()
	inode := strconv.FormatUint(file.Ino, 10)
	lines := bufio.NewScanner(f)
	for lines.Scan() { // address, permissions, offset, device, inode, path
		fields := strings.Fields(lines.Text())
		if len(fields) >= 6 && fields[4] == inode && strings.HasSuffix(fields[5], "/"+name) {
			return true
		}
	}
	return lines.Err() != nil && pid != 1 && unix.Stat(dir, &proc) == nil && proc.Uid == file.Uid
}
