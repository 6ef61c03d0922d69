package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// A camera's words cannot move the cursor, change a title or hide a line.
func TestPrintable(t *testing.T) {
	require.Equal(t, "DESCRIBE: the server answered 404 \uFFFD]0;owned\uFFFD\uFFFD[2J gone", printable("DESCRIBE: the server answered 404 \x1b]0;owned\a\x1b[2J gone"))
	require.Equal(t, "größer\n\ttab ▶", printable("größer\n\ttab ▶"))
	require.Equal(t, "\uFFFD", printable("\xff"))

	var b bytes.Buffer
	s := statusLine{w: &b, on: true}
	s.show("cam1  not connected: \x1b[31mno")
	require.Equal(t, "\r\x1b[Kcam1  not connected: \uFFFD[31mno", b.String())
}
