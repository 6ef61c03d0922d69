package site

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

// answered is the answer of GET /recordings.
type answered struct {
	Recordings []struct {
		Key, Path, Name, State, Codecs, Cause string
		Start, End                            time.Time
		Packets, Lost, Bytes                  *int64
	}
	Truncated bool
}

// rows are the paths that stand in an index, whether their files are there or not.
func rows(t *testing.T, index string) (paths []string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+index+"?mode=ro")
	require.NoError(t, err)
	defer db.Close()
	r, err := db.Query("SELECT path FROM files ORDER BY path")
	require.NoError(t, err)
	defer r.Close()
	for r.Next() {
		var p string
		require.NoError(t, r.Scan(&p))
		paths = append(paths, p)
	}
	require.NoError(t, r.Err())
	return paths
}

// What is recorded is listed, exported and sent as it lies there; every call with right and wrong input. The index is deleted meanwhile, and is
// there again.
func TestHTTPRecordings(t *testing.T) {
	t.Setenv("SITE_TEST_TOKEN", testToken)
	h := newHost(t, 2)
	addrs := make(chan net.Addr, 4)
	h.onServe = func(a net.Addr) { addrs <- a }
	h.start(`
stagger: 10ms
http: {listen: '127.0.0.1:0', token: '${SITE_TEST_TOKEN}'}
cameras:
  KEYa: {source: CAM0, record: {out: 'rec/%{key}/%Y-%m-%d/%s-%f.mp4', segment: 2s}}
  KEYb: {source: CAM1, record: {out: 'rec/%{key}/%s-%f.ts', format: ts, segment: 2s, isolation: process}}
`)
	addr := (<-addrs).String()
	get := func(path string) (int, http.Header, []byte) {
		return request(t, addr, "GET", path, "Bearer "+testToken)
	}
	a, b := h.key("a"), h.key("b")
	list := func(query string) (l answered) {
		t.Helper()
		status, _, body := get("/recordings" + query)
		require.Equal(t, 200, status, "%s: %s", query, body)
		require.NoError(t, json.Unmarshal(body, &l))
		return l
	}
	finished := func(key string, n int) {
		t.Helper()
		testenv.Eventually(t, 40*time.Second, func() error {
			status, _, body := get("/recordings?key=" + key)
			var l answered
			if err := json.Unmarshal(body, &l); status != 200 || err != nil {
				return fmt.Errorf("%d %s", status, body)
			}
			got := 0
			for _, r := range l.Recordings {
				if r.State == "finished" {
					got++
				}
			}
			if got < n {
				return fmt.Errorf("%d finished files of %s", got, key)
			}
			return nil
		})
	}
	finished(a, 3)
	finished(b, 2)
	all := list("")
	require.Contains(t, []string{a, b}, all.Recordings[0].Key)
	l := list("?key=" + a)
	require.NotContains(t, fmt.Sprint(l), b)
	first := l.Recordings[0]
	require.Equal(t, "h264", first.Codecs)
	require.Equal(t, "continuous", first.Cause)
	require.EqualValues(t, 0, *first.Lost)
	require.Equal(t, h.of("a")[0].Path, first.Path)
	require.EqualValues(t, h.of("a")[0].Packets, *first.Packets)
	require.True(t, first.Start.Equal(h.of("a")[0].Start) && first.End.Equal(h.of("a")[0].End))
	require.EqualValues(t, h.of("b")[0].Packets, *list("?key=" + b).Recordings[0].Packets, "told by the recorder's own process")
	require.Len(t, list("?key="+a+"&to="+url.QueryEscape(first.End.Format(time.RFC3339Nano))).Recordings, 1)
	require.Empty(t, list("?from=2020-01-01&to=2020-01-02").Recordings)
	require.Len(t, list("?limit=1").Recordings, 1)
	require.True(t, list("?limit=1").Truncated)

	// The export of two files is what their packets are.
	span := "?from=" + url.QueryEscape(first.Start.Format(time.RFC3339Nano)) + "&to=" + url.QueryEscape(l.Recordings[1].End.Format(time.RFC3339Nano))
	for format, kind := range map[string]string{"": "video/mp4", "&format=fmp4": "video/mp4", "&format=mkv": "video/x-matroska", "&format=ts": "video/mp2t"} {
		status, header, body := get("/recordings/" + a + "/export" + span + format)
		require.Equal(t, 200, status, "%s: %.200s", format, body)
		require.Equal(t, kind, header.Get("Content-Type"))
		require.Contains(t, header.Get("Content-Disposition"), a)
		out := filepath.Join(t.TempDir(), "out")
		require.NoError(t, os.WriteFile(out, body, 0o600))
		want := slices.Concat(pictures(t, l.Recordings[0].Path), pictures(t, l.Recordings[1].Path))
		require.Equal(t, want, pictures(t, out), format)
	}
	// A file as it lies there, and a part of it.
	for _, r := range []string{"a", "b"} {
		x := list("?key=" + h.key(r)).Recordings[0]
		want, err := os.ReadFile(x.Path)
		require.NoError(t, err)
		status, _, body := get("/recordings/" + x.Key + "/files/" + x.Name)
		require.Equal(t, 200, status)
		require.True(t, bytes.Equal(want, body))
	}
	secret := filepath.Join(filepath.Dir(first.Path), "1-000.mp4")
	require.NoError(t, os.Symlink("/etc/passwd", secret))
	for path, want := range map[string]int{
		"/recordings?key=nope": 200, "/recordings?key=": 400, "/recordings?key=..%2f": 400, "/recordings?from=yesterday": 400, "/recordings?to=25:00": 400,
		"/recordings?from=now&to=-1h": 400, "/recordings?limit=0": 400, "/recordings?limit=x": 400, "/recordings?limit=99999": 400, "/recordings?from=-1h": 200,
		"/recordings/": 404, "/recordings/" + a: 404,
		"/recordings/" + a + "/export": 400, "/recordings/" + a + "/export?from=x": 400, "/recordings/" + a + "/export?from=-1h&format=mp4": 400,
		"/recordings/" + a + "/export?from=-1h&format=avi": 400, "/recordings/" + a + "/export?from=-1h&to=-2h": 400,
		"/recordings/" + a + "/export?from=2020-01-01&to=2020-01-02": 404, "/recordings/nope/export?from=-1h": 404, "/recordings/..%2f..%2fetc/export?from=-1h": 404,
		"/recordings/" + a + "/export?from=2999-01-01": 400,
		"/recordings/" + a + "/files/":                 404, "/recordings/" + a + "/files/nope.mp4": 404, "/recordings/nope/files/" + first.Name: 404, "/recordings/" + b + "/files/" + first.Name: 404,
		"/recordings/" + a + "/files/..%2f..%2f..%2fetc%2fpasswd": 404, "/recordings/" + a + "/files/%2fetc%2fpasswd": 404,
		"/recordings/" + a + "/files/" + filepath.Dir(first.Name) + "/1-000.mp4": 404, "/recordings/" + a + "/files/..%2f" + a + "%2f" + url.PathEscape(first.Name): 404,
		"/recordings/" + a + "/files/..%2f..%2fsite.yaml": 404, "/recordings/" + a + "/files/%00": 404,
	} {
		status, header, body := get(path)
		require.Equal(t, want, status, "%s: %.300s", path, body)
		require.NotContains(t, string(body), "root:", path)
		require.NotContains(t, string(body), testToken, path)
		require.Equal(t, "no-store", header.Get("Cache-Control"), path)
		status, _, body = request(t, addr, "GET", path, "Bearer wrong")
		require.Equal(t, 401, status, path)
		require.NotContains(t, string(body), a)
	}
	require.NoError(t, os.Remove(secret))

	// The index is deleted while recording runs.
	index := filepath.Join(h.dir, "rec", recordings.IndexName)
	require.NoError(t, os.Remove(index))
	testenv.Eventually(t, 30*time.Second, func() error {
		status, _, body := get("/recordings?key=" + a)
		var l answered
		_ = json.Unmarshal(body, &l)
		if status != 200 || len(l.Recordings) < 4 {
			return fmt.Errorf("%d %.200s", status, body)
		}
		return nil
	})
	require.NoError(t, h.stop())
	var want []string
	for _, s := range slices.Concat(h.of("a"), h.of("b")) {
		require.Zero(t, s.Lost)
		want = append(want, s.Path)
	}
	slices.Sort(want)
	require.Equal(t, want, rows(t, index))
	lib, err := LoadRecordings(filepath.Join(h.dir, "site.yaml"))
	require.NoError(t, err)
	files, err := lib.List(t.Context(), recordings.Query{}, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	require.Len(t, files, len(want))
	for _, f := range files {
		require.True(t, f.Finished, f.Path)
	}
}

// Retention and the index say the same: when a file goes, so does its row.
func TestRetentionIndex(t *testing.T) {
	h := newHost(t, 1)
	h.start(`
cameras:
  KEYa: {source: CAM0, record: {out: 'rec/%{key}/%s-%f.mp4', segment: 1s, retention: {size: 100kB}}}
index: here.db
`)
	index := filepath.Join(h.dir, "here.db")
	testenv.Eventually(t, 60*time.Second, func() error {
		if n := len(h.of("a")); n < 8 {
			return fmt.Errorf("%d files", n)
		}
		if _, err := os.Stat(h.of("a")[0].Path); err == nil {
			return errors.New("the first file is still there")
		}
		return nil
	})
	require.NoError(t, h.stop())
	left, err := filepath.Glob(filepath.Join(h.dir, "rec", "*", "*.mp4"))
	require.NoError(t, err)
	require.Less(t, len(left), len(h.of("a")))
	slices.Sort(left)
	require.Equal(t, left, rows(t, index))
}

// Exports are few at a time, one whose client goes away ends, and what is broken in the middle is not taken for the whole.
func TestExportBounds(t *testing.T) {
	h := newHost(t, 1)
	h.start("cameras:\n  KEYa: {source: CAM0, record: {out: 'rec/%{key}/%s-%f.mp4', segment: 1s}}\n")
	testenv.Eventually(t, 40*time.Second, func() error {
		if n := len(h.of("a")); n < 3 {
			return fmt.Errorf("%d files", n)
		}
		return nil
	})
	require.NoError(t, h.stop())
	a := &recordingsAPI{site: h.site, slots: make(chan struct{}, httpExports)}
	m := http.NewServeMux()
	m.HandleFunc("GET /recordings/{key}/export", a.export)
	m.HandleFunc("GET /recordings/{key}/files/{name...}", a.file)
	target := "/recordings/" + h.key("a") + "/export?from=-1h"
	for range httpExports {
		a.slots <- struct{}{}
	}
	for _, path := range []string{target, "/recordings/" + h.key("a") + "/files/" + filepath.Base(h.of("a")[0].Path)} {
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		require.Equal(t, 503, w.Code, path)
		require.NotEmpty(t, w.Header().Get("Retry-After"))
	}
	// HEAD reads no recording, and so needs no place.
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("HEAD", target, nil))
	require.Equal(t, 200, w.Code)
	require.Equal(t, "video/mp4", w.Header().Get("Content-Type"))
	require.Contains(t, w.Header().Get("Content-Disposition"), h.key("a"))
	require.Zero(t, w.Body.Len())
	w = httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("HEAD", target+"&to=-50m", nil))
	require.Equal(t, 404, w.Code)
	<-a.slots
	w = httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	require.Equal(t, 200, w.Code)
	whole := w.Body.Len()

	ctx, cancel := context.WithCancel(t.Context())
	gone := &goneClient{ResponseRecorder: httptest.NewRecorder(), leave: cancel}
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { m.ServeHTTP(gone, httptest.NewRequestWithContext(ctx, "GET", target, nil)) })
	require.Less(t, gone.Body.Len(), whole)
	require.Len(t, a.slots, httpExports-1, "its place is free again")
}

