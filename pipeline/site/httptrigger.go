package site

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

const (
	maxTrigger  = 4096            // bytes of a request's body
	triggerWait = 5 * time.Second // for the recorders' answers
)

// serveTrigger asks all recorders that wait for events of one of this site's streams, in whatever process.
func (s *Site) serveTrigger(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("key")
	if framering.CheckKey(key) != nil || !s.has(key) {
		fail(w, http.StatusNotFound, "no such camera")
		return
	}
	request, err := readTrigger(r.Body)
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), triggerWait)
	defer cancel()
	took, err := trigger.Send(ctx, s.runtimeDir, key, request)
	switch {
	case err == nil:
		answer(w, http.StatusOK, map[string]any{"key": key, "recorders": took})
	case errors.Is(err, os.ErrNotExist):
		fail(w, http.StatusConflict, "nobody records this camera on events: give it events: in the site file")
	case errors.Is(err, os.ErrDeadlineExceeded):
		s.log.Warn("trigger", "key", key, "error", err)
		answer(w, http.StatusGatewayTimeout, map[string]any{"key": key, "recorders": took, "error": "a recorder does not answer"})
	default:
		s.log.Warn("trigger", "key", key, "error", err)
		answer(w, http.StatusInternalServerError, map[string]any{"key": key, "recorders": took, "error": "a recorder did not take it; the log says why"})
	}
}

// readTrigger reads a request's body; an empty one is a trigger without more.
func readTrigger(body io.Reader) (r trigger.Request, err error) {
	b, err := io.ReadAll(body)
	if err != nil {
		return r, err
	}
	var in struct {
		Action trigger.Action
		For    string
		Reason string
	}
	if len(bytes.TrimSpace(b)) > 0 {
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		err := d.Decode(&in)
		if err == nil && d.More() {
			err = errors.New("there is more behind it")
		}
		if err != nil {
			return r, fmt.Errorf(`%s: want JSON such as {"action": "start", "for": "30s", "reason": "bell"}, each of them optional`, wrongJSON(err))
		}
	}
	r.Action, r.Reason = in.Action, in.Reason
	if in.For != "" {
		if r.For, err = ParseDuration(in.For); err != nil {
			return r, errors.New("for: " + err.Error())
		}
	}
	return r, r.Check()
}

// wrongJSON says what is wrong with a body in the words of whoever wrote it.
func wrongJSON(err error) string {
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) && kind.Field != "" {
		return fmt.Sprintf("%s: a %s is no %s", strings.ToLower(kind.Field), kind.Value, kind.Type.Kind())
	}
	text := strings.TrimPrefix(err.Error(), "json: ")
	if name, ok := strings.CutPrefix(text, "unknown field "); ok {
		return fmt.Sprintf("unknown field %.60s", name)
	}
	return fmt.Sprintf("%.120s", text)
}
