package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

const printedLines = "CFPIPE_TEST_PRINT_LINES"

// TestPrintLines is the process of TestDemoProcessLosesNoLine.
func TestPrintLines(t *testing.T) {
	if os.Getenv(printedLines) == "" {
		t.Skip("a helper process")
	}
	for i := range 1000 {
		fmt.Println("line", i)
	}
}

// A recording of the demo may report more files than anybody reads at once, the last of them as it ends.
func TestDemoProcessLosesNoLine(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	t.Setenv(printedLines, "yes")
	p, err := startDemoProcess(t.TempDir(), "printer", "-test.run", "^TestPrintLines$", "-test.v")
	require.NoError(t, err)
	n := 0
	for line := range p.lines {
		if strings.HasPrefix(line, "line ") {
			require.Equal(t, fmt.Sprint("line ", n), line)
			n++
		}
	}
	require.Equal(t, 1000, n)
	require.NoError(t, <-p.done)
}
