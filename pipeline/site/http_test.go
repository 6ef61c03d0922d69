package site

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/jpeg"
	"image/png"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

const testToken = "0123456789abcdef0123456789abcdef"

// request sends a raw path, as no client library would let it through.
func request(t *testing.T, addr, method, path, authorization string) (status int, header http.Header, body []byte) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(40*time.Second)))
	req := method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
	if authorization != "" {
		req += "Authorization: " + authorization + "\r\n"
	}
	_, err = io.WriteString(conn, req+"\r\n")
	require.NoError(t, err)
	raw, err := io.ReadAll(conn)
	require.NoError(t, err)
	resp, err := http.ReadResponse(newReader(raw), nil)
	require.NoError(t, err, "%q", raw)
	defer resp.Body.Close()
	body, _ = io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header, body
}

// A site with its API: every call with right and wrong input.
func TestHTTP(t *testing.T) {
	t.Setenv("SITE_TEST_CAMERA_PASSWORD", "hunter2-of-the-camera")
	h := newHost(t, 2)
	addrs := h.serves(testToken + "\n")
	h.start(`
stagger: 10ms
http: {listen: '127.0.0.1:0', token_file: token}
cameras:
  KEYa: {source: CAM0, record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s, retention: {age: 1d}, fsync: fragment}}
  KEYgone: {source: 'rtsp://viewer:${SITE_TEST_CAMERA_PASSWORD}@127.0.0.1:1/none', record: {out: 'rec/%{key}/%s-%f.mp4'}}
`)
	addr := (<-addrs).String()
	h.recorded("a", 60)
	bearer := "Bearer " + testToken
	get := func(path string) (int, http.Header, []byte) { return request(t, addr, "GET", path, bearer) }

	// Without the token, or with a wrong one, nothing is answered, known paths and unknown ones alike.
	for _, a := range []string{"", "Bearer", "Bearer ", "Bearer x", "Bearer " + testToken + "x", "Bearer " + testToken[1:], "Basic " + testToken, testToken,
		"Bearer  " + strings.ToUpper(testToken)} {
		for _, path := range []string{"/", "/metrics", "/health/live", "/status", "/snapshot/" + h.key("a") + ".jpg", "/nothing"} {
			status, header, body := request(t, addr, "GET", path, a)
			require.Equal(t, 401, status, "%q %s", a, path)
			require.Contains(t, header.Get("WWW-Authenticate"), "Bearer")
			require.NotContains(t, string(body), h.prefix)
			if strings.HasPrefix(a, "Bearer ") && strings.TrimSpace(a) != "Bearer" {
				require.JSONEq(t, `{"error": "the token is wrong"}`, string(body), "%q", a)
			} else {
				require.Contains(t, string(body), "a bearer token is needed", "%q", a)
			}
		}
	}
	status, _, body := request(t, addr, "GET", "/health/live?token="+testToken, "")
	require.Equal(t, 401, status, string(body))

	for path, want := range map[string]int{
		"/health/live": 200, "/health/ready": 200, "/health/cameras": 200, "/health/cameras/" + h.key("a"): 200, "/health/cameras/" + h.key("gone"): 503,
		"/health/cameras/nope": 404, "/status": 200, "/metrics": 200, "/snapshot/" + h.key("a") + ".jpg": 200, "/snapshot/" + h.key("a") + ".png": 200,
		"/snapshot/" + h.key("a"): 404, "/snapshot/" + h.key("a") + ".gif": 404, "/snapshot/nope.jpg": 404, "/snapshot/.jpg": 404, "/snapshot/": 404,
		"/snapshot/" + h.key("gone") + ".jpg": 503, "/": 404, "/nothing": 404, "/metrics/x": 404, "/health": 404,
		"/snapshot/..%2f..%2fetc%2fpasswd.jpg": 404, "/snapshot/%00.jpg": 404, "/snapshot/..%5c.jpg": 404,
		"/snapshot/" + strings.Repeat("k", 4000) + ".jpg": 404,
	} {
		status, header, body := get(path)
		require.Equal(t, want, status, "%s: %s", path, body)
		require.Equal(t, "no-store", header.Get("Cache-Control"), path)
		if status != 200 {
			require.Equal(t, "application/json", header.Get("Content-Type"), path)
			require.True(t, json.Valid(body), "%s: %s", path, body)
		}
		for _, secret := range []string{testToken, "hunter2-of-the-camera"} {
			require.NotContains(t, string(body), secret, path)
		}
	}
	for _, path := range []string{"/../../etc/passwd", "/snapshot/../../../etc/passwd", "//etc/passwd"} {
		status, _, body := get(path)
		require.NotEqual(t, 200, status, path)
		require.NotContains(t, string(body), "root:")
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		status, header, body := request(t, addr, method, "/health/live", bearer)
		require.Equal(t, 405, status, method)
		require.Equal(t, "GET, HEAD", header.Get("Allow"))
		require.JSONEq(t, `{"error": "the method `+method+` is not for this path: want GET or HEAD"}`, string(body))
	}

	doc := readOpenAPI(t)
	for path, template := range map[string]string{
		"/health/live": "/health/live", "/health/ready": "/health/ready", "/health/cameras": "/health/cameras", "/status": "/status",
		"/health/cameras/" + h.key("a"): "/health/cameras/{key}", "/health/cameras/" + h.key("gone"): "/health/cameras/{key}",
		"/health/cameras/nope": "/health/cameras/{key}", "/recordings": "/recordings",
	} {
		status, _, body := get(path)
		doc.require(t, template, "get", status, body)
	}

	_, header, body := get("/snapshot/" + h.key("a") + ".jpg")
	require.Equal(t, "image/jpeg", header.Get("Content-Type"))
	picture, err := jpeg.Decode(bytes.NewReader(body))
	require.NoError(t, err)
	require.Equal(t, 1280, picture.Bounds().Dx())
	_, _, body = get("/snapshot/" + h.key("a") + ".png")
	_, err = png.Decode(bytes.NewReader(body))
	require.NoError(t, err)

	var cameras struct{ Cameras []CameraHealth }
	_, _, body = get("/health/cameras")
	require.NoError(t, json.Unmarshal(body, &cameras))
	require.Len(t, cameras.Cameras, 2)
	a, gone := cameras.Cameras[0], cameras.Cameras[1]
	require.True(t, a.OK && a.Connected && *a.Recording && *a.AgeSeconds < 5, "%+v", a)
	require.True(t, !gone.OK && !gone.Connected && !*gone.Recording && gone.AgeSeconds == nil && strings.Contains(gone.Problem, "refused"), "%+v", gone)

	testenv.Eventually(t, 20*time.Second, func() error { // readers tell how far they are every few seconds
		if _, _, body = get("/metrics"); !bytes.Contains(body, []byte("cfpipe_reader_lag_ratio{")) {
			return errors.New("no reader has told its lag")
		}
		return nil
	})
	values := metricValues(t, regexp.MustCompile(`bit="[0-9]+"`).ReplaceAllString(string(body), `bit="0"`))
	for name, atLeast := range map[string]float64{
		`cfpipe_ingest_connected{key="A"}`: 1, `cfpipe_ingest_packets_total{key="A",track="video"}`: 60, `cfpipe_ingest_gaps_total{key="A",track="video"}`: 0,
		`cfpipe_ingest_reconnects_total{key="A"}`: 0, `cfpipe_ingest_last_packet_age_seconds{key="A",track="video"}`: 0,
		`cfpipe_stage_up{key="A",kind="record"}`: 1, `cfpipe_publisher_packets_per_second{key="A"}`: 10, `cfpipe_publisher_readers{key="A"}`: 1,
		`cfpipe_reader_lag_packets{bit="0",key="A",reader="record"}`: 0, `cfpipe_reader_lag_ratio{bit="0",key="A",reader="record"}`: 0,
		`cfpipe_record_packets_total{key="A",recording="continuous"}`: 60, `cfpipe_record_bytes_total{key="A",recording="continuous"}`: 10_000, `cfpipe_record_lost_total{key="A",recording="continuous"}`: 0,
		`cfpipe_record_fsyncs_total{key="A",recording="continuous"}`: 1, `cfpipe_record_fsync_seconds_total{key="A",recording="continuous"}`: 0, `cfpipe_record_write_seconds_total{key="A",recording="continuous"}`: 0,
		`cfpipe_record_free_bytes{key="A",recording="continuous"}`: 1, `cfpipe_recordings_files{key="A",recording="continuous"}`: 0, `cfpipe_site_reload_ok`: 1,
		`process_resident_memory_bytes`: 1, `go_goroutines`: 1,
	} {
		v, ok := values[strings.ReplaceAll(name, "A\"", h.key("a")+"\"")]
		require.True(t, ok, name)
		require.GreaterOrEqual(t, v, atLeast, name)
	}

	// Another token: the old one is worth nothing any more.
	require.NoError(t, os.WriteFile(filepath.Join(h.dir, "token"), []byte("another-token-of-some-length"), 0o600))
	h.reload <- struct{}{}
	addr = (<-addrs).String()
	status, _, _ = get("/health/live")
	require.Equal(t, 401, status)
	status, _, _ = request(t, addr, "GET", "/health/live", "Bearer another-token-of-some-length")
	require.Equal(t, 200, status)
	require.NoError(t, h.stop())
	_, err = net.Dial("tcp", addr)
	require.Error(t, err)
	require.NotContains(t, h.log.String(), "hunter2")
	require.NotContains(t, h.log.String(), testToken)
}

func metricValues(t *testing.T, text string) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for line := range strings.Lines(text) {
		name, v, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if ok {
			name += "}"
		} else if name, v, ok = strings.Cut(strings.TrimSpace(line), " "); !ok || strings.HasPrefix(line, "#") {
			continue
		}
		var f float64
		if _, err := fmt.Sscan(v, &f); err == nil {
			values[name] = f
		}
	}
	return values
}

// A port that is taken is tried again; everything else runs.
func TestHTTPPortTaken(t *testing.T) {
	t.Setenv("SITE_TEST_TOKEN", testToken)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := newHost(t, 1)
	h.start(`
http: {listen: '` + l.Addr().String() + `', token: '${SITE_TEST_TOKEN}'}
cameras:
  KEYa: {source: CAM0, record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s}}
`)
	h.recorded("a", 25)
	require.Contains(t, h.log.String(), "http is not served")
	l.Close()
	testenv.Eventually(t, 20*time.Second, func() error {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return errors.New("not served yet")
		}
		return c.Close()
	})
	require.NoError(t, h.stop())
}
