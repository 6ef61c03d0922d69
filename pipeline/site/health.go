package site

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/cfpipe/cfpipe/pipeline"
)

const (
	// silentAfter is when a camera that brings nothing is not well.
	silentAfter = 10 * time.Second
	// pushPatience is how long a push may be without a connection: a server that restarts is no problem yet.
	pushPatience = 30 * time.Second
)

// CameraHealth is how a stream is.
type CameraHealth struct {
	Key        string   `json:"key"`
	OK         bool     `json:"ok"`
	Problem    string   `json:"problem,omitempty"`
	Connected  bool     `json:"connected"`
	AgeSeconds *float64 `json:"age_seconds"` // since the last access unit came; null = none yet
	Recording  *bool    `json:"recording"`   // what comes is written, and something comes; null = it is not recorded all the time
	Reconnects uint64   `json:"reconnects"`
	Gaps       uint64   `json:"gaps"`
	Lost       uint64   `json:"lost"` // by the recorder: it came too late, or the disk did not take them
}

// Health tells of every stream, sorted by key.
func (s *Site) Health() []CameraHealth { return health(s.Status().Stages) }

func health(stages []StageStatus) []CameraHealth {
	list := []CameraHealth{}
	index := map[string]int{}
	for _, st := range stages {
		if st.Kind != kindIngest {
			continue
		}
		h := CameraHealth{Key: st.Key}
		if i := st.Ingest; i != nil {
			h.Connected, h.Reconnects, h.Gaps = i.Connected, i.Reconnects, i.Video.Gaps
			if !i.Video.LastPacket.IsZero() {
				age := i.Video.Age().Seconds()
				h.AgeSeconds = &age
			}
		}
		switch {
		case st.State != StateRunning:
			h.Problem = "ingest: " + string(st.State)
		case h.AgeSeconds == nil:
			h.Problem = "no picture has come yet"
		case *h.AgeSeconds > silentAfter.Seconds():
			h.Problem = "no picture comes"
		}
		if st.Ingest != nil && !h.Connected && st.Ingest.LastError != "" {
			h.Problem = st.Ingest.LastError
		}
		index[st.Key] = len(list)
		list = append(list, h)
	}
	for _, st := range stages {
		if i, ok := index[st.Key]; ok {
			list[i].recorded(st)
		}
	}
	for _, st := range stages { // the last to be named: it is about another host
		if i, ok := index[st.Key]; ok && st.Kind == kindPush && list[i].Problem == "" {
			if p := outputProblem(st); p != "" {
				list[i].Problem = "it is not pushed: " + p
			}
		}
	}
	for i := range list {
		list[i].OK = list[i].Problem == ""
	}
	return list
}

// recorded adds how the camera's recorder is, if st is one.
func (h *CameraHealth) recorded(st StageStatus) {
	if st.Kind != kindRecord && st.Kind != kindEvents {
		return
	}
	h.Lost += st.Record.Lost + st.Record.Dropped
	good := st.State == StateRunning && !st.Record.Failing && st.Record.Busy < pipeline.Seconds(silentAfter)
	what := "its events are not recorded: "
	if st.Kind == kindRecord {
		good = good && st.Record.Packets > 0
		now := good && h.AgeSeconds != nil && *h.AgeSeconds <= silentAfter.Seconds()
		h.Recording, what = &now, "it is not recorded: "
	}
	if !good && h.Problem == "" {
		h.Problem = what + recordProblem(st)
	}
}

func recordProblem(st StageStatus) string {
	switch {
	case st.State != StateRunning:
		return string(st.State) + ": " + st.LastError
	case st.Record.Failing:
		return "the disk does not take the file"
	case st.Record.Busy >= pipeline.Seconds(silentAfter):
		return "the disk does not answer"
	}
	return "no packet yet"
}

// outputProblem says why the relay, an inference or a push does not do what it is for; "" = it does, or has just begun to try again.
func outputProblem(st StageStatus) string {
	switch {
	case st.State == StateBackoff:
		return string(st.State) + ": " + st.LastError
	case st.Push == nil || st.Push.DisconnectedSince.IsZero():
		return ""
	}
	if gone := time.Since(st.Push.DisconnectedSince); gone >= pushPatience {
		return fmt.Sprintf("no connection for %v: %s", gone.Round(time.Second), cmp.Or(st.Push.LastError, "it is being made"))
	}
	return ""
}

func (s *Site) serveCameras(w http.ResponseWriter, _ *http.Request) {
	stages := s.Status().Stages
	answer(w, http.StatusOK, map[string]any{"cameras": health(stages), "problems": problems(stages)})
}

// StageProblem is a stage beside the cameras' own, such as the relay, that does not run or does not do what it is for.
type StageProblem struct {
	Kind    string `json:"kind"`
	Key     string `json:"key,omitempty"`
	Problem string `json:"problem"`
}

// problems tells of the relay, inference and pushes.
func problems(stages []StageStatus) []StageProblem {
	list := []StageProblem{}
	for _, st := range stages {
		switch st.Kind {
		case kindIngest, kindRecord, kindEvents:
			continue
		}
		if p := outputProblem(st); p != "" {
			list = append(list, StageProblem{st.Kind, st.Key, p})
		}
	}
	return list
}

func (s *Site) serveCamera(w http.ResponseWriter, r *http.Request) {
	for _, h := range s.Health() {
		if h.Key == r.PathValue("key") {
			status := http.StatusOK
			if !h.OK {
				status = http.StatusServiceUnavailable
			}
			answer(w, status, h)
			return
		}
	}
	fail(w, http.StatusNotFound, "no such camera")
}
