// Package faults holds tests of a whole site, as its users run it: real processes, real disks, cameras that are killed. What a fault
// concerns comes back by itself with its losses counted; every other camera loses nothing.
package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline/site"
)

const token = "0123456789abcdef0123456789abcdef"

// rig is a site and its cameras, each a process.
type rig struct {
	t      *testing.T
	dir    string
	prefix string // of all keys
	file   string
	cams   map[string]*camera
	site   *testenv.Process
	addr   string
}

// camera is one testcam process, which keeps its port when it is started again.
type camera struct {
	t    *testing.T
	port int
	args []string
	proc *testenv.Process
}

func newRig(t *testing.T, d time.Duration) *rig {
	t.Helper()
	testenv.Watchdog(t, d)
	r := &rig{t: t, dir: t.TempDir(), prefix: fmt.Sprintf("f%d-%d-", os.Getpid(), time.Now().UnixNano()%1e6), cams: map[string]*camera{}}
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "token"), []byte(token), 0o600))
	return r
}

func (r *rig) key(name string) string { return r.prefix + name }

// camera starts a camera; it is CAM-name in the site's file.
func (r *rig) camera(name string, args ...string) *camera {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(r.t, err)
	c := &camera{t: r.t, port: l.Addr().(*net.TCPAddr).Port, args: args}
	require.NoError(r.t, l.Close())
	r.cams[name] = c
	c.start()
	return c
}

func (c *camera) start() {
	c.t.Helper()
	c.proc = testenv.Start(c.t, testenv.Binary(c.t), append([]string{"testcam", "--listen", "127.0.0.1:" + strconv.Itoa(c.port)}, c.args...)...)
	testenv.Eventually(c.t, 20*time.Second, func() error {
		if !strings.Contains(c.proc.Stdout(), "rtsp://") {
			return fmt.Errorf("the camera does not run: %s", c.proc.Stderr())
		}
		return nil
	})
}

// run starts the site. KEY stands for the prefix of the keys, CAM-name for the address of a camera.
func (r *rig) run(text string) {
	r.t.Helper()
	for name, c := range r.cams {
		text = strings.ReplaceAll(text, "CAM-"+name+"'", fmt.Sprintf("rtsp://127.0.0.1:%d/cam0'", c.port))
	}
	text = strings.ReplaceAll(text, "KEY", r.prefix) + "\nhttp: {listen: '127.0.0.1:0', token_file: token}\nstagger: 10ms\n"
	r.file = filepath.Join(r.dir, "site.yaml")
	require.NoError(r.t, os.WriteFile(r.file, []byte(text), 0o600))
	r.start()
}

var served = regexp.MustCompile(`http is served"? addr=(\S+)`)

// start starts the site's process with the file that was written.
func (r *rig) start() {
	r.t.Helper()
	r.site = testenv.Start(r.t, testenv.Binary(r.t), "run", r.file, "--json", "--runtime-dir", filepath.Join(r.dir, "run"))
	testenv.Eventually(r.t, 20*time.Second, func() error {
		m := served.FindStringSubmatch(r.site.Stderr())
		if m == nil {
			return fmt.Errorf("http is not served: %s", r.site.Stderr())
		}
		r.addr = m[1]
		return nil
	})
}

// get asks the site's API, which has to answer soon whatever a disk or a camera does.
func (r *rig) get(path string) []byte {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+r.addr+path, nil)
	require.NoError(r.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := (&http.Client{Timeout: 10 * time.Second}).Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	require.NoError(r.t, err)
	return b.Bytes()
}

// stages returns the newest status of every stage, by kind and name.
func (r *rig) stages() map[string]site.StageStatus {
	r.t.Helper()
	var s site.Status
	require.NoError(r.t, json.Unmarshal(r.get("/status"), &s))
	m := map[string]site.StageStatus{}
	for _, st := range s.Stages {
		m[st.Kind+" "+strings.TrimPrefix(st.Key, r.prefix)] = st
	}
	return m
}

