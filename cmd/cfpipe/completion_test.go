package main

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// completions are what a shell is offered, and what it does about it: 4 = no file names, 8 = those with an extension, 16 = folders, 0 = all.
func completions(t *testing.T, line ...string) (values []string, directive string) {
	t.Helper()
	out, err := exec.Command(testenv.Binary(t), append([]string{"__complete"}, line...)...).Output()
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[:len(lines)-1], lines[len(lines)-1]
}

func TestCompletion(t *testing.T) {
	dir, key, _ := publishTestStream(t)
	for _, command := range []string{"frames", "infer"} { // there are packets alone
		values, directive := completions(t, command, "--runtime-dir", dir, "")
		require.Empty(t, values, command)
		require.Equal(t, ":4", directive, command)
	}
	for _, command := range []string{"record", "packets", "decode", "snapshot", "inspect", "bridge", "trigger", "relay"} {
		values, directive := completions(t, command, "--runtime-dir", dir, "")
		require.Equal(t, []string{key}, values, command)
		require.Equal(t, ":4", directive, command)
		values, _ = completions(t, command, "--runtime-dir", dir, key, "")
		require.Empty(t, values, command)
	}
	for _, c := range []struct {
		line      string
		values    []string
		directive string
	}{
		{"ingest x --decode ", []string{"off", "auto", "cuda", "cpu"}, ":4"},
		{"decode x --decode ", []string{"auto", "cuda", "cpu"}, ":4"},
		{"nnrp serve --device ", []string{"auto", "cpu", "cuda"}, ":4"},
		{"snapshot x --device ", []string{}, ":4"},
		{"ls --log-level ", []string{"debug", "info", "warn", "error"}, ":4"},
		{"ls --runtime-dir ", []string{}, ":16"},
		{"record x --segment ", []string{}, ":4"},
		{"record x --out ", []string{}, ":0"},
		{"ls ", []string{}, ":4"},
		{"run ", []string{"yaml", "yml"}, ":8"},
		{"ingest ", []string{}, ":0"},
		{"recordings re", []string{"rebuild\tMake the index anew from the files"}, ":4"},
	} {
		values, directive := completions(t, strings.Split(c.line, " ")...)
		require.Equal(t, c.values, values, c.line)
		require.Equal(t, c.directive, directive, c.line)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, err := exec.Command(testenv.Binary(t), "completion", shell).Output()
		require.NoError(t, err)
		require.Contains(t, string(out), "__complete", shell)
		if path, err := exec.LookPath(shell); err == nil {
			check := exec.Command(path, "-n")
			check.Stdin = strings.NewReader(string(out))
			said, err := check.CombinedOutput()
			require.NoError(t, err, "%s: %s", shell, said)
		}
	}
	err := exec.Command(testenv.Binary(t), "completion", "tcsh").Run()
	require.Equal(t, exitUsage, exitCode(err))
}

func TestSuits(t *testing.T) {
	sound, packets, frames := framering.Publication{Key: "c-audio"}, framering.Publication{Key: "c"}, framering.Publication{Key: "c"}
	frames.Header.RingSize = 4
	for command, want := range map[string][3]bool{
		"trigger": {false, true, true}, "record": {false, true, true}, "packets": {true, true, true}, "frames": {false, false, true}, "infer": {false, false, true},
	} {
		require.Equal(t, want, [3]bool{suits(command, sound), suits(command, packets), suits(command, frames)}, command)
	}
}

// What completion offers is what the help says, and a flag whose help begins with a list of words offers them.
func TestCompletionAgreesWithHelp(t *testing.T) {
	list := regexp.MustCompile(`^[a-z0-9-]+(, [a-z0-9-]+)*,? or [a-z0-9-]+\b`)
	seen := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		check := func(f *pflag.Flag) {
			values := choicesOf(c, f.Name)
			for _, v := range values {
				require.Regexp(t, `\b`+v+`\b`, f.Usage, "%s --%s", c.CommandPath(), f.Name)
			}
			if list.MatchString(f.Usage) {
				seen++
				require.NotEmpty(t, values, "%s --%s: %s", c.CommandPath(), f.Name, f.Usage)
			}
		}
		c.Flags().VisitAll(check)
		c.PersistentFlags().VisitAll(check)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRootCommand())
	require.Greater(t, seen, 10)
}
