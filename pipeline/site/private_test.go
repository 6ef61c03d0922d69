package site

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// What variables and files put in is shown nowhere, whatever it is a part of; a process of a stage does not inherit it either.
func TestPrivate(t *testing.T) {
	const secret, other, short = "S3cret/of%the site", "0ther-secret", "xyz"
	t.Setenv("SITE_TEST_SECRET", secret)
	t.Setenv("SITE_TEST_OTHER", other)
	t.Setenv("SITE_TEST_HOST", "127.0.0.1:1")
	h := newHost(t, 1)
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "to"), []byte("http://127.0.0.1:1/"+other+"?x=1\n"), 0o600))
	h.start(`
cameras:
  KEYhttp: {source: 'https://${SITE_TEST_HOST}/${SITE_TEST_OTHER}'}
  KEYtcp: {source: 'tcp://127.0.0.1:1?k=${SITE_TEST_OTHER}'}
  KEYrtsp: {source: 'rtsp://127.0.0.1:1/${SITE_TEST_SECRET}'}
  KEYa: {source: CAM0, isolation: process, push: {to: 'http://127.0.0.1:1/${SITE_TEST_OTHER}'}}
  KEYb: {source: CAM0, push: {to_file: to}}
`)
	failing := 3 // cameras, and two pushes
	var said []string
	testenv.Eventually(t, 40*time.Second, func() error {
		said = nil
		for _, s := range h.site.Status().Stages {
			text := s.LastError
			if s.Ingest != nil {
				text += s.Ingest.LastError
			}
			if s.Push != nil {
				text += s.Push.LastError
			}
			if text != "" {
				said = append(said, text)
			}
		}
		if want := failing + 2; len(said) < want {
			return fmt.Errorf("%d of %d have failed: %q", len(said), want, said)
		}
		if h.stage(kindIngest, "a").PID == 0 {
			return fmt.Errorf("the process has not started")
		}
		return nil
	})
	status, err := json.Marshal([]any{h.site.Status(), h.site.Health()})
	require.NoError(t, err)
	for _, v := range []string{secret, other, "S3cret"} {
		require.NotContains(t, h.log.String(), v)
		require.NotContains(t, string(status), v)
	}
	require.Contains(t, string(status), "***")
	require.Contains(t, h.log.String(), "127.0.0.1:1")
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", h.stage(kindIngest, "a").PID))
	require.NoError(t, err)
	require.Contains(t, string(environ), "PATH=")
	require.NotContains(t, string(environ), other)
	require.NotContains(t, string(environ), "SITE_TEST_")
	require.NoError(t, h.stop())

	// Nor do errors of the file say it.
	t.Setenv("SITE_TEST_SHORT", short)
	_, err = Load(h.file("cameras: {KEYa: {source: '/nofile/${SITE_TEST_OTHER}'}}"))
	require.ErrorContains(t, err, "source: stat /nofile/***: no such file")
	for _, field := range []string{"transport: '${SITE_TEST_OTHER}'", "transport: '${SITE_TEST_SHORT}'", "timeout: '${SITE_TEST_OTHER}'",
		"push: {to: '${SITE_TEST_OTHER}'}",
		"infer: {to: '${SITE_TEST_OTHER}', results: x}"} {
		_, err := Load(h.file("cameras: {KEYa: {source: 'rtsp://127.0.0.1/x', " + field + "}}"))
		require.Error(t, err, field)
		require.NotContains(t, err.Error(), other, field)
		require.NotContains(t, err.Error(), short, field)
	}
}

// A secret in clear is refused in a query too.
func TestLiteralParameter(t *testing.T) {
	h := &host{t: t, dir: t.TempDir()}
	t.Setenv("SITE_TEST_SECRET", "0123456789")
	load := func(text string) error {
		name := filepath.Join(h.dir, "site.yaml")
		require.NoError(t, os.WriteFile(name, []byte("cameras: {a: {"+text+"}}"), 0o600))
		_, err := Load(name)
		return err
	}
	for _, bad := range []string{"srt://10.0.0.1:9000?passphrase=x", "http://10.0.0.1/x?user=a&password=b",
		"http://10.0.0.1/x?TOKEN=a${SITE_TEST_SECRET}", "http://10.0.0.1/?api_key=x"} {
		require.ErrorContains(t, load("source: '"+bad+"'"), "a secret must not stand in this file", bad)
		require.ErrorContains(t, load("source: 'rtsp://10.0.0.1/x', push: {to: '"+bad+"'}"), "a secret must not stand in this file", bad)
	}
	for _, good := range []string{"srt://10.0.0.1:9000?passphrase=${SITE_TEST_SECRET}&mode=caller", "rtsp://10.0.0.1/cam?channel=1&subtype=0",
		"http://10.0.0.1/x?password="} {
		require.NoError(t, load("source: '"+good+"'"), good)
	}
}
