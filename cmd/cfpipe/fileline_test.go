package main

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

// Scripts read these lines: what stands in them stays, in its order.
func TestFileLines(t *testing.T) {
	at := time.Date(2026, 5, 4, 12, 0, 0, 5e8, time.FixedZone("", 7200))
	end := at.Add(20 * time.Second)
	whole := pipeline.Recorded{Key: "a", Segment: mux.Segment{Path: "/v/a.mp4", Start: at, End: end, Packets: 500,
		AudioPackets: 900, Keyframes: 10, Lost: 3,
		Bytes: 12345, Discontinuous: true, Cause: "event: door", Video: 27, Audio: 86018, Width: 1920, Height: 1080}}
	cut := whole
	cut.Err = errors.New("the disk is full")
	cut.Event = &trigger.Event{ID: "x1", Reason: "door", Trigger: at, Start: at, End: &end}
	const times = `"start":"2026-05-04T12:00:00.5+02:00","end":"2026-05-04T12:00:20.5+02:00"`
	const event = `"event":{"id":"x1","reason":"door","trigger":"2026-05-04T12:00:00.5+02:00",` + times + `}`
	const record = `{"path":"/v/a.mp4",` + times + `,"duration":20,` +
		`"packets":500,"audio_packets":900,"lost":3,"keyframes":10,"bytes":12345,"discontinuous":true`
	const run = `{"key":"a","path":"/v/a.mp4",` + times + `,"bytes":12345,"packets":500,"lost":3,"discontinuous":true,`
	const rest = `"keyframes":10,"video_codec":27,"audio_codec":86018,"width":1920,"height":1080,"cause":"event: door"`
	const described = `,"key":"a","codecs":"h264+aac","width":1920,"height":1080,"cause":"event: door"}`
	const measured = `,"duration":20,"audio_packets":900,"codecs":"h264+aac"`
	for _, c := range []struct {
		line any
		want string
	}{
		{newSegmentLine(whole), record + described},
		{newSegmentLine(cut), record + `,"error":"the disk is full",` + event + described},
		{newSiteLine(whole), run + rest + measured + `}`},
		{newSiteLine(cut), run + event + `,` + rest + `,"cut":true` + measured + `,"error":"the disk is full"}`},
	} {
		got, err := json.Marshal(c.line)
		require.NoError(t, err)
		require.Equal(t, c.want, string(got))
	}
	require.Equal(t, "/v/a.mp4  20s  500 access units, 3 lost, after a gap", segmentText(whole))
	require.Equal(t, "/v/a.mp4  20s  500 access units, event x1 (door), 3 lost, after a gap, ended early: the disk is full", segmentText(cut))
}
