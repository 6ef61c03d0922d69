package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// isTerminal says whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// printable replaces what would steer a terminal: errors and progress may hold what a camera or a publisher has said.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// cell is printable text for a table or a line, which a newline or a tab in it would break.
func cell(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// statusLine is a line of progress on a terminal; it writes nothing elsewhere.
type statusLine struct {
	w     io.Writer
	on    bool
	shown bool
}

func newStatusLine(w io.Writer) *statusLine { return &statusLine{w: w, on: isTerminal(w)} }

func (s *statusLine) show(text string) {
	if s.on {
		s.shown = true
		fmt.Fprintf(s.w, "\r\x1b[K%s", cell(text))
	}
}

func (s *statusLine) clear() {
	if s.shown {
		s.shown = false
		fmt.Fprint(s.w, "\r\x1b[K")
	}
}