// A client that leaves is no fault of the index; one that is a folder is.
func TestUnavailableLog(t *testing.T) {
	var log testenv.Log
	a := &recordingsAPI{site: &Site{log: slog.New(slog.NewTextHandler(&log, nil))}}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	a.unavailable(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/recordings", nil), fmt.Errorf("list: %w", context.Canceled))
	require.Empty(t, log.String())
	require.Nil(t, a.open(httptest.NewRecorder(), httptest.NewRequest("GET", "/recordings", nil), recordings.Library{Index: t.TempDir()}))
	require.Contains(t, log.String(), "not a plain file")
}

// goneClient goes away with the first byte.
type goneClient struct {
	*httptest.ResponseRecorder
	leave func()
}

func (g *goneClient) Write(b []byte) (int, error) {
	g.leave()
	return g.ResponseRecorder.Write(b)
}

// Where the index lies: beside what it tells of, or where the file says.
func TestIndexPath(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"cameras: {a: {source: 'rtsp://h/x', record: {out: '/v/%{key}/%s.mp4'}}}":                                                                         "/v/recordings.db",
		"cameras: {a: {source: 'rtsp://h/x', record: {out: '/v/%{key}-%s.mp4'}}, b: {source: 'rtsp://h/x', record: {out: '/v/%{key}-%s.mp4'}}}":           "/v/recordings.db",
		"cameras: {a: {source: 'rtsp://h/x', record: {out: '/v/x/%{key}/%s.mp4'}}, b: {source: 'rtsp://h/x', record: {out: '/v/xy/%{key}/%s.mp4'}}}":      "/v/x/recordings.db",
		"defaults: {record: {out: '/v/r/%{key}/%s.mp4'}, events: {out: '/v/e/%{key}/%s.mp4'}}\ncameras: {b: {source: 'rtsp://h/x'}}":                      "/v/r/recordings.db",
		"defaults: {record: {out: '/v/r/%{key}/%s.mp4'}}\ncameras: {b: {source: 'rtsp://h/x'}, a: {source: 'rtsp://h/x', record: {out: '/disk/%s.mp4'}}}": "/v/r/recordings.db",
		"defaults: {record: {out: '/v/r/%{key}/%s.mp4'}}\ncameras: {a: {source: 'rtsp://h/x', record: {out: '/disk/%s.mp4'}}}":                            "/disk/recordings.db",
		"cameras: {b: {source: 'rtsp://h/x', record: {out: '/w/%s.mp4'}}, a: {source: 'rtsp://h/x', record: {out: '/v/%s.mp4'}}}":                         "/v/recordings.db",
		"cameras: {a: {source: 'rtsp://h/x', record: {out: 'v/%s.mp4'}}}":                                                                                 dir + "/v/recordings.db",
		"index: i.db\ncameras: {a: {source: 'rtsp://h/x', record: {out: '/v/%s.mp4'}}}":                                                                   dir + "/i.db",
		"index: off\ncameras: {a: {source: 'rtsp://h/x', record: {out: '/v/%s.mp4'}}}":                                                                    "",
		"cameras: {a: {source: 'rtsp://h/x'}}": "",
	} {
		name := filepath.Join(dir, "site.yaml")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		c, err := Load(name)
		require.NoError(t, err, text)
		require.Equal(t, want, c.Library().Index, text)
	}
}

