package site

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/pipeline"
)

// Bounds of the API: it serves a monitoring system and some people.
const (
	httpConns     = 64 // that are silent, and as many again with a request at work
	httpHeader    = 8 << 10
	httpPatience  = 5 * time.Second  // for a request to come, its body included
	httpTimeout   = 30 * time.Second // of a whole answer: a scrape of 200 cameras, a snapshot
	httpSnapshots = 2                // made at a time: each decodes up to a keyframe interval
	snapshotWait  = 5 * time.Second
	// liveFor is how long after the last turn of the site's loop it counts as alive: a reload may wait for stages to stop.
	liveFor = 3 * pipeline.StopTimeout
)

// api serves HTTP as the newest configuration says.
type api struct {
	site    *Site
	onServe func(net.Addr) // tests and logs; may be nil
	now     *HTTP
	cancel  context.CancelFunc
	done    chan struct{}
}

// configure starts, stops or moves the server. It is for one goroutine.
func (a *api) configure(h *HTTP) {
	if a.now != nil && h != nil && *a.now == *h {
		return
	}
	a.stop()
	if h == nil {
		return
	}
	keep := *h
	ctx, cancel := context.WithCancel(context.Background())
	a.now, a.cancel, a.done = &keep, cancel, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		for wait := minBackoff; ctx.Err() == nil; wait = min(2*wait, maxBackoff) {
			if err := a.serve(ctx, keep); err != nil && ctx.Err() == nil {
				a.site.log.Error("http is not served", "listen", keep.Listen, "error", err, "again_in", wait)
				_ = sleep(ctx, wait)
			}
		}
	}(a.done)
}

func (a *api) stop() {
	if a.now != nil {
		a.cancel()
		<-a.done
		a.now = nil
	}
}

func (a *api) serve(ctx context.Context, h HTTP) error {
	l, err := net.Listen("tcp", h.Listen)
	if err != nil {
		return err
	}
	a.site.log.Info("http is served", "addr", l.Addr().String())
	if a.onServe != nil {
		a.onServe(l.Addr())
	}
	door := newDoor()
	server := &http.Server{
		Handler: a.site.handler(h.Token, door), ReadTimeout: httpPatience, WriteTimeout: httpTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: httpHeader,
	}
	door.watch(server)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err = server.Serve(l)
	_ = server.Close() // also where the listener has failed: nobody is left to serve those who are connected
	if ctx.Err() == nil {
		return err
	}
	return nil
}

// handler is the whole API behind the token.
func (s *Site) handler(token string, door *door) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&siteCollector{site: s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health/live", s.serveLive)
	mux.HandleFunc("GET /health/ready", s.serveReady)
	mux.HandleFunc("GET /health/cameras", s.serveCameras)
	mux.HandleFunc("GET /health/cameras/{key}", s.serveCamera)
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.Status()) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorHandling: promhttp.ContinueOnError}))
	slots := make(chan struct{}, httpSnapshots)
	mux.HandleFunc("GET /snapshot/{file}", func(w http.ResponseWriter, r *http.Request) { s.serveSnapshot(w, r, slots) })
	mux.HandleFunc("POST /trigger/{key}", s.serveTrigger)
	s.serveRecordings(mux)
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(strings.TrimSpace(given))) // of one length: the comparison tells nothing of the token's
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
			text, challenge := noToken, `Bearer realm="cfpipe"`
			if strings.EqualFold(scheme, "Bearer") && strings.TrimSpace(given) != "" {
				text, challenge = wrongToken, challenge+`, error="invalid_token"`
			}
			w.Header().Set("WWW-Authenticate", challenge)
			w.Header().Set("Connection", "close")
			_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // nor is its body waited for
			fail(w, http.StatusUnauthorized, text)
			return
		}
		door.admit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { route(mux, w, r) }), w, r)
	})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client has gone
}

func fail(w http.ResponseWriter, status int, text string) {
	answer(w, status, map[string]string{"error": text})
}

func (s *Site) serveLive(w http.ResponseWriter, _ *http.Request) {
	if time.Since(time.Unix(0, s.turned.Load())) > liveFor {
		fail(w, http.StatusServiceUnavailable, "the site's loop stands still")
		return
	}
	answer(w, http.StatusOK, map[string]string{"status": "live"})
}

// serveReady: every stage has been started once. One that has failed since, and waits to be started again, is what /health/cameras tells of.
func (s *Site) serveReady(w http.ResponseWriter, _ *http.Request) {
	waiting := 0
	for _, st := range s.Status().Stages {
		if st.State == StateWaiting {
			waiting++
		}
	}
	if waiting > 0 {
		fail(w, http.StatusServiceUnavailable, strconv.Itoa(waiting)+" stages are not started yet")
		return
	}
	answer(w, http.StatusOK, map[string]string{"status": "ready"})
}

// serveSnapshot answers /snapshot/KEY.jpg and .png for the streams of this site.
func (s *Site) serveSnapshot(w http.ResponseWriter, r *http.Request, slots chan struct{}) {
	key, format, kind := r.PathValue("file"), av.JPEG, "image/jpeg"
	switch name, ext, _ := cutLast(key, "."); ext {
	case "jpg", "jpeg":
		key = name
	case "png":
		key, format, kind = name, av.PNG, "image/png"
	default:
		fail(w, http.StatusNotFound, "want /snapshot/KEY.jpg or /snapshot/KEY.png")
		return
	}
	if framering.CheckKey(key) != nil || !s.has(key) {
		fail(w, http.StatusNotFound, "no such camera")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), httpTimeout-snapshotWait)
	defer cancel()
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-time.After(snapshotWait):
		w.Header().Set("Retry-After", "5")
		fail(w, http.StatusServiceUnavailable, "too many snapshots at a time")
		return
	case <-ctx.Done():
		return
	}
	b, info, err := pipeline.Snapshot(ctx, pipeline.SnapshotOptions{RuntimeDir: s.runtimeDir, Key: key, Format: format, Logger: s.log})
	switch {
	case errors.Is(err, os.ErrNotExist):
		fail(w, http.StatusServiceUnavailable, "the camera is not published now")
		return
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		fail(w, http.StatusGatewayTimeout, "no picture came in time")
		return
	case err != nil:
		s.log.Warn("snapshot", "key", key, "error", err)
		fail(w, http.StatusInternalServerError, "the picture cannot be made; the log says why")
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Header().Set("Last-Modified", time.Unix(0, info.PTS).UTC().Format(http.TimeFormat))
	_, _ = w.Write(b)
}

// has says whether a key is one of this site's.
func (s *Site) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.stages, func(st *stage) bool { return st.Kind == kindIngest && st.Key == key })
}
