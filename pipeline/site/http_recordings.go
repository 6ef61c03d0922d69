package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

// Bounds of what the API tells and sends of recordings.
const (
	httpExports = 2 // at a time, downloads included: each reads the disk as fast as its client takes it
	// maxListed is the most files in one answer: a week of minutes.
	maxListed = 10_080
	// sendStall is how long a client may take nothing before it is dropped.
	sendStall = 30 * time.Second
)

// recordingsAPI answers what is asked about recordings.
type recordingsAPI struct {
	site  *Site
	slots chan struct{}

	mu  sync.Mutex
	of  *Config // whose library lib is
	lib recordings.Library
}

func (s *Site) serveRecordings(m *http.ServeMux) {
	a := &recordingsAPI{site: s, slots: make(chan struct{}, httpExports)}
	m.HandleFunc("GET /recordings", a.list)
	m.HandleFunc("GET /recordings/{key}/export", a.export)
	m.HandleFunc("GET /recordings/{key}/files/{name...}", a.file)
}

func (a *recordingsAPI) library() recordings.Library {
	a.site.mu.Lock()
	c := a.site.config
	a.site.mu.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of != c {
		a.of, a.lib = c, c.Library()
	}
	return a.lib
}

// open opens the index; where it cannot, it has answered and returns nil.
func (a *recordingsAPI) open(w http.ResponseWriter, r *http.Request, lib recordings.Library) *recordings.Index {
	if lib.Index == "" {
		fail(w, http.StatusNotFound, "this site keeps no index of recordings")
		return nil
	}
	x, err := recordings.OpenIndex(lib.Index)
	if err != nil {
		a.unavailable(w, r, err)
		return nil
	}
	return x
}

// unavailable answers for an index that cannot be read now.
func (a *recordingsAPI) unavailable(w http.ResponseWriter, r *http.Request, err error) {
	if !errors.Is(err, fs.ErrNotExist) && r.Context().Err() == nil { // else the client has left
		a.site.log.Warn("the index of recordings cannot be read", "error", err)
	}
	w.Header().Set("Retry-After", "5")
	fail(w, http.StatusServiceUnavailable, "the index of recordings cannot be read now")
}

// span reads from and to; where they are wrong, it has answered.
func span(w http.ResponseWriter, r *http.Request) (from, to time.Time, ok bool) {
	now := time.Now()
	for name, t := range map[string]*time.Time{"from": &from, "to": &to} {
		var err error
		if *t, err = recordings.ParseTime(r.URL.Query().Get(name), now); err != nil {
			fail(w, http.StatusBadRequest, name+": "+err.Error())
			return from, to, false
		}
	}
	if !to.IsZero() && !from.Before(to) {
		fail(w, http.StatusBadRequest, "from is not before to")
		return from, to, false
	}
	return from, to, true
}

// listed is a file in an answer.
type listed struct {
	recordings.File
	name string // for /recordings/KEY/files/NAME
}

// MarshalJSON adds the name to what the file tells.
func (l listed) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(l.File)
	if err != nil {
		return nil, err
	}
	name, err := json.Marshal(l.name)
	if err != nil {
		return nil, err
	}
	return append(append(append(b[:len(b)-1], `,"name":`...), name...), '}'), nil
}

// list answers /recordings?key=&from=&to=&limit=.
func (a *recordingsAPI) list(w http.ResponseWriter, r *http.Request) {
	from, to, ok := span(w, r)
	if !ok {
		return
	}
	q := recordings.Query{Keys: r.URL.Query()["key"], From: from, To: to}
	if len(q.Keys) > maxCameras {
		fail(w, http.StatusBadRequest, "too many keys")
		return
	}
	for _, k := range q.Keys {
		if framering.CheckKey(k) != nil {
			fail(w, http.StatusBadRequest, "key: this is none")
			return
		}
	}
	limit := maxListed
	if text := r.URL.Query().Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > maxListed {
			fail(w, http.StatusBadRequest, fmt.Sprintf("limit: want 1 to %d", maxListed))
			return
		}
		limit = n
	}
	lib := a.library()
	x := a.open(w, r, lib)
	if x == nil {
		return
	}
	defer x.Close()
	q.Places, q.Limit = lib.Places, limit+1
	files, err := x.List(r.Context(), q)
	if err != nil {
		a.unavailable(w, r, err)
		return
	}
	answerOf := struct {
		Recordings []listed `json:"recordings"`
		Truncated  bool     `json:"truncated"` // there are more: ask from the end of the last on
	}{Recordings: []listed{}}
	for _, f := range files {
		if len(answerOf.Recordings) == limit {
			answerOf.Truncated = true
			break
		}
		l := listed{File: f}
		for _, p := range lib.Places {
			if p.Key != f.Key {
				continue
			}
			if name, ok := p.Name(f.Path); ok {
				l.name = name
			}
		}
		answerOf.Recordings = append(answerOf.Recordings, l)
	}
	answer(w, http.StatusOK, answerOf)
}

