package site

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline"
)

// host is a site at work with cameras to connect to.
type host struct {
	t       *testing.T
	dir     string
	prefix  string // of all keys
	cams    *testcam.Cameras
	site    *Site
	log     testenv.Log
	reload  chan struct{}
	onServe func(net.Addr)
	cancel  context.CancelFunc
	ended   chan error

	mu       sync.Mutex
	segments []pipeline.Recorded
}

func newHost(t *testing.T, cameras int) *host {
	t.Helper()
	testenv.Watchdog(t, 90*time.Second)
	cams, err := testcam.Start(testcam.Options{Count: cameras, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(cams.Close)
	prefix := fmt.Sprintf("s%d-%06d", os.Getpid(), time.Now().UnixNano()%1e6)
	testenv.RemoveRings(t, prefix)
	return &host{t: t, dir: t.TempDir(), prefix: prefix, cams: cams, reload: make(chan struct{})}
}

// file writes the site file; K stands for the prefix of the keys, CAM0 for the address of a camera.
func (h *host) file(text string) string {
	h.t.Helper()
	for i, u := range slices.Backward(h.cams.URLs()) {
		text = strings.ReplaceAll(text, fmt.Sprintf("CAM%d", i), u)
	}
	text = strings.ReplaceAll(text, "KEY", h.prefix)
	name := filepath.Join(h.dir, "site.yaml")
	require.NoError(h.t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// serves makes the site's token file and keeps the addresses on which its API is served.
func (h *host) serves(token string) <-chan net.Addr {
	require.NoError(h.t, os.WriteFile(filepath.Join(h.dir, "token"), []byte(token), 0o600))
	addrs := make(chan net.Addr, 4)
	h.onServe = func(a net.Addr) { addrs <- a }
	return addrs
}

func (h *host) key(name string) string { return h.prefix + name }

func (h *host) start(text string) {
	h.t.Helper()
	s, err := New(Options{
		File: h.file(text), RuntimeDir: filepath.Join(h.dir, "run"), Reload: h.reload, Backoff: 50 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(&h.log, nil)), Command: []string{testenv.Binary(h.t), "run", "--stage"},
	})
	require.NoError(h.t, err)
	s.api.onServe = h.onServe
	s.watchers = append(s.watchers, func(seg pipeline.Recorded) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.segments = append(h.segments, seg)
	})
	h.site = s
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel, h.ended = cancel, make(chan error, 1)
	go func() { h.ended <- s.Run(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		if h.ended != nil {
			<-h.ended
		}
		if h.t.Failed() {
			h.t.Log(h.log.String())
		}
	})
}

// stop ends the site and returns its error.
func (h *host) stop() error {
	h.cancel()
	err := <-h.ended
	h.ended = nil
	return err
}

func (h *host) of(key string) (list []pipeline.Recorded) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.segments {
		if s.Key == h.key(key) {
			list = append(list, s)
		}
	}
	return list
}

// stage returns the status of a stage.
func (h *host) stage(kind, key string) StageStatus {
	for _, s := range h.site.Status().Stages {
		if s.Kind == kind && (key == "" || s.Key == h.key(key)) {
			return s
		}
	}
	return StageStatus{}
}

// recorded waits until the recorder of key has written n access units, and returns how many it has.
func (h *host) recorded(key string, n uint64) uint64 {
	h.t.Helper()
	var got uint64
	testenv.Eventually(h.t, 30*time.Second, func() error {
		r := h.stage(kindRecord, key).Record
		if r == nil {
			return errors.New("no recorder of " + key)
		}
		if got = r.Packets; got < n {
			return fmt.Errorf("%s: %d access units recorded, want %d", key, got, n)
		}
		return nil
	})
	return got
}

// pictures are digests of a file's pictures, read back by ffmpeg.
func pictures(t *testing.T, path string) []string {
	t.Helper()
	return digests(testenv.FFmpeg(t, "-i", path, "-map", "0:v", "-c", "copy", "-f", "h264", "-"))
}

func digests(annexB []byte) (list []string) {
	for nal := range bitstream.NALs(annexB) {
		if c := bitstream.Classify(27, nal); !c.ParamSet && !c.AUD {
			sum := sha256.Sum256(nal)
			list = append(list, string(sum[:8]))
		}
	}
	return list
}

// requireRun checks that the files hold the camera's clip, played over and over, without a gap.
func requireRun(t *testing.T, segments []pipeline.Recorded) {
	t.Helper()
	clip, err := testcam.EmbeddedClip("h264", false)
	require.NoError(t, err)
	var one, got []string
	for _, p := range clip.Packets(0) {
		one = append(one, digests(p.Data)...)
	}
	for i, s := range segments {
		got = append(got, pictures(t, s.Path)...)
		require.Zero(t, s.Lost, s.Path)
		if i > 0 {
			require.False(t, s.Discontinuous, s.Path)
			require.Equal(t, segments[i-1].End, s.Start, s.Path)
		}
	}
	require.NotEmpty(t, got)
	all := slices.Repeat(one, len(got)/len(one)+2)
	for from := range one {
		if slices.Equal(all[from:from+len(got)], got) {
			return
		}
	}
	t.Fatalf("%d units of %d files are not those of the clip in a row", len(got), len(segments))
}

func newReader(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }
