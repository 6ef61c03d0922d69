package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/bench"
)

// choices are the values of flags that take one of a few words: of all commands with such a flag, or of one command ("ingest decode").
var choices = map[string][]string{
	"log-level":  {"debug", "info", "warn", "error"},
	"log-format": {"text", "json"},

	"transport":     {"auto", "tcp", "udp", "multicast"},
	"ingest decode": {"off", "auto", "cuda", "cpu"},
	"decode":        {"auto", "cuda", "cpu"},
	"frame-memory":  {"auto", "host", "cuda"},
	"policy":        {"drop-oldest", "strict-wait"},
	"protocol":      {"4", "2", "1"},

	"format":         {"fmp4", "mkv", "ts", "mp4"},
	"packets format": {"annexb", "mpegts", "nut", "fmp4", "mkv"},
	"frames format":  {"y4m", "raw"},
	"packets from":   {"live", "oldest"},
	"fsync":          {"fragment", "segment", "never"},

	"dtype":        {"uint8", "int8", "uint16", "fp16", "fp32"},
	"layout":       {"nhwc", "nchw"},
	"tensors":      {"numbers", "base64"},
	"engine":       {"motion", "onnx"},
	"serve device": {"auto", "cpu", "cuda"},

	"sort":  {"key", "lag", "rate", "age"},
	"codec": {"h264", "h265"},
	"only":  bench.Parts,
}

// choicesOf returns what a flag of a command takes; nil where that is no short list.
func choicesOf(c *cobra.Command, flag string) []string {
	if own := choices[c.Name()+" "+flag]; own != nil {
		return own
	}
	return choices[flag]
}

// addCompletions lets shells complete keys that are published, values of flags, and file names where a file is meant.
func addCompletions(c *cobra.Command, o *globalOptions) {
	for _, sub := range c.Commands() {
		addCompletions(sub, o)
	}
	complete := func(f *pflag.Flag) {
		switch values := choicesOf(c, f.Name); {
		case values != nil:
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		case f.Name == "runtime-dir", f.Name == "dir":
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
		case f.Value.Type() != "string": // a number, a duration, a size
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
		}
	}
	c.Flags().VisitAll(complete)
	c.PersistentFlags().VisitAll(complete)

	switch words := strings.Fields(c.Use); {
	case c.HasSubCommands():
	case len(words) > 1 && words[1] == "KEY":
		c.ValidArgsFunction = func(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(given) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return o.liveKeys(func(p framering.Publication) bool { return suits(c.Name(), p) })
		}
	case strings.Contains(c.Use, "KEY…"):
		c.ValidArgsFunction = func(_ *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
			return o.liveKeys(func(p framering.Publication) bool { return !slices.Contains(given, p.Key) })
		}
	case c.Name() == "run":
		c.ValidArgsFunction = cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt)
	case len(words) == 1 || strings.HasPrefix(words[1], "["): // flags alone
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
}

// suits says whether a command can do something with a key, as far as that can be seen without asking its publisher.
func suits(command string, p framering.Publication) bool {
	switch command {
	case "frames", "infer":
		return p.Err != nil || p.Header.RingSize > 0
	case "decode", "record", "snapshot", "trigger":
		return !strings.HasSuffix(p.Key, pipeline.AudioSuffix)
	}
	return true
}

// liveKeys are the keys that are published in the runtime directory and wanted.
func (o *globalOptions) liveKeys(wanted func(framering.Publication) bool) (keys []string, _ cobra.ShellCompDirective) {
	list, err := framering.List(o.RuntimeDir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError | cobra.ShellCompDirectiveNoFileComp
	}
	for _, p := range list {
		if p.Alive && wanted(p) {
			keys = append(keys, p.Key)
		}
	}
	return keys, cobra.ShellCompDirectiveNoFileComp
}
