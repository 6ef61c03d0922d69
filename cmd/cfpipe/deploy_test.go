package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// The unit is one that systemd takes, and may write to every folder that the documentation's sites write to.
func TestSystemdUnit(t *testing.T) {
	root := testenv.Root(t)
	unit, err := os.ReadFile(filepath.Join(root, "docs", "deploy", "cfpipe.service"))
	require.NoError(t, err)
	line := regexp.MustCompile(`(?m)^ReadWritePaths=(.*)$`).FindSubmatch(unit)
	require.NotNil(t, line)
	writable := strings.Fields(string(line[1]))
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	folders := regexp.MustCompile(`(?:out|results): '(/[^/']+/[^/']+)/`)
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range folders.FindAllSubmatch(text, -1) {
			found++
			require.True(t, slices.Contains(writable, "-"+string(m[1])), "%s: %s", page, m[1])
		}
	}
	require.NotZero(t, found)

	analyze := testenv.NeedTool(t, "systemd-analyze")
	file := filepath.Join(t.TempDir(), "cfpipe.service")
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(unit), "/usr/local/bin/cfpipe", testenv.Binary(t))), 0o600))
	out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "cfpipe.service", "a warning")
}