// recorded waits until n more access units of each camera are in files than there were.
func (r *rig) recorded(n uint64, names ...string) {
	r.t.Helper()
	from := r.stages()
	for _, name := range names {
		before := uint64(0)
		if rec := from["record "+name].Record; rec != nil {
			before = rec.Packets
		}
		r.until("record "+name, func(s site.StageStatus) bool { return s.Record != nil && s.Record.Packets >= before+n })
	}
}

// names are those of all cameras.
func (r *rig) names() []string { return slices.Sorted(maps.Keys(r.cams)) }

// until waits for a state of a stage.
func (r *rig) until(stage string, ok func(site.StageStatus) bool) {
	r.t.Helper()
	testenv.Eventually(r.t, 60*time.Second, func() error {
		s := r.stages()[stage]
		if !ok(s) {
			b, _ := json.Marshal(s)
			return fmt.Errorf("%s: %s", stage, b)
		}
		return nil
	})
}

// finish takes the cameras away, waits until nothing comes any more, stops the site and returns what every camera had published.
func (r *rig) finish() map[string]uint64 {
	r.t.Helper()
	for _, c := range r.cams {
		c.proc.Kill()
	}
	published := map[string]uint64{}
	testenv.Eventually(r.t, 30*time.Second, func() error {
		for id, s := range r.stages() {
			name, ok := strings.CutPrefix(id, "ingest ")
			if !ok || r.cams[name] == nil {
				continue
			}
			if s.Ingest == nil || s.Ingest.Connected {
				return fmt.Errorf("%s is connected", id)
			}
			published[name] = s.Ingest.Video.Packets
		}
		return nil
	})
	require.NoError(r.t, r.site.Stop(r.t, syscall.SIGTERM, 60*time.Second))
	return published
}

// fileLine is what the site's process says of a finished file.
type fileLine struct {
	Key, Path     string
	Start, End    time.Time
	Packets       int
	Lost          uint64
	Discontinuous bool
}

// finished are the files that the site's process has reported.
func (r *rig) finished(name string) (list []fileLine) {
	r.t.Helper()
	for line := range strings.Lines(r.site.Stdout()) {
		var s fileLine
		require.NoError(r.t, json.Unmarshal([]byte(line), &s), line)
		if s.Key == r.key(name) {
			list = append(list, s)
		}
	}
	return list
}

// sum is what the finished files of a camera hold and miss.
func sum(files []fileLine) (packets, lost uint64, gaps int) {
	for _, s := range files {
		packets += uint64(s.Packets)
		lost += s.Lost
		if s.Discontinuous {
			gaps++
		}
	}
	return packets, lost, gaps
}

// requireWhole checks that a camera's files hold all that was published, in a row, as they say and as ffprobe counts.
func (r *rig) requireWhole(name string, published uint64) {
	r.t.Helper()
	files := r.finished(name)
	packets, lost, gaps := sum(files)
	require.NotZero(r.t, packets, name)
	require.Zero(r.t, lost, name)
	require.Zero(r.t, gaps, name)
	require.Equal(r.t, published, packets, name)
	var counted uint64
	for i, s := range files {
		n := probe(r.t, s.Path)
		require.Equal(r.t, s.Packets, n, s.Path)
		counted += uint64(n)
		if i > 0 {
			require.Equal(r.t, files[i-1].End, s.Start, s.Path)
		}
	}
	require.Equal(r.t, published, counted, name)
}

// probe counts the access units of a file as ffprobe reads them.
func probe(t *testing.T, path string) int {
	t.Helper()
	out, err := exec.Command(testenv.NeedTool(t, "ffprobe"), "-v", "error", "-select_streams", "v", "-count_packets", "-show_entries",
		"stream=nb_read_packets", "-of", "csv=p=0", path).CombinedOutput()
	require.NoError(t, err, "%s: %s", path, out)
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(t, err, "%s: %s", path, out)
	return n
}
