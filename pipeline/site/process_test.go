package site

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// A finished file comes out of a stage's process as it went in, whether it is whole or has ended early.
func TestFinishedFileThroughProcess(t *testing.T) {
	at := time.Date(2026, 5, 4, 12, 0, 0, 5, time.UTC)
	whole := pipeline.Recorded{Key: "a", Segment: mux.Segment{Path: "/v/a.mp4", Start: at, End: at.Add(time.Second), Packets: 1,
		AudioPackets: 2, Keyframes: 3,
		Lost: 4, Bytes: 5, Discontinuous: true, Cause: "event", Video: 6, Audio: 7, Width: 8, Height: 9}}
	cut := whole
	cut.Event, cut.Err = &trigger.Event{ID: "x", Trigger: at, Start: at}, errors.New("the disk is full")
	for _, f := range []pipeline.Recorded{whole, cut} {
		b, err := json.Marshal(report{File: reported(f)})
		require.NoError(t, err)
		var got report
		require.NoError(t, json.Unmarshal(b, &got))
		require.Equal(t, f, got.File.recorded())
	}
}
