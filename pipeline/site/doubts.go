package site

import (
	"fmt"
	"net"
	"os"

	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline/retention"
)

// Unmet warns of bounds that the disks, as they are mounted now, cannot meet: free space that they do not have, and a size at which they are full
// long since.
func (c *Config) Unmet() (list []string) {
	var all Retention
	if c.Retention != nil {
		all = *c.Retention
	}
	disks := map[uint64]int64{}
	told := map[string]bool{}
	tell := func(format string, arg ...any) {
		if s := fmt.Sprintf(format, arg...); !told[s] {
			told[s] = true
			list = append(list, s)
		}
	}
	never := func(field, dir string, want Size, size int64) {
		if int64(want) > size {
			tell("%s: the disk of %s has %s and can never have %s free: nothing is removed for that", field, dir, gibibytes(size), gibibytes(int64(want)))
		}
	}
	for _, f := range c.fileSets() {
		p, err := mux.ParsePattern(f.out, f.key)
		if err != nil { // Load has said it
			continue
		}
		dir := p.Files().Dir
		size, device, err := retention.DiskOf(dir)
		if err != nil {
			continue
		}
		disks[device] = size
		never(f.path+" retention.free", dir, f.keep.Free, size)
		never("retention.free", dir, all.Free, size)
		if int64(f.keep.Size) > size && f.keep.Free == 0 && all.Free == 0 {
			tell("%s retention.size: %s are more than the disk of %s, %s: it is full before; set free as well", f.path, gibibytes(int64(f.keep.Size)), dir, gibibytes(size))
		}
	}
	var sum int64
	for _, size := range disks {
		sum += size
	}
	if int64(all.Size) > sum && len(disks) > 0 && all.Free == 0 {
		tell("retention.size: %s are more than the disks, %s: they are full before; set free as well", gibibytes(int64(all.Size)), gibibytes(sum))
	}
	return list
}

func gibibytes(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// checkOpen warns of a relay that shows the cameras to whoever reaches this host.
func (d *decoder) checkOpen(r *Relay) {
	for _, x := range []struct{ field, listen string }{{"relay.listen", r.Listen}, {"relay.listen_tls", r.ListenTLS}} {
		if host, _, err := net.SplitHostPort(x.listen); err == nil && r.Password == "" && (host == "" || net.ParseIP(host).IsUnspecified()) {
			d.warn(x.field, "it serves on all interfaces and asks for no password: whoever reaches this host sees the cameras; set username and password_file")
		}
	}
}

// checkReaders warns of a secret's file that every user of this host may read.
func (d *decoder) checkReaders(path, file string) {
	info, err := os.Stat(d.beside(file))
	if err != nil || info.Mode().Perm()&0o004 == 0 || d.readable[file] {
		return
	}
	if d.readable == nil {
		d.readable = map[string]bool{}
	}
	d.readable[file] = true
	d.warn(path+"_file", "every user of this host may read %s: chmod o-rwx %[1]s", d.beside(file))
}
