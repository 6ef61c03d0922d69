package site

import (
	"fmt"
	"time"

	"github.com/cfpipe/cfpipe/internal/redact"
	"github.com/cfpipe/cfpipe/pipeline"
)

// Status is where a site stands.
type Status struct {
	Started     time.Time     `json:"started"`
	Loaded      time.Time     `json:"loaded"` // the configuration that runs
	Reloads     int           `json:"reloads"`
	ReloadError string        `json:"reload_error,omitempty"` // of the newest attempt
	Stages      []StageStatus `json:"stages"`
}

// StageStatus is where a stage stands.
type StageStatus struct {
	Kind      string                `json:"kind"`
	Key       string                `json:"key,omitempty"`
	State     State                 `json:"state"`
	Since     time.Time             `json:"since"`
	Restarts  int                   `json:"restarts"`
	LastError string                `json:"last_error,omitempty"`
	PID       int                   `json:"pid,omitempty"` // of a process of its own
	Ingest    *pipeline.IngestStats `json:"ingest,omitempty"`
	Decode    *pipeline.DecodeStats `json:"decode,omitempty"`
	Record    *pipeline.RecordStats `json:"record,omitempty"`
	Infer     *InferStats           `json:"infer,omitempty"`
	Push      *pipeline.PushStats   `json:"push,omitempty"`
}

// Status may be called at any time from any goroutine.
func (s *Site) Status() Status {
	s.mu.Lock()
	st := Status{Started: s.started, Loaded: s.loaded, Reloads: s.reloads, ReloadError: s.secrets.Mask(s.reloadErr), Stages: []StageStatus{}}
	stages := s.stages
	s.mu.Unlock()
	for _, x := range stages {
		st.Stages = append(st.Stages, x.status().masked(s.secrets))
	}
	return st
}

// masked is the status without secrets in what others have said.
func (s StageStatus) masked(secrets *redact.Set) StageStatus {
	s.LastError = secrets.Mask(s.LastError)
	if s.Ingest != nil {
		s.Ingest = copied(s.Ingest)
		s.Ingest.LastError = secrets.Mask(s.Ingest.LastError)
	}
	if s.Push != nil {
		s.Push = copied(s.Push)
		s.Push.LastError = secrets.Mask(s.Push.LastError)
	}
	return s
}

func (st *stage) status() StageStatus {
	st.mu.Lock()
	defer st.mu.Unlock()
	s := StageStatus{Kind: st.Kind, Key: st.Key, State: st.state, Since: st.since, Restarts: st.restarts, LastError: st.lastErr, PID: st.pid}
	r := st.last
	if st.probe != nil {
		r = st.probe()
	}
	s.Ingest, s.Decode, s.Infer, s.Push = r.Ingest, r.Decode, r.Infer, r.Push
	if st.Kind == kindRecord || st.Kind == kindEvents {
		sum := st.past
		if r.Record != nil {
			sum = plus(st.past, *r.Record)
		}
		s.Record = &sum
	}
	return s
}

// Streams is how many streams are read from cameras.
func (s *Site) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.config.streams())
}

// Warnings name, with line and field, what is no error in the file and is hardly meant.
func (c *Config) Warnings() []string { return c.warnings }

// Summary says in a line what the file asks for.
func (c *Config) Summary() string {
	streams := c.streams()
	var shm int64
	for _, s := range streams {
		shm += s.shmBytes()
	}
	text := fmt.Sprintf("%s: ok: %d cameras, %d streams, %d recordings", c.name, len(c.Cameras), len(streams), len(c.recordings()))
	if r := c.Relay; r != nil {
		text += ", relay on " + r.Listen
		if r.ListenTLS != "" {
			text += ", with TLS on " + r.ListenTLS
		}
	}
	if c.HTTP != nil {
		text += ", http on " + c.HTTP.Listen
	}
	return text + fmt.Sprintf("; rings of %d MiB in /dev/shm", shm>>20)
}
