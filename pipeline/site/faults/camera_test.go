package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/site"
)

// One camera restarts every second, two lose a tenth and a third of their packets, and the processes of others crash: ingest with its decoder,
// and a recorder. Cameras beside them, in the site's process and in processes of their own, lose nothing.
func TestCameras(t *testing.T) {
	r := newRig(t, 3*time.Minute)
	for _, name := range []string{"flaps", "lossy", "awful", "crashes", "killed", "good", "apart"} {
		r.camera(name)
	}
	r.run(`
defaults: {record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s, pre: 1h}}
cameras:
  KEYflaps: {source: 'CAM-flaps'}
  KEYlossy: {source: 'CAM-lossy', transport: udp}
  KEYawful: {source: 'CAM-awful', transport: udp}
  KEYcrashes: {source: 'CAM-crashes', isolation: process, decode: cpu}
  KEYkilled: {source: 'CAM-killed', record: {isolation: process}}
  KEYgood: {source: 'CAM-good'}
  KEYapart: {source: 'CAM-apart', isolation: process, record: {isolation: process}}
`)
	r.recorded(25, r.names()...)

	for name, loss := range map[string]string{"lossy": "0.1", "awful": "0.3"} { // of 9 packets of a keyframe all come 2 of 5 times, and 1 of 25
		cam := r.cams[name]
		cam.proc.Kill()
		cam.args = []string{"--loss", loss}
		cam.start()
	}
	ctx, settle := context.WithCancel(t.Context())
	var flapping sync.WaitGroup
	flapping.Go(func() {
		for cam := r.cams["flaps"]; ctx.Err() == nil; {
			cam.proc.Kill()
			cam.start()
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	defer flapping.Wait()
	defer settle()

	before := r.stages()
	crashed := before["ingest crashes"].PID
	require.NoError(t, syscall.Kill(crashed, syscall.SIGSEGV))
	require.NoError(t, syscall.Kill(before["record killed"].PID, syscall.SIGKILL))
	r.until("ingest crashes", func(s site.StageStatus) bool {
		return s.State == site.StateRunning && s.Restarts == 1 && s.PID != crashed && s.Decode != nil && s.Decode.Pictures > 25
	})
	r.until("record killed", func(s site.StageStatus) bool { return s.State == site.StateRunning && s.Restarts == 1 })
	r.until("ingest flaps", func(s site.StageStatus) bool { return s.Ingest.Reconnects >= 2 })
	settle()
	flapping.Wait()
	r.recorded(50, "flaps", "crashes", "killed", "good", "apart")
	r.until("ingest lossy", func(s site.StageStatus) bool { return s.Ingest.Video.Gaps > 2 && s.Ingest.Reconnects == 1 })
	status := r.stages()
	require.LessOrEqual(t, status["ingest awful"].Ingest.Reconnects, uint64(1), "loss ends no connection")
	require.Equal(t, before["ingest good"].Since, status["ingest good"].Since)
	published := r.finish()

	for _, name := range []string{"good", "apart"} {
		r.requireWhole(name, published[name])
	}
	// What the camera's side has lost is a gap in front of which the stream is marked; between ring and disk nothing is lost.
	for _, name := range []string{"flaps", "lossy", "awful"} {
		packets, lost, gaps := sum(r.finished(name))
		require.Zero(t, lost, name)
		require.Equal(t, published[name], packets, name)
		if name != "awful" {
			require.NotZero(t, gaps, name)
		}
	}
	// The recorder that was killed has lost nothing: the next one took from the ring what it had not finished.
	frames := r.frames("killed")
	require.EqualValues(t, published["killed"], len(frames), "distinct pictures in all files, those of the killed recorder among them")
	requireNoHole(t, frames, 0)
	require.NotContains(t, strings.ToLower(r.site.Stderr()), "panic")
}

// The whole site is killed and started again, with a camera in the site's process and one in processes of its own: what was recorded
// before misses at most the fragment in flight, and no process of the first site is in the second one's way.
func TestKillSite(t *testing.T) {
	r := newRig(t, 2*time.Minute)
	r.camera("one")
	r.camera("apart")
	r.run(`
defaults: {record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s, pre: 1h}}
cameras:
  KEYone: {source: 'CAM-one'}
  KEYapart: {source: 'CAM-apart', isolation: process, record: {isolation: process}}
`)
	r.recorded(75, "one", "apart")
	status := r.stages()
	killed := time.Now()
	r.site.Kill()
	old := map[string][]string{}
	for name := range r.cams {
		testenv.Eventually(t, 20*time.Second, func() error { // the stages in processes of their own finish their files
			if _, err := pipeline.InspectKey(filepath.Join(r.dir, "run"), r.key(name)); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("%s is still published: %w", name, err)
			}
			return nil
		})
		old[name] = r.files(name)
	}
	r.start()
	r.recorded(50, "one", "apart")
	published := r.finish()
	for _, name := range r.names() {
		second := r.frames(name, old[name]...)
		require.EqualValues(t, published[name], len(second), name)
		requireNoHole(t, second, 0)
		first := r.frames(name, slices.DeleteFunc(r.files(name), func(f string) bool { return slices.Contains(old[name], f) })...)
		requireNoHole(t, first, 0)
		require.GreaterOrEqual(t, uint64(len(first)), status["record "+name].Record.Packets, "%s: what was counted is in files", name)
		missing := killed.Sub(time.UnixMilli(first[len(first)-1]))
		require.Less(t, missing, 2*time.Second, "%s: a fragment of 1 s, and what had not come yet", name)
	}
}
