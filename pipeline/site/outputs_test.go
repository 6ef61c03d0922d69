package site

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
)

// runtimeProcess is an inference runtime; address and fingerprint are printed when it listens.
func runtimeProcess(t *testing.T, listen string, flags ...string) (p *testenv.Process, url, fingerprint string) {
	t.Helper()
	p = testenv.Start(t, testenv.Binary(t), append([]string{"nnrp", "serve", "--engine", "motion", "--listen", listen, "--json"}, flags...)...)
	var at struct{ URL, Fingerprint string }
	testenv.Eventually(t, 20*time.Second, func() error { return json.Unmarshal([]byte(p.Stdout()), &at) })
	return p, at.URL, at.Fingerprint
}

// inferSite lacks what the second camera's inference is.
const inferSite = `
stagger: 10ms
defaults:
  decode: cpu
  infer:
    {to: 'URL', fingerprint: PRINT, token_file: token, size: 320x180, tile: 16, threshold: 0, results: 'res/%{key}-%Y.jsonl', results_size: 65536}
cameras:
  KEYa: {source: CAM0, infer: {trigger: {output: luma_difference, above: 0.01}}, events: {out: 'ev/%{key}/%s-%f.mp4', pre: 1s, post: 1s, longest: 4s}}
  KEYb: {source: CAM1, infer: `

// The pictures of a camera go to a runtime, from this process and from another: results are in files that are cut by size, they trigger
// events, and neither a killed process nor a runtime that goes away ends it.
func TestInferStage(t *testing.T) {
	t.Parallel()
	h := newHost(t, 2)
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "token"), []byte("token-of-the-runtime\n"), 0o600))
	serve, url, fingerprint := runtimeProcess(t, "127.0.0.1:0", "--token-file", filepath.Join(h.dir, "token"))
	h.start(strings.NewReplacer("URL", url, "PRINT", fingerprint).Replace(inferSite + "{isolation: process, fps: 4}}\n"))
	inferred := func(key string, n uint64) {
		t.Helper()
		testenv.Eventually(t, 30*time.Second, func() error {
			if i := h.stage(kindInfer, key).Infer; i == nil || i.Results < n {
				return fmt.Errorf("%s: %+v", key, h.stage(kindInfer, key))
			}
			return nil
		})
	}
	inferred("a", 20)
	inferred("b", 4)
	pid := h.stage(kindInfer, "b").PID
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	testenv.Eventually(t, 20*time.Second, func() error {
		if s := h.stage(kindInfer, "b"); s.Restarts != 1 || s.State != StateRunning || s.PID == pid {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	inferred("b", 4)
	address, _ := strings.CutPrefix(url, "nnrps://")
	serve.Kill()
	_, _, fingerprint2 := runtimeProcess(t, address, "--token-file", filepath.Join(h.dir, "token"))
	require.NotEqual(t, fingerprint, fingerprint2, "it has made another certificate")
	h.file(strings.NewReplacer("URL", url, "PRINT", fingerprint2).Replace(inferSite + "off}\n"))
	ingest := h.stage(kindIngest, "a").Since
	h.reload <- struct{}{}
	testenv.Eventually(t, 20*time.Second, func() error {
		if h.stage(kindInfer, "b").Kind != "" {
			return errors.New("b is inferred still")
		}
		return nil
	})
	inferred("a", 20)
	require.Equal(t, ingest, h.stage(kindIngest, "a").Since, "the camera was not touched")
	testenv.Eventually(t, 20*time.Second, func() error {
		if len(h.events("a")) == 0 {
			return errors.New("no event")
		}
		return nil
	})
	require.NotZero(t, h.stage(kindInfer, "a").Infer.Triggers)
	require.NoError(t, h.stop())
	e := h.events("a")[0]
	require.Contains(t, e.Event.Reason, "luma_difference ")
	requireRun(t, h.events("a")[:1])

	files, err := filepath.Glob(filepath.Join(h.dir, "res", h.key("a")+"-*.jsonl"))
	require.NoError(t, err)
	require.Greater(t, len(files), 1, "cut by size")
	total := 0
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		require.LessOrEqual(t, len(b), 65536)
		for line := range bytes.Lines(b) {
			var r struct {
				Seq     uint64
				Tensors map[string]struct{ Name string }
			}
			require.NoError(t, json.Unmarshal(line, &r), "%s: %.200s", f, line)
			require.Equal(t, "luma_difference", r.Tensors["1"].Name)
			total++
		}
	}
	require.Greater(t, total, 30)
	require.NotContains(t, h.log.String(), "token-of-the-runtime")
}

// A stream is sent to another server, from this process and from another, with the URL from a file; the server goes away and comes back.
func TestPushStage(t *testing.T) {
	t.Parallel()
	h := newHost(t, 1)
	var got, conns atomic.Int64
	receive := func(address string) net.Listener {
		l, err := net.Listen("tcp", address)
		require.NoError(t, err)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				conns.Add(1)
				go func() {
					defer c.Close()
					packet := make([]byte, 188)
					for {
						if _, err := io.ReadFull(c, packet); err != nil || packet[0] != 0x47 {
							return
						}
						if got.Add(1)%500 == 0 { // the server ends the connection
							return
						}
					}
				}()
			}
		}()
		return l
	}
	l := receive("127.0.0.1:0")
	defer l.Close()
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "url"), []byte("tcp://"+l.Addr().String()+"?secret-of-the-url\n"), 0o600))
	text := `
cameras:
  KEYa: {source: CAM0, push: {to_file: url}, sub: {source: CAM0, push: {to: 'tcp://` + l.Addr().String() + `', isolation: process}}}
`
	h.start(text)
	pushed := func(key string, connects uint64) {
		t.Helper()
		testenv.Eventually(t, 30*time.Second, func() error {
			if p := h.stage(kindPush, key).Push; p == nil || p.Packets < 50 || p.Connects < connects || p.Connections != 1 {
				return fmt.Errorf("%+v", h.stage(kindPush, key))
			}
			return nil
		})
	}
	pushed("a", 2)
	pushed("a-sub", 1)
	require.NotZero(t, h.stage(kindPush, "a-sub").PID)
	require.GreaterOrEqual(t, conns.Load(), int64(3))
	require.Zero(t, h.stage(kindPush, "a").Restarts)
	names := map[string]bool{}
	metrics := make(chan prometheus.Metric, 10_000)
	(&siteCollector{site: h.site}).Collect(metrics)
	close(metrics)
	for m := range metrics {
		names[m.Desc().String()] = true
	}
	require.True(t, names[pushPackets.String()] && names[pushConnected.String()])
	since := h.stage(kindIngest, "a").Since
	h.file(strings.Replace(text, "push: {to_file: url}", "audio: true", 1))
	h.reload <- struct{}{}
	testenv.Eventually(t, 20*time.Second, func() error {
		if h.stage(kindPush, "a").Kind != "" {
			return errors.New("it is pushed still")
		}
		return nil
	})
	require.Equal(t, since, h.stage(kindIngest, "a").Since)
	require.NoError(t, h.stop())
	require.NotContains(t, h.log.String(), "secret-of-the-url")
}

