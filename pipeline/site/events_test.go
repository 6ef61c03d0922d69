package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// post sends a trigger over HTTP.
func post(t *testing.T, addr, path, token, body string) (status int, answer struct {
	Key       string
	Recorders []trigger.Answer
	Error     string
}) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+path, strings.NewReader(body))
	require.NoError(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	resp, err := client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &answer), "%s", b)
	return resp.StatusCode, answer
}

// events are the finished files of a key that an event made; continuous are the others.
func (h *host) events(key string) (list []pipeline.Recorded) {
	for _, s := range h.of(key) {
		if s.Event != nil {
			list = append(list, s)
		}
	}
	return list
}

// A site that records all the time and on events, in its own process and in others, triggered over HTTP and by its sockets.
func TestEvents(t *testing.T) {
	t.Parallel()
	h := newHost(t, 2)
	addrs := h.serves(testToken + "\n")
	h.start(`
stagger: 10ms
http: {listen: '127.0.0.1:0', token_file: token}
cameras:
  KEYa:
    source: CAM0
    record: {out: 'rec/%{key}/%s-%f.mp4', segment: 2s, retention: {size: 1B}}
    events: {out: 'ev/%{key}/%s-%f.mp4', pre: 2s, post: 1s, isolation: process, retention: {age: 365d}}
  KEYb: {source: CAM1, record: {out: 'rec/%{key}/%s-%f.mp4', on_event: true, pre: 1s, post: 500ms}}
  KEYc: {source: CAM1, record: {out: 'rec/%{key}/%s-%f.mp4'}}
`)
	addr := (<-addrs).String()
	h.recorded("a", 75)
	a, b, c := "/trigger/"+h.key("a"), "/trigger/"+h.key("b"), "/trigger/"+h.key("c")
	testenv.Eventually(t, 20*time.Second, func() error { // the recorders listen, and the cameras are read
		for _, key := range []string{"a", "b"} {
			took, err := trigger.Send(t.Context(), h.site.runtimeDir, h.key(key), trigger.Request{Action: trigger.Stop})
			if err != nil || len(took) != 1 || took[0].State != trigger.Idle {
				return fmt.Errorf("%v %w", took, errors.Join(err))
			}
			if k, err := pipeline.InspectKey(h.site.runtimeDir, h.key(key)); err != nil || k.Packets.BufferedSeconds < 3 {
				return fmt.Errorf("%s is young: %w", key, errors.Join(err))
			}
		}
		return nil
	})
	require.Empty(t, h.events("a"))

	for _, wrong := range []struct {
		path, token, body string
		status            int
	}{
		{a, "", "", 401}, {a, "wrong", "", 401}, {a, testToken, "{", 400}, {a, testToken, `{"action":"go"}`, 400}, {a, testToken, `{"for":"x"}`, 400},
		{a, testToken, `{"for":"-1s"}`, 400}, {a, testToken, `{"for":"25h"}`, 400}, {a, testToken, `{"for":5}`, 400},
		{a, testToken, `{"action":"stop","for":"5s"}`, 400},
		{a, testToken, `{"reason":"a\nb"}`, 400}, {a, testToken, `{"reason":"` + strings.Repeat("x", 501) + `"}`, 400},
		{a, testToken, `{"what":1}`, 400}, {a, testToken, `{}{}`, 400},
		{a, testToken, `[]`, 400}, {a, testToken, strings.Repeat(" ", 5000), 413}, {"/trigger/nope", testToken, "", 404},
		{"/trigger/..%2f" + h.key("a"), testToken, "", 404},
		{c, testToken, "", 409},
	} {
		status, got := post(t, addr, wrong.path, wrong.token, wrong.body)
		require.Equal(t, wrong.status, status, wrong)
		require.NotEmpty(t, got.Error, wrong)
	}
	require.Empty(t, h.stage(kindEvents, "b").Record.Events)
	status, _, _ := request(t, addr, "GET", a, "Bearer "+testToken)
	require.Equal(t, 405, status)

	status, got := post(t, addr, a, testToken, `{"for": "1s", "reason": "bell"}`)
	require.Equal(t, 200, status, got)
	require.Len(t, got.Recorders, 1)
	require.Equal(t, trigger.Started, got.Recorders[0].State)
	require.Equal(t, h.stage(kindEvents, "a").PID, got.Recorders[0].PID)
	status, got = post(t, addr, b, testToken, "")
	require.Equal(t, 200, status, got)
	require.Equal(t, os.Getpid(), got.Recorders[0].PID)
	testenv.Eventually(t, 20*time.Second, func() error {
		if len(h.events("a")) == 0 || len(h.events("b")) == 0 {
			return errors.New("no event's file")
		}
		return nil
	})
	for key, pre := range map[string]time.Duration{"a": 2 * time.Second, "b": time.Second} {
		e := h.events(key)
		require.Len(t, e, 1)
		requireRun(t, e)
		require.NotNil(t, e[0].Event.End)
		require.False(t, e[0].Start.After(e[0].Event.Trigger.Add(-pre)))
		require.False(t, e[0].End.Before(e[0].Event.End.Add(-80*time.Millisecond)))
	}
	require.Equal(t, "bell", h.events("a")[0].Event.Reason)
	require.Contains(t, h.events("a")[0].Path, "/ev/")

	_, _, body := request(t, addr, "GET", "/metrics", "Bearer "+testToken)
	values := metricValues(t, string(body))
	for name, atLeast := range map[string]float64{
		`cfpipe_events_total{key="B"}`: 1, `cfpipe_event_active{key="B"}`: 0, `cfpipe_stage_up{key="A",kind="events"}`: 1,
		`cfpipe_record_packets_total{key="A",recording="event"}`: 50, `cfpipe_record_files_total{key="A",recording="event"}`: 1,
		`cfpipe_recordings_files{key="A",recording="event"}`: 0, `cfpipe_record_packets_total{key="A",recording="continuous"}`: 75,
	} {
		v, ok := values[strings.NewReplacer("A\"", h.key("a")+"\"", "B\"", h.key("b")+"\"").Replace(name)]
		require.True(t, ok, name)
		require.GreaterOrEqual(t, v, atLeast, name)
	}
	for _, x := range h.site.Health() {
		require.True(t, x.OK, "%+v", x)
		require.Equal(t, x.Key == h.key("b"), x.Recording == nil, "%+v", x)
	}

	// An event that runs when the site stops has its file; what is recorded all the time is bounded by its own retention, not the events.
	_, got = post(t, addr, b, testToken, `{"action": "start"}`)
	require.Nil(t, got.Recorders[0].Event.End)
	testenv.Eventually(t, 10*time.Second, func() error {
		if !h.stage(kindEvents, "b").Record.Event {
			return errors.New("no event")
		}
		return nil
	})
	testenv.Eventually(t, 20*time.Second, func() error {
		files, err := filepath.Glob(filepath.Join(h.dir, "rec", h.key("a"), "*.mp4"))
		if len(files) > 2 {
			err = errors.Join(err, fmt.Errorf("%d files", len(files)))
		}
		return err
	})
	require.NoError(t, h.stop())
	require.Len(t, h.events("b"), 2)
	require.NotNil(t, h.events("b")[1].Event.End)
	requireRun(t, h.events("b")[1:])
	require.FileExists(t, h.events("a")[0].Path)
}

