package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/nnrp/session"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// cfpipe runs the command in this process.
func runNNRP(ctx context.Context, in io.Reader, out io.Writer, a ...string) error {
	c := newRootCommand()
	c.SetArgs(append([]string{"nnrp"}, a...))
	c.SetIn(in)
	c.SetOut(out)
	return c.ExecuteContext(ctx)
}

func TestNNRPDump(t *testing.T) {
	ping, err := (&nnrp.Bare{Msg: nnrp.MsgPing}).Append(nil, nnrp.Header{SessionID: 7, TraceID: 9})
	require.NoError(t, err)
	both, err := (&nnrp.SessionPatch{PatchMask: nnrp.PatchQualityTier, QualityTier: 3}).Append(ping, nnrp.Header{SessionID: 7})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "capture")
	require.NoError(t, os.WriteFile(file, both, 0o600))
	var out bytes.Buffer
	require.NoError(t, runNNRP(t.Context(), nil, &out, "dump", file))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 2)
	var m map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &m))
	require.Equal(t, "SESSION_PATCH", m["message"])
	require.EqualValues(t, 40, m["offset"])
	require.EqualValues(t, 3, m["metadata"].(map[string]any)["quality_tier"])

	out.Reset()
	require.NoError(t, runNNRP(t.Context(), bytes.NewReader(both), &out, "dump", "--reencode", "-"))
	require.Equal(t, both, out.Bytes())

	out.Reset()
	both[40+7] = 41
	err = runNNRP(t.Context(), bytes.NewReader(both), &out, "dump", "-")
	require.ErrorContains(t, err, "malformed_header at byte 47")
	require.Equal(t, exitFailed, exitStatus(err))
	require.Equal(t, lines[0]+"\n", out.String(), "what came before is shown")
	require.Equal(t, exitNotFound, exitStatus(runNNRP(t.Context(), nil, &out, "dump", file+"x")))
	require.Equal(t, exitUsage, exitStatus(runNNRP(t.Context(), nil, &out, "dump")))
}

func TestNNRPServe(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("s3cret\n"), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := runNNRP(ctx, nil, w, "serve", "--listen", "127.0.0.1:0", "--token-file", token, "--json")
		_ = w.CloseWithError(err)
		done <- err
	}()
	var at struct{ URL, Fingerprint string }
	require.NoError(t, json.NewDecoder(r).Decode(&at))
	conn, err := quictransport.Dial(ctx, at.URL, quictransport.Trust{Fingerprint: at.Fingerprint})
	require.NoError(t, err)
	c, err := session.Open(ctx, conn, session.ClientOptions{Hello: nnrp.ClientHello{Auth: []byte("s3cret")}})
	require.NoError(t, err)
	require.Equal(t, "motion", inference.ParseModel(c.Agreement().Extensions).Name)
	require.NoError(t, c.Close(ctx))
	cancel()
	require.NoError(t, <-done)

	var out bytes.Buffer
	for _, a := range [][]string{{"--engine", "magic"}, {"--engine", "onnx"}, {"--cert", "x"}, {"--max-body", "1"}, {"surplus"}} {
		require.Equal(t, exitUsage, exitStatus(runNNRP(t.Context(), nil, &out, append([]string{"serve", "--listen", "127.0.0.1:0"}, a...)...)), "%v", a)
	}
	require.Equal(t, exitNotFound, exitStatus(runNNRP(t.Context(), nil, &out, "serve", "--engine", "onnx", "--model", token+"x")))
	require.Equal(t, exitNotFound, exitStatus(runNNRP(t.Context(), nil, &out, "serve", "--token-file", token+"x")))
}