// take takes one of the few places for answers that are long; where none is free, it has answered.
func (a *recordingsAPI) take(w http.ResponseWriter) bool {
	select {
	case a.slots <- struct{}{}:
		return true
	default:
		w.Header().Set("Retry-After", "10")
		fail(w, http.StatusServiceUnavailable, "too many exports and downloads at a time")
		return false
	}
}

var exportTypes = map[mux.Format]string{mux.FMP4: "video/mp4", mux.MKV: "video/x-matroska", mux.TS: "video/mp2t"}

// export answers /recordings/KEY/export?from=&to=&format= with a file that is made while it is sent.
func (a *recordingsAPI) export(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("key")
	if framering.CheckKey(key) != nil {
		fail(w, http.StatusNotFound, "no such camera")
		return
	}
	from, to, ok := span(w, r)
	if !ok {
		return
	}
	if from.IsZero() {
		fail(w, http.StatusBadRequest, "from: it is missing")
		return
	}
	if to.IsZero() {
		to = time.Now()
	}
	if !from.Before(to) {
		fail(w, http.StatusBadRequest, "from is not before to")
		return
	}
	format := mux.FMP4
	if text := r.URL.Query().Get("format"); text != "" {
		if format = mux.Format(text); exportTypes[format] == "" {
			fail(w, http.StatusBadRequest, "format: want fmp4, mkv or ts")
			return
		}
	}
	head := r.Method == http.MethodHead
	if !head {
		if !a.take(w) {
			return
		}
		defer func() { <-a.slots }()
	}
	lib := a.library()
	x := a.open(w, r, lib)
	if x == nil {
		return
	}
	defer x.Close()
	files, err := x.List(r.Context(), recordings.Query{Keys: []string{key}, From: from, To: to, Places: lib.Places})
	if err != nil {
		a.unavailable(w, r, err)
		return
	}
	out := newLongAnswer(w)
	name := fmt.Sprintf("%s-%s%s", key, from.UTC().Format("20060102T150405Z"), format.Extension())
	out.begin = func() {
		w.Header().Set("Content-Type", exportTypes[format])
		w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	}
	if head && len(files) > 0 { // no more than that is looked at
		out.begin()
		return
	}
	_, err = recordings.Export(r.Context(), recordings.ExportOptions{Files: files, From: from, To: to, Format: format, Out: out, Logger: a.site.log})
	if err == nil {
		return
	}
	var change *recordings.ChangeError
	expected := errors.Is(err, recordings.ErrNothing) || errors.As(err, &change) || r.Context().Err() != nil
	if !expected {
		a.site.log.Warn("export", "key", key, "error", err)
	}
	switch {
	case out.begun: // the client must not take what it has for the whole
		panic(http.ErrAbortHandler)
	case errors.Is(err, recordings.ErrNothing):
		fail(w, http.StatusNotFound, "nothing of this camera is recorded then")
	case change != nil:
		fail(w, http.StatusConflict, change.Error())
	case r.Context().Err() == nil:
		fail(w, http.StatusInternalServerError, "it cannot be exported; the log says why")
	}
}

// file answers /recordings/KEY/files/NAME with a recorded file as it lies on the disk. NAME is what the list calls it: nothing else is opened.
func (a *recordingsAPI) file(w http.ResponseWriter, r *http.Request) {
	key, name := r.PathValue("key"), r.PathValue("name")
	lib := a.library()
	for _, p := range lib.Places {
		if p.Key != key || !filepath.IsLocal(filepath.FromSlash(name)) {
			continue
		}
		x := a.open(w, r, lib)
		if x == nil {
			return
		}
		known, err := x.Has(r.Context(), key, filepath.Join(p.Dir, filepath.FromSlash(name)))
		x.Close()
		if err != nil {
			a.unavailable(w, r, err)
			return
		}
		if !known {
			continue
		}
		f, err := p.Open(name)
		if err != nil {
			continue
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			continue
		}
		if !a.take(w) {
			return
		}
		defer func() { <-a.slots }()
		for format, kind := range exportTypes {
			if format.Extension() == filepath.Ext(name) {
				w.Header().Set("Content-Type", kind)
			}
		}
		http.ServeContent(newLongAnswer(w), r, "", info.ModTime(), f)
		return
	}
	fail(w, http.StatusNotFound, "no such recording")
}

// longAnswer is an answer that may take as long as its client goes on taking it.
type longAnswer struct {
	http.ResponseWriter
	c     *http.ResponseController
	begin func() // in front of the first byte; may be nil
	begun bool
}

func newLongAnswer(w http.ResponseWriter) *longAnswer {
	return &longAnswer{ResponseWriter: w, c: http.NewResponseController(w)}
}

func (a *longAnswer) Write(b []byte) (int, error) {
	if !a.begun && a.begin != nil {
		a.begin()
	}
	a.begun = true
	_ = a.c.SetWriteDeadline(time.Now().Add(sendStall))
	return a.ResponseWriter.Write(b)
}
