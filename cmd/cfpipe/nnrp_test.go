package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
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

func TestInferUsage(t *testing.T) {
	var out bytes.Buffer
	run := func(a ...string) error {
		c := newRootCommand()
		c.SetArgs(append([]string{"infer", "--runtime-dir", t.TempDir()}, a...))
		c.SetOut(&out)
		return c.ExecuteContext(t.Context())
	}
	for _, a := range [][]string{{}, {"cam"}, {"cam", "--to", "https://x"}, {"cam", "--to", "nnrps://x", "--size", "640"}, {"cam", "--to", "nnrps://x", "--dtype", "int4"},
		{"cam", "--to", "nnrps://x", "--layout", "chw"}, {"cam", "--to", "nnrps://x", "--tensors", "text"}, {"cam", "--to", "nnrps://x", "--latency", "2m"},
		{"cam", "--to", "nnrps://x", "--channels", "2"}, {"cam", "--to", "nnrps://x", "--fps", "-1"}} {
		require.Equal(t, exitUsage, exitStatus(run(a...)), "%v", a)
	}
	require.Equal(t, exitNotFound, exitStatus(run("cam", "--to", "nnrps://x")))
}