// An index that is left from when the site had other folders is told of, and another site's files in a shared one are not this site's.
func TestIndexMoves(t *testing.T) {
	dir := t.TempDir()
	site := func(name, folder string) *Config {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte("index: shared.db\ndefaults: {record: {out: '"+folder+"/%{key}/%s.mp4'}, events: {out: '"+folder+"-events/%{key}/%s.mp4'}}\n"+
			"cameras: {a: {source: 'rtsp://h/x'}}"), 0o600))
		c, err := Load(file)
		require.NoError(t, err)
		return c
	}
	x, y := site("x.yaml", "x"), site("y.yaml", "y")
	require.Equal(t, x.Library().Index, y.Library().Index)
	w := recordings.NewWriter(recordings.WriterOptions{Path: x.Library().Index})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	<-w.Ready()
	for _, folder := range []string{"x", "y", "y-events"} {
		path := filepath.Join(dir, folder, "a", "1.mp4")
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
		w.Finished(recordings.File{Key: "a", Path: path, Start: time.Unix(1, 0), End: time.Unix(2, 0), Finished: true})
	}
	cancel()
	<-ended
	for c, want := range map[*Config]int{x: 1, y: 2} {
		files, err := c.Library().List(t.Context(), recordings.Query{}, slog.New(slog.DiscardHandler), nil)
		require.NoError(t, err)
		require.Len(t, files, want)
	}

	x.Index = ""
	require.Equal(t, filepath.Join(dir, "x", "recordings.db"), x.Library().Index)
	old := filepath.Join(dir, "recordings.db") // where all folders had it in common
	require.Contains(t, x.formerIndexes(), old)
	require.NoError(t, os.WriteFile(old, nil, 0o600))
	log := &bytes.Buffer{}
	(&indexer{log: slog.New(slog.NewTextHandler(log, nil))}).tellFormer(x.Library().Index, x.formerIndexes())
	require.Equal(t, 1, strings.Count(log.String(), "old="+old), log.String())
}

