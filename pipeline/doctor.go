package pipeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/shm"
)

// FindingStatus says how much a Finding matters.
type FindingStatus string

// The statuses of a Finding: all is well; works with a drawback; something that cfpipe needs does not work.
const (
	FindingOK   FindingStatus = "ok"
	FindingWarn FindingStatus = "warn"
	FindingFail FindingStatus = "fail"
)

// Finding is one thing that Doctor looked at.
type Finding struct {
	Name   string        `json:"name"`
	Status FindingStatus `json:"status"`
	Detail string        `json:"detail"`
	Remedy string        `json:"remedy,omitempty"` // what to do; empty when there is nothing to do

	Orphans []OrphanFinding `json:"orphans,omitempty"` // of the finding about them
}

// OrphanFinding is a ring that a killed publisher has left.
type OrphanFinding struct {
	File       string  `json:"file"`
	Key        string  `json:"key"`
	Bytes      int64   `json:"bytes"`
	AgeSeconds float64 `json:"age_seconds"` // since its publisher began
	PID        int     `json:"pid,omitempty"`
	UID        int     `json:"uid"`
	Removable  bool    `json:"removable"` // by this user, with CleanOrphans
}

// DoctorOptions say where Doctor looks; the zero value looks at this machine with the default runtime folder.
type DoctorOptions struct {
	RuntimeDir string // default /run/cuframes
	ShmDir     string // default /dev/shm
	ProcDir    string // default /proc
}

// Sizes that Doctor judges by.
const (
	shmPerCamera  = 16 << 20 // a packet ring with room for a GOP of several seconds of 4 to 8 Mbit/s
	filesWanted   = 4096     // a site of 200 cameras: sockets, rings, segments
	udpBufferWant = 1 << 20  // a keyframe of a 4K camera arrives as one burst
)

// Doctor looks at what this machine can do for cfpipe and says what to change. It changes nothing itself and takes a fraction of a second.
func Doctor(o DoctorOptions) []Finding {
	if o.RuntimeDir == "" {
		o.RuntimeDir = "/run/cuframes"
	}
	if o.ShmDir == "" {
		o.ShmDir = "/dev/shm"
	}
	if o.ProcDir == "" {
		o.ProcDir = "/proc"
	}
	return []Finding{
		kernelFinding(o.ProcDir), shmFinding(o.ShmDir), runtimeDirFinding(o.RuntimeDir), mountFinding(o.RuntimeDir), filesFinding(), udpFinding(o.ProcDir),
		clockFinding(), orphansFinding(), ffmpegFinding(), gpuFinding(),
	}
}

// kernelFinding: futex_waitv (Linux 5.16) lets one thread wait for many rings.
func kernelFinding(proc string) Finding {
	f := Finding{Name: "kernel", Status: FindingOK}
	release, err := readTrimmed(filepath.Join(proc, "sys/kernel/osrelease"))
	if err != nil {
		f.Status, f.Detail = FindingWarn, err.Error()
		return f
	}
	f.Detail = fmt.Sprintf("Linux %s, %s, %d cores", release, runtime.GOARCH, runtime.NumCPU())
	if major, minor, ok := kernelVersion(release); ok && (major < 5 || major == 5 && minor < 16) {
		f.Status = FindingWarn
		f.Detail += "; without futex_waitv each waiting reader takes a thread"
		f.Remedy = "use Linux 5.16 or newer when one process reads many rings"
	}
	return f
}

func kernelVersion(release string) (major, minor int, ok bool) {
	parts := strings.SplitN(release, ".", 3)
	if len(parts) < 2 {
		return 0, 0, false
	}
	major, err1 := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(strings.TrimRightFunc(parts[1], func(r rune) bool { return r < '0' || r > '9' }))
	return major, minor, err1 == nil && err2 == nil
}