func TestLoadEvents(t *testing.T) {
	at := func(text string) *Config {
		c, err := load(t, text)
		require.NoError(t, err, text)
		return c
	}
	c := at("cameras: {a: {source: 'rtsp://h/a', record: {out: a.mp4, on_event: true}, " +
		"sub: {source: 'rtsp://h/b', record: {out: c.mp4, pre: 3s}, events: {out: b.mp4, pre: 0s}}}}")
	var ids []string
	for _, s := range c.specs("", "") {
		ids = append(ids, s.id())
	}
	require.Equal(t, []string{"ingest a", "ingest a-sub", "events a", "record a-sub", "events a-sub"}, ids)
	require.Equal(t, defaultPre, c.Cameras["a"].Record.Pre)
	require.Zero(t, c.Cameras["a"].Sub.Events.Pre)
	require.True(t, c.Cameras["a"].Sub.Events.OnEvent)
	c = at("defaults: {events: {out: '%{key}-e.mp4', pre: 5s, retention: {age: 1d}}}\n" +
		"cameras: {a: {source: 'rtsp://h/a', events: {post: 1s}}, b: {source: 'rtsp://h/b', events: off}}")
	require.EqualValues(t, 5*time.Second, c.Cameras["a"].Events.Pre)
	require.Nil(t, c.Cameras["b"].Events)
	require.NotSame(t, c.Defaults.Events.Retention, c.Cameras["a"].Events.Retention)

	for text, want := range map[string]string{
		"record: {out: a.mp4, post: 1s}":                             "post and longest are for on_event",
		"record: {out: a.mp4, on_event: true}, events: {out: b.mp4}": "want one of them",
		"record: {out: a.mp4}, events: {out: a.mp4}":                 "it names the same files",
		"events: {out: a.mp4, on_event: false}":                      "events are always recorded on events",
		"events: {pre: 1s}":                                          "events.out: it is missing",
		"events: {out: a.mp4, pre: 20s, post: 20s, longest: 30s}":    "has no room",
		"record: {out: a.mp4, on_event: true, pre: 1s, longest: 3s}": "has no room",
		"events: {out: a.mp4, retention: {}}":                        "it bounds nothing",
	} {
		_, err := load(t, "cameras: {a: {source: 'rtsp://h/a', "+text+"}}")
		require.ErrorContains(t, err, want, text)
	}
}