// TestNNRPServeMetrics: what the runtime has done can be read over HTTP, and nothing else can be done there.
func TestNNRPServeMetrics(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := runNNRP(ctx, nil, w, "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--max-sessions", "1", "--json")
		_ = w.CloseWithError(err)
		done <- err
	}()
	var at struct{ URL, Fingerprint, Metrics string }
	require.NoError(t, json.NewDecoder(r).Decode(&at))
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	request := func(method, url string) (int, string) {
		q, err := http.NewRequestWithContext(t.Context(), method, url, nil)
		require.NoError(t, err)
		a, err := web.Do(q)
		require.NoError(t, err)
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		require.NoError(t, err)
		return a.StatusCode, string(body)
	}
	status, body := request("GET", at.Metrics)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, "\ncfpipe_nnrp_sessions 0\n")
	for _, q := range [][2]string{{"POST", at.Metrics}, {"DELETE", at.Metrics}} {
		status, _ = request(q[0], q[1])
		require.Equal(t, http.StatusMethodNotAllowed, status, q[0])
	}
	status, _ = request("GET", strings.TrimSuffix(at.Metrics, "/metrics"))
	require.Equal(t, http.StatusNotFound, status)

	open := func() (*session.Client, error) {
		conn, err := quictransport.Dial(ctx, at.URL, quictransport.Trust{Fingerprint: at.Fingerprint})
		require.NoError(t, err)
		return session.Open(ctx, conn, session.ClientOptions{})
	}
	c, err := open()
	require.NoError(t, err)
	_, err = open() // one too many
	require.ErrorIs(t, err, nnrp.ErrServerBusy)
	submit := func(sections int) *session.Outcome {
		m := &nnrp.FrameSubmit{ProfileID: nnrp.ProfileTensor, TileIndex: nnrp.TileIndex{Count: 1},
			Tensor: nnrp.TensorSubmit{SrcWidth: 8, SrcHeight: 8, TileWidth: 8, TileHeight: 8}}
		for i := range sections {
			m.Sections = append(m.Sections, nnrp.Section{RoleID: uint16(i + 1), DType: nnrp.Uint8, ElementCountPerTile: 64,
				LengthTable: nnrp.AppendLength(nil, 64), Payload: make([]byte, 64)})
		}
		_, err := c.Submit(ctx, m, session.SubmitOptions{})
		require.NoError(t, err)
		o, err := c.Next(ctx)
		require.NoError(t, err)
		return o
	}
	o := submit(1)
	require.Equal(t, session.Delivered, o.State)
	o.Release()
	require.ErrorIs(t, submit(2).Err, nnrp.ErrUnsupportedCapability, "the engine takes one section")
	_, body = request("GET", at.Metrics)
	for _, line := range []string{"cfpipe_nnrp_sessions 1", `cfpipe_nnrp_sessions_total{outcome="accepted"} 1`,
		`cfpipe_nnrp_sessions_total{outcome="busy"} 1`,
		`cfpipe_nnrp_frames_total{outcome="result"} 1`, `cfpipe_nnrp_frames_total{outcome="unsupported_capability"} 1`, "cfpipe_nnrp_queue_seconds_count 1",
		"cfpipe_nnrp_inference_seconds_count 1", "cfpipe_nnrp_batch_frames_sum 1"} {
		require.Contains(t, body, "\n"+line+"\n")
	}
	require.NotContains(t, body, at.Fingerprint)
	require.NoError(t, c.Close(ctx))
	testenv.Eventually(t, 10*time.Second, func() error {
		if _, body := request("GET", at.Metrics); !strings.Contains(body, "\ncfpipe_nnrp_sessions 0\n") {
			return errors.New("the session is still counted")
		}
		return nil
	})

	var out bytes.Buffer
	taken := strings.TrimSuffix(strings.TrimPrefix(at.Metrics, "http://"), "/metrics")
	require.Equal(t, exitFailed, exitStatus(runNNRP(ctx, nil, &out, "serve", "--listen", "127.0.0.1:0", "--metrics", taken)), "the port is in use")
	for _, bad := range []string{"9100", "127.0.0.1", "127.0.0.1:99999", "http://127.0.0.1:9100"} {
		require.Equal(t, exitUsage, exitStatus(runNNRP(ctx, nil, &out, "serve", "--listen", "127.0.0.1:0", "--metrics", bad)), bad)
	}
	cancel()
	require.NoError(t, <-done)
	_, err = net.Dial("tcp", taken)
	require.Error(t, err, "the endpoint ends with the runtime")
}

func TestInferUsage(t *testing.T) {
	var out bytes.Buffer
	run := func(a ...string) error {
		c := newRootCommand()
		c.SetArgs(append([]string{"infer", "--runtime-dir", t.TempDir()}, a...))
		c.SetOut(&out)
		return c.ExecuteContext(t.Context())
	}
	for _, a := range [][]string{{}, {"cam"}, {"cam", "--to", "https://x"}, {"cam", "--to", "nnrps://x", "--size", "640"},
		{"cam", "--to", "nnrps://x", "--dtype", "int4"},
		{"cam", "--to", "nnrps://x", "--layout", "chw"}, {"cam", "--to", "nnrps://x", "--tensors", "text"}, {"cam", "--to", "nnrps://x", "--latency", "2m"},
		{"cam", "--to", "nnrps://x", "--channels", "2"}, {"cam", "--to", "nnrps://x", "--fps", "-1"},
		{"cam", "--to", "nnrps://x", "--fingerprint", "00ff"}, {"cam", "--to", "nnrps://x", "--fingerprint", strings.Repeat("0g", 32)}} {
		require.Equal(t, exitUsage, exitStatus(run(a...)), "%v", a)
	}
	require.Equal(t, exitNotFound, exitStatus(run("cam", "--to", "nnrps://x")))
	require.Equal(t, exitNotFound, exitStatus(run("cam", "--to", "nnrps://x", "--ca", filepath.Join(t.TempDir(), "none"))))
}
