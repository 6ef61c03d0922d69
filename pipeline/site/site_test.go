package site

import (
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline"
)

const threeCameras = `
stagger: 100ms
defaults:
  record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s}
cameras:
  KEYa: {source: CAM0}
  KEYb: {source: CAM1}
  KEYc: {source: CAM2}
`

// A reload that changes, removes and adds a camera, and one with an error: the recording of the camera that is not concerned has no
// gap, and the recorder of a camera that is asked for other files takes over where the one before it ended.
func TestReload(t *testing.T) {
	t.Parallel()
	h := newHost(t, 4)
	h.start(threeCameras)
	h.recorded("a", 50)
	h.recorded("b", 50)
	h.recorded("c", 25)
	before := h.stage(kindIngest, "b").Since

	h.file(strings.ReplaceAll(threeCameras, "segment", "segmnt"))
	h.reload <- struct{}{}
	testenv.Eventually(t, 10*time.Second, func() error {
		if e := h.site.Status().ReloadError; !strings.Contains(e, "site.yaml:4:41: defaults.record.segmnt: unknown field") {
			return fmt.Errorf("reload: %q", e)
		}
		return nil
	})

	// Without a signal: the change of the file is seen. b gets other segments, c goes, d comes.
	h.file(strings.NewReplacer("KEYb: {source: CAM1}", "KEYb: {source: CAM1, record: {segment: 1s}}", "KEYc: {source: CAM2}", "KEYd: {source: CAM3}").
		Replace(threeCameras))
	h.recorded("d", 25)
	require.Equal(t, before, h.stage(kindIngest, "b").Since, "the camera was not touched")
	require.Empty(t, h.stage(kindIngest, "c").Kind)
	require.NotEmpty(t, h.of("c"), "the file of the camera that was removed is finished")
	_, err := pipeline.InspectKey(h.site.runtimeDir, h.key("c"))
	require.ErrorIs(t, err, os.ErrNotExist)
	n := h.stage(kindRecord, "a").Record.Packets
	h.recorded("a", n+60)
	require.NoError(t, h.stop())
	_, stopping, found := strings.Cut(h.log.String(), "msg=stopping")
	require.True(t, found)
	require.NotContains(t, stopping, "waiting for", "nothing is waited for any more")

	requireRun(t, h.of("a"))
	requireRun(t, h.of("d"))
	b := h.of("b")
	var lengths []time.Duration
	for i, s := range b {
		lengths = append(lengths, s.End.Sub(s.Start))
		require.Zero(t, s.Lost)
		if i > 0 {
			require.False(t, s.Start.After(b[i-1].End), "b: %v to %v is in no file", b[i-1].End, s.Start)
		}
	}
	require.Greater(t, len(b), 2, lengths)
	require.Zero(t, h.stage(kindRecord, "a").Restarts)
}

// A stage in a process of its own is killed: it comes back, and touches no other. The recorder goes on where the one that was killed
// can have lost something; the readers of an ingest that was killed follow the next one.
func TestKillIsolatedStages(t *testing.T) {
	t.Parallel()
	h := newHost(t, 2)
	h.start(`
stagger: 10ms
defaults:
  record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s}
cameras:
  KEYa: {source: CAM0}
  KEYb: {source: CAM1, isolation: process, record: {isolation: process}}
`)
	h.recorded("a", 50)
	h.recorded("b", 50)
	for _, c := range []struct {
		kind     string
		signal   syscall.Signal
		restarts int
		because  string
	}{{kindRecord, syscall.SIGKILL, 1, "killed"}, {kindIngest, syscall.SIGKILL, 1, "killed"},
		{kindRecord, syscall.SIGTERM, 2, "stopped by somebody else"}} {
		kind := c.kind
		pid := h.stage(kind, "b").PID
		require.NotZero(t, pid)
		require.NotEqual(t, os.Getpid(), pid)
		had := h.stage(kindRecord, "b").Record.Packets
		require.NoError(t, syscall.Kill(pid, c.signal))
		testenv.Eventually(t, 20*time.Second, func() error {
			s := h.stage(kind, "b")
			if s.Restarts != c.restarts || s.State != StateRunning || s.PID == 0 || s.PID == pid {
				return fmt.Errorf("%s: %+v", kind, s)
			}
			if !strings.Contains(s.LastError, c.because) {
				return errors.New(s.LastError)
			}
			return nil
		})
		h.recorded("b", had+50)
	}
	n := h.stage(kindRecord, "a").Record.Packets
	h.recorded("a", n+1)
	require.NoError(t, h.stop())
	requireRun(t, h.of("a"))
	// What the recorder that was killed had not finished is in the next one's files; while there was no ingest there was no camera.
	gaps := 0
	b := h.of("b")
	for i, s := range b {
		require.NotEmpty(t, pictures(t, s.Path))
		require.Zero(t, s.Lost)
		if i > 0 && s.Start.After(b[i-1].End) {
			require.True(t, s.Discontinuous, "b: %v to %v is in no file", b[i-1].End, s.Start)
			gaps++
		}
	}
	require.LessOrEqual(t, gaps, 1)
}