func shmFinding(dir string) Finding {
	f := Finding{Name: "shared memory", Status: FindingOK}
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		f.Status, f.Detail = FindingFail, fmt.Sprintf("%s: %v", dir, err)
		f.Remedy = "mount a tmpfs there: mount -t tmpfs -o size=2g tmpfs " + dir
		return f
	}
	size, free := int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
	f.Detail = fmt.Sprintf("%s: %s of %s free, room for about %d cameras", dir, mebibytes(free), mebibytes(size), free/shmPerCamera)
	grow := "give the container more (docker run --shm-size=2g, or shm_size: 2g in compose), or mount -o remount,size=2g " + dir
	switch {
	case free < shmPerCamera:
		f.Status, f.Remedy = FindingFail, grow
	case free < 8*shmPerCamera:
		f.Status, f.Remedy = FindingWarn, grow
	}
	return f
}

func runtimeDirFinding(dir string) Finding {
	f := Finding{Name: "runtime folder", Status: FindingOK}
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, os.ErrNotExist):
		// A publisher makes it, when it may.
		parent := filepath.Dir(dir)
		if writable(parent) {
			f.Detail = dir + " does not exist yet; the first publisher makes it"
			return f
		}
		f.Status, f.Detail = FindingFail, fmt.Sprintf("%s does not exist and %s is not writable for uid %d", dir, parent, os.Getuid())
	case err != nil:
		f.Status, f.Detail = FindingFail, err.Error()
	case !st.IsDir():
		f.Status, f.Detail = FindingFail, dir+" is not a folder"
	case !writable(dir):
		f.Status, f.Detail = FindingWarn, fmt.Sprintf("%s is not writable for uid %d: this user can read rings that are open to it, not publish", dir, os.Getuid())
	default:
		f.Detail = dir + " is writable"
		return f
	}
	f.Remedy = fmt.Sprintf("install -d -o USER -m 0750 %s, or name another folder with --runtime-dir or $CUFRAMES_RUNTIME_DIR", dir)
	return f
}

func filesFinding() Finding {
	f := Finding{Name: "open files", Status: FindingOK}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		f.Status, f.Detail = FindingWarn, err.Error()
		return f
	}
	// Go raises the soft limit to the hard limit at start.
	f.Detail = fmt.Sprintf("up to %d", limit.Max)
	if limit.Max < filesWanted {
		f.Status = FindingWarn
		f.Remedy = fmt.Sprintf("raise the hard limit to %d or more for many cameras in one process (LimitNOFILE= in systemd, ulimits: in compose)", filesWanted)
	}
	return f
}

func udpFinding(proc string) Finding {
	f := Finding{Name: "UDP buffers", Status: FindingOK}
	s, err := readTrimmed(filepath.Join(proc, "sys/net/core/rmem_max"))
	n, convErr := strconv.Atoi(s)
	if err != nil || convErr != nil {
		f.Detail = "not visible from here"
		return f
	}
	f.Detail = fmt.Sprintf("receive buffer up to %d KiB", n>>10)
	if n < udpBufferWant {
		f.Status = FindingWarn
		f.Detail += "; a keyframe of a large picture can overflow it"
		f.Remedy = fmt.Sprintf("sysctl -w net.core.rmem_max=%d for cameras over UDP; TCP is not affected", 4*udpBufferWant)
	}
	return f
}

// orphansFinding: rings of killed publishers take space until their key is published again.
func orphansFinding() Finding {
	f := Finding{Name: "orphaned rings", Status: FindingOK, Detail: "none"}
	list, err := framering.Orphans()
	if err != nil {
		f.Status, f.Detail, f.Remedy = FindingWarn, err.Error(), "run cfpipe doctor as a user who may read the folder"
		return f
	}
	if len(list) == 0 {
		return f
	}
	var bytes int64
	removable := 0
	for _, o := range list {
		bytes += o.Bytes
		age := max(time.Since(o.Made).Seconds(), 0)
		f.Orphans = append(f.Orphans, OrphanFinding{
			File: shm.Dir + "/" + o.Name, Key: o.Key(), Bytes: o.Bytes, AgeSeconds: round(age), PID: o.PID, UID: o.UID, Removable: o.Removable(),
		})
		if o.Removable() {
			removable++
		}
	}
	f.Status = FindingWarn
	f.Detail = fmt.Sprintf("%d left by killed publishers, %s; this user can remove %d of them", len(list), mebibytes(bytes), removable)
	f.Remedy = "publish their keys again, or remove them: cfpipe doctor --clean, or --clean KEY… for some"
	return f
}

