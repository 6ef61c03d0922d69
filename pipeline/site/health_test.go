package site

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/pipeline"
)

// camera is a stream whose newest picture is of an age, with its recorder.
func camera(age time.Duration) []StageStatus {
	in := &pipeline.IngestStats{Connected: age < silentAfter}
	in.Video.LastPacket = time.Now().Add(-age)
	return []StageStatus{
		{Kind: kindIngest, Key: "a", State: StateRunning, Ingest: in},
		{Kind: kindRecord, Key: "a", State: StateRunning, Record: &pipeline.RecordStats{Packets: 1000}},
	}
}

// Of a camera that brings nothing nothing is recorded, however much was before.
func TestHealthOfRecording(t *testing.T) {
	h := health(camera(time.Second))[0]
	require.True(t, h.OK && *h.Recording, "%+v", h)
	h = health(camera(silentAfter + time.Second))[0]
	require.Equal(t, "no picture comes", h.Problem)
	require.False(t, *h.Recording)
	failing := camera(time.Second)
	failing[1].Record.Failing = true
	h = health(failing)[0]
	require.Equal(t, "it is not recorded: the disk does not take the file", h.Problem)
	require.False(t, *h.Recording)
}

// A push without a connection is a problem of its camera when a server's restart does not explain it.
func TestHealthOfPush(t *testing.T) {
	push := func(p *pipeline.PushStats, state State, lastErr string) []StageStatus {
		return append(camera(time.Second), StageStatus{Kind: kindPush, Key: "a", State: state, LastError: lastErr, Push: p})
	}
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	for name, c := range map[string]struct {
		stages []StageStatus
		want   string // "" = no problem
	}{
		"connected":           {push(&pipeline.PushStats{Connections: 1, LastError: "it was refused once"}, StateRunning, ""), ""},
		"waits for the key":   {push(&pipeline.PushStats{}, StateRunning, ""), ""},
		"has not told yet":    {push(nil, StateRunning, ""), ""},
		"the server restarts": {push(&pipeline.PushStats{DisconnectedSince: ago(20 * time.Second), LastError: "refused"}, StateRunning, ""), ""},
		"refused": {push(&pipeline.PushStats{DisconnectedSince: ago(3 * time.Minute), LastError: "refused"}, StateRunning, ""),
			"no connection for 3m0s: refused"},
		"the stage fails": {push(nil, StateBackoff, "no such host"), "backoff: no such host"},
	} {
		t.Run(name, func(t *testing.T) {
			h, others := health(c.stages)[0], problems(c.stages)
			if c.want == "" {
				require.True(t, h.OK, "%+v", h)
				require.Empty(t, others)
				return
			}
			require.False(t, h.OK)
			require.Equal(t, "it is not pushed: "+c.want, h.Problem)
			require.Equal(t, []StageProblem{{kindPush, "a", c.want}}, others)
		})
	}
	silent := append(push(&pipeline.PushStats{DisconnectedSince: ago(time.Hour), LastError: "refused"}, StateRunning, "")[2:], camera(time.Hour)...)
	require.Equal(t, "no picture comes", health(silent)[0].Problem, "what is wrong with the camera itself comes first")
}