func TestLoadOutputs(t *testing.T) {
	t.Setenv("SITE_TEST_STREAM_KEY", "live-key")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "url"), []byte("rtmp://h/live/from-file\n"), 0o600))
	c, err := load(t, `
defaults:
  decode: auto
  infer: {to: 'nnrps://gpu:4433', fps: 2.5, results: 'r/%{key}-%F.jsonl'}
  push: {to: 'rtsp://viewer:${SITE_TEST_STREAM_KEY}@h/%{key}'}
cameras:
  a: {source: 'rtsp://h/a'}
  b: {source: 'rtsp://h/b', push: {to: 'rtmp://h/live/${SITE_TEST_STREAM_KEY}'}, infer: {size: 64x32, dtype: fp16, retention: {size: 1GiB}}}
  c: {source: 'rtsp://h/c', infer: off, push: off, sub: {source: 'rtsp://h/d', push: {to_file: `+dir+`/url, isolation: process}}}
`)
	require.NoError(t, err)
	var ids []string
	for _, s := range c.specs("", "") {
		if s.Kind != kindIngest {
			ids = append(ids, s.id())
			require.Equal(t, s.id() == "push c-sub", s.Isolated)
		} else {
			require.True(t, s.Stream.Infer == nil && s.Stream.Push == nil, "a change of them leaves the camera alone")
		}
	}
	require.Equal(t, []string{"infer a", "push a", "infer b", "push b", "push c-sub"}, ids)
	require.Equal(t, 2.5, c.Cameras["b"].Infer.FPS)
	require.Equal(t, "rtmp://h/live/live-key", c.Cameras["b"].Push.To)
	require.Equal(t, "rtmp://h/live/from-file", c.Cameras["c"].Sub.Push.To)
	require.Nil(t, c.Cameras["a"].Infer.Retention)

	for text, want := range map[string]string{
		"infer: {to: 'nnrps://h', results: a.jsonl}":                                                              "it needs pictures: set decode",
		"decode: cpu, infer: {results: a.jsonl}":                                                                  "infer.to: it is missing",
		"decode: cpu, infer: {to: 'http://h', results: a.jsonl}":                                                  "infer: to: ",
		"decode: cpu, infer: {to: 'nnrps://h'}":                                                                   "nothing is done with the results",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, size: 3}":                                        "want WxH",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, dtype: x}":                                       "dtype",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, channels: 2}":                                    "want 0, 1 or 3",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, fps: NaN}":                                       "want a number from 0 to 1000",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, fps: -1}":                                        "want a number from 0 to 1000",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, fps: x}":                                         "want a number from 0 to 1000",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, latency: 2m}":                                    "latency: want",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, fingerprint: 12}":                                "is not a SHA-256",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, ca: nowhere.pem}":                                "read CA file",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, token: clear}":                                   "a secret must not stand in this file",
		"decode: cpu, infer: {to: 'nnrps://h', results: '%H-%M.jsonl'}":                                           "",
		"decode: cpu, infer: {to: 'nnrps://h', results: '%s.jsonl'}":                                              "its name changes within a minute",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.jsonl, results_size: 1}":                                "want a value from 65536",
		"decode: cpu, infer: {to: 'nnrps://h', trigger: {output: x}}":                                             "nobody records this stream on events",
		"decode: cpu, infer: {to: 'nnrps://h', trigger: {above: 3}}, events: {out: a.mp4}":                        "trigger.output: it is missing",
		"decode: cpu, infer: {to: 'nnrps://h', trigger: {output: x}, retention: {age: 1d}}, events: {out: a.mp4}": "want results as well",
		"decode: cpu, infer: {to: 'nnrps://h', results: a.mp4}, record: {out: a.mp4}":                             "it names the same files",
		"push: {}":                                                      "push.to: it is missing",
		"push: {to: nowhere}":                                           "no scheme",
		"push: {to: 'rtsp://u:clear@h/a'}":                              "a secret must not stand in this file",
		"push: {to: 'rtmp://h/live/clear'}":                             "a secret must not stand in this file",
		"push: {to: 'rtsp://h/a', password: clear}":                     "a secret must not stand in this file",
		"push: {to: 'rtsp://h/a', to_file: x}":                          "it stands beside to_file",
		"push: {to: 'rtsp://h/a', password: '${SITE_TEST_STREAM_KEY}'}": "password without username",
	} {
		_, err := load(t, "cameras: {a: {source: 'rtsp://h/a', "+text+"}}")
		if want == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "clear", text)
	}
}

// A disk that does not take the results is counted, and written to again when it does.
func TestResults(t *testing.T) {
	dir := t.TempDir()
	wall := filepath.Join(dir, "wall")
	require.NoError(t, os.WriteFile(wall, nil, 0o600))
	p, err := mux.ParsePattern(wall+"/a.jsonl", "k")
	require.NoError(t, err)
	var log testenv.Log
	r := &results{pattern: p, limit: 10, log: slog.New(slog.NewTextHandler(&log, nil))}
	for range 3 {
		n, err := r.Write([]byte("12345\n"))
		require.NoError(t, err)
		require.Equal(t, 6, n)
	}
	require.EqualValues(t, 3, r.unwritten.Load())
	require.Equal(t, 1, strings.Count(log.String(), "cannot be written"))
	require.NoError(t, os.Remove(wall))
	r.retry = time.Time{}
	for range 3 {
		_, _ = r.Write([]byte("12345\n"))
	}
	r.close()
	require.EqualValues(t, 3, r.unwritten.Load())
	files, err := filepath.Glob(wall + "/*")
	require.NoError(t, err)
	require.Len(t, files, 3, "a line each")
}
