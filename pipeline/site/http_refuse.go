package site

import (
	"net/http"
	"strings"
)

const (
	noToken    = "a bearer token is needed: Authorization: Bearer TOKEN"
	wrongToken = "the token is wrong"
)

// refusal takes what a ServeMux answers where no pattern fits: its text is not for clients that read JSON.
type refusal struct {
	header http.Header
	status int
}

func (r *refusal) Header() http.Header         { return r.header }
func (r *refusal) WriteHeader(status int)      { r.status = status }
func (r *refusal) Write(p []byte) (int, error) { return len(p), nil }

// route serves what m has a pattern for, and says in JSON when it has none.
func route(m *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	h, pattern := m.Handler(r)
	if pattern != "" {
		m.ServeHTTP(w, r) // and not h: it is the mux that sets the path's values
		return
	}
	no := refusal{header: http.Header{}}
	h.ServeHTTP(&no, r)
	if allow := no.header.Get("Allow"); no.status == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", allow)
		fail(w, no.status, "the method "+r.Method+" is not for this path: want "+strings.ReplaceAll(allow, ", ", " or "))
		return
	}
	fail(w, http.StatusNotFound, "no such path: want /health/…, /status, /metrics, /snapshot/KEY.jpg, /recordings or /trigger/KEY")
}