// The check of a file warns of folders that cannot be written.
func TestUnwritable(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	name := filepath.Join(dir, "site.yaml")
	require.NoError(t, os.WriteFile(name, []byte("index: file/i.db\ndefaults: {record: {out: 'file/%{key}/%s.mp4'}, events: {out: 'e/new/%{key}/%s.mp4'}}\n"+
		"cameras: {a: {source: 'rtsp://h/x'}, b: {source: 'rtsp://h/x'}}"), 0o600))
	c, err := Load(name)
	require.NoError(t, err)
	list := c.Unwritable()
	require.Len(t, list, 1, "%v: each folder once", list)
	require.Contains(t, list[0], "cameras.a.record.out: "+filepath.Join(dir, "file")+": not a directory")
}

// The commands find the recordings of a site whose passwords they may not read; what is wrong with the recordings is told.
func TestLoadRecordings(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "site.yaml")
	for text, says := range map[string]string{
		"cameras: {a: {source: 'rtsp://u:${NOT_SET_HERE}@h/x', record: {out: 'v/%{key}/%s.mp4'}}}":                            "",
		"cameras: {a: {source: 'rtsp://h/x', username: u, password_file: /nonexistent, record: {out: 'v/%{key}/%s.mp4'}}}":    "",
		"http: {token_file: /nonexistent}\ncameras: {a: {source: 'rtsp://h/x', record: {out: 'v/%{key}/%s.mp4'}}}":            "",
		"cameras: {a: {source: 'rtsp://h/x', record: {out: 'v/%Q.mp4'}}}":                                                     "%Q is not known",
		"cameras: {a: {source: 'rtsp://h/x', record: {out: '${NOT_SET_HERE}/x.mp4'}}}":                                        "NOT_SET_HERE is not set",
		"cameras: {a: {source: 'rtsp://h/x'}}":                                                                                "nothing is recorded",
		"cameras: [":                                                                                                          name,
		"cameras: {a: {source: 'rtsp://h/x', events: {out: 'e/%s.mp4', pre: 5s, post: 20s, longest: 2m}}}":                    "",
		"cameras: {a: {source: 'rtsp://h/x', record: {out: 'e/%s.mp4', post: 20s}}}":                                          "post and longest are for on_event",
		"cameras: {record: {source: '', record: {out: 'e/%s.mp4'}}}":                                                          "",
		"cameras: {a: {source: 'rtsp://h/x', record: {out: 'v/%s.mp4'}, events: {out: 'e/%s.mp4'}}, a-b: {source: rtsp://x}}": "",
	} {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		lib, err := LoadRecordings(name)
		if says == "" {
			require.NoError(t, err, text)
			require.NotEmpty(t, lib.Places)
			require.True(t, strings.HasPrefix(lib.Places[0].Dir, dir))
		} else {
			require.ErrorContains(t, err, says, text)
		}
	}
	_, err := LoadRecordings(filepath.Join(dir, "none.yaml"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