// CleanOrphans removes the rings of killed publishers and their sockets in runtimeDir ("" = framering.RuntimeDir's), those of keys and of
// their sound alone where some are named, and returns the rings. A key that has none is an error that Is os.ErrNotExist; the others' are removed.
func CleanOrphans(runtimeDir string, keys ...string) (removed []framering.Orphan, err error) {
	list, err := framering.Orphans()
	if err != nil {
		return nil, err
	}
	if len(keys) > 0 {
		var named []framering.Orphan
		var none []string
		for _, k := range keys {
			var its []framering.Orphan
			for _, o := range list {
				if o.Of(k) || o.Of(k+AudioSuffix) {
					its = append(its, o)
				}
			}
			if len(its) == 0 {
				none = append(none, strconv.Quote(k))
			}
			named = append(named, its...)
		}
		list = named
		if len(none) > 0 {
			err = fmt.Errorf("key %s: no ring of a killed publisher: %w", strings.Join(none, ", "), os.ErrNotExist)
		}
	}
	for _, o := range list {
		n, rmErr := framering.RemoveOrphan(runtimeDir, o.Name)
		if rmErr != nil {
			err = errors.Join(err, rmErr)
		} else if n > 0 {
			removed = append(removed, framering.Orphan{Name: o.Name, Bytes: n})
		}
	}
	return removed, err
}

func ffmpegFinding() Finding {
	return Finding{Name: "FFmpeg", Status: FindingOK, Detail: av.Version()}
}

// gpuFinding: without a GPU decoding runs on the CPU; nothing else needs one.
func gpuFinding() Finding {
	f := Finding{Name: "GPU", Status: FindingOK}
	device, err := cudavmm.OpenDevice(0)
	if errors.Is(err, cudavmm.ErrUnavailable) {
		f.Detail = fmt.Sprintf("none (%v): pictures are decoded on the CPU; the packet path needs no GPU", err)
		return f
	}
	if err != nil {
		f.Status, f.Detail, f.Remedy = FindingWarn, err.Error(), "check the driver with nvidia-smi; in a container, pass the GPU in with its video capability"
		return f
	}
	defer device.Close()
	info := device.Info()
	f.Detail = fmt.Sprintf("%s (%s)", info.Name, info.UUID)
	capabilities, err := decode.Capabilities(device)
	if err != nil {
		f.Status = FindingWarn
		f.Detail += fmt.Sprintf("; NVDEC: %v", err)
		f.Remedy = "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,video so that libnvcuvid is there"
		return f
	}
	for _, c := range capabilities {
		f.Detail += fmt.Sprintf("; %s %v bit to %dx%d", c.Codec, c.Depths, c.MaxWidth, c.MaxHeight)
	}
	if !info.Sharing {
		f.Status = FindingWarn
		f.Detail += "; the driver cannot share memory by file descriptors, which the frame ring needs"
		f.Remedy = "use a driver with CUDA VMM and POSIX file descriptors (Linux, R460 or newer, not under WSL)"
	}
	return f
}

// clockFinding: recordings are named and cut by the wall clock.
func clockFinding() Finding {
	f := Finding{Name: "clock", Status: FindingOK, Detail: "kept by NTP"}
	var tx syscall.Timex
	state, err := syscall.Adjtimex(&tx)
	const timeError = 5 // TIME_ERROR: not synchronised (adjtimex(2))
	if err != nil || state == timeError {
		f.Status, f.Detail = FindingWarn, "not kept by NTP, as far as the kernel knows"
		f.Remedy = "run chrony or systemd-timesyncd on the host, so that the times of recordings and of cameras agree"
	}
	return f
}

func readTrimmed(path string) (string, error) {
	b, err := os.ReadFile(path)
	return strings.TrimSpace(string(b)), err
}

func writable(dir string) bool {
	const wOK = 2 // W_OK of access(2)
	return syscall.Access(dir, wOK) == nil
}

func mebibytes(n int64) string {
	if n >= 10<<30 {
		return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