// A site that is killed leaves no process behind: the stages in processes of their own end with it, and finish their files.
func TestKillSite(t *testing.T) {
	t.Parallel()
	h := newHost(t, 1)
	file := h.file(`
cameras:
  KEYa:
    source: CAM0
    isolation: process
    record: {out: 'rec/%{key}/%s.mp4', segment: 1h, isolation: process}
`)
	p := testenv.Start(t, testenv.Binary(t), "run", file, "--runtime-dir", filepath.Join(h.dir, "run"))
	rec := filepath.Join(h.dir, "rec", h.key("a"))
	testenv.Eventually(t, 30*time.Second, func() error {
		files, _ := filepath.Glob(rec + "/*.mp4")
		if len(files) == 0 {
			return errors.New("no file")
		}
		if i, err := os.Stat(files[0]); err != nil || i.Size() < 10_000 {
			return errors.New("no picture in the file")
		}
		return nil
	})
	p.Kill()
	testenv.Eventually(t, 20*time.Second, func() error {
		if _, err := pipeline.InspectKey(filepath.Join(h.dir, "run"), h.key("a")); err == nil || !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the camera is still published: %w", errors.Join(err))
		}
		return nil
	})
	files, err := filepath.Glob(rec + "/*.mp4")
	require.NoError(t, err)
	require.Len(t, files, 1)
	require.NotEmpty(t, pictures(t, files[0]))
}

// A stage that cannot work is tried again and again, and the others do not notice. The end is clean all the same.
func TestFailingStage(t *testing.T) {
	testenv.CheckLeaks(t)
	h := newHost(t, 2)
	wall := filepath.Join(h.dir, "wall")
	require.NoError(t, os.WriteFile(wall, nil, 0o600))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	h.start(`
stagger: 10ms
cameras:
  KEYa: {source: CAM0, record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s}}
  KEYb: {source: CAM1, record: {out: 'wall/%{key}/%s-%f.mp4', segment: 2s}}
relay: {listen: '` + taken.Addr().String() + `'}
`)
	// A failed stage is a problem; the site is ready all the same, since all have been started.
	get := func(path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Authorization", "Bearer "+testToken)
		h.site.handler(testToken, newDoor()).ServeHTTP(w, r)
		return w
	}
	doc := readOpenAPI(t)
	testenv.Eventually(t, 30*time.Second, func() error {
		w := get("/health/cameras")
		doc.require(t, "/health/cameras", "get", w.Code, w.Body.Bytes())
		if !strings.Contains(w.Body.String(), `"kind":"relay","problem":"backoff: `) || !strings.Contains(w.Body.String(), "address already in use") {
			return errors.New(w.Body.String())
		}
		return nil
	})
	testenv.Eventually(t, 30*time.Second, func() error {
		if w := get("/health/ready"); w.Code != 200 {
			return errors.New(w.Body.String())
		}
		return nil
	})
	testenv.Eventually(t, 30*time.Second, func() error {
		if s := h.stage(kindRecord, "b"); s.Restarts < 2 || !strings.Contains(s.LastError, "not a directory") {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	require.NoError(t, os.Remove(wall))
	h.recorded("b", 25)
	h.recorded("a", 50)
	require.NoError(t, h.stop())
	requireRun(t, h.of("a"))
	require.Zero(t, h.stage(kindIngest, "b").Restarts)
}
