package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/pipeline/recordings"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// A camera's words cannot move the cursor, change a title or hide a line.
func TestPrintable(t *testing.T) {
	require.Equal(t, "DESCRIBE: the server answered 404 \uFFFD]0;owned\uFFFD\uFFFD[2J gone",
		printable("DESCRIBE: the server answered 404 \x1b]0;owned\a\x1b[2J gone"))
	require.Equal(t, "größer\n\ttab ▶", printable("größer\n\ttab ▶"))
	require.Equal(t, "\uFFFD", printable("\xff"))

	// Nor can a key or a file's name make lines and columns of a table, or a recorder's answer.
	var table bytes.Buffer
	require.NoError(t, printRecordings(&table, []recordings.File{{Key: "door\nyard\t1", Path: "/rec/\x1b[2J\n.mp4", Finished: true}}))
	require.Equal(t, 2, strings.Count(table.String(), "\n"), "%q", table.String())
	require.Contains(t, table.String(), "door\uFFFDyard\uFFFD1")
	require.NotContains(t, table.String(), "\x1b")
	require.Equal(t, "a\uFFFDb  recorder 7  \uFFFD[2J  event \uFFFDx  until it is stopped",
		triggerLine(trigger.Answer{Key: "a\nb", PID: 7, State: "\x1b[2J", Event: &trigger.Event{ID: "\rx"}}))

	var b bytes.Buffer
	s := statusLine{w: &b, on: true}
	s.show("cam1  not connected: \x1b[31mno")
	require.Equal(t, "\r\x1b[Kcam1  not connected: \uFFFD[31mno", b.String())
}
