package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/framering"
)

// globalOptions are the flags that every command takes.
type globalOptions struct {
	RuntimeDir string
	Group      string
	LogLevel   string
	LogFormat  string

	Logger *slog.Logger // built from LogLevel and LogFormat before a command runs; writes to stderr
}

const exitStatusHelp = `
EXIT STATUS
  0  done, or stopped by SIGINT or SIGTERM after a clean shutdown
  1  failed
  2  wrong usage
  3  no such key or file
`

// waitStatusHelp is for commands that have --wait.
const waitStatusHelp = exitStatusHelp + "  4  timed out: --wait ended without KEY, or nothing came\n"

// newRootCommand builds the command tree. Each subcommand stands in a file of its own.
func newRootCommand() *cobra.Command {
	o := &globalOptions{}
	root := &cobra.Command{
		Use:   "cfpipe",
		Short: "Share cameras between processes through shared memory",
		Long: "cfpipe owns each camera once, writes its packets and pictures into shared memory,\n" +
			"and lets any number of other processes record, relay, decode or analyse them.",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return o.setUp()
		},
	}
	f := root.PersistentFlags()
	f.StringVar(&o.RuntimeDir, "runtime-dir", framering.RuntimeDir(""), "folder of the control sockets (or $CUFRAMES_RUNTIME_DIR)")
	f.StringVar(&o.Group, "group", "", "open sockets and rings to this Unix group (default: the owner alone)")
	f.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&o.LogFormat, "log-format", "text", "text or json")
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		newBenchCommand(o),
		newBridgeCommand(o),
		newDecodeCommand(o),
		newDemoCommand(o),
		newDoctorCommand(o),
		newFramesCommand(o),
		newInferCommand(o),
		newIngestCommand(o),
		newInspectCommand(o),
		newLsCommand(o),
		newNNRPCommand(o),
		newPacketsCommand(o),
		newRecordCommand(o),
		newRecordingsCommand(o),
		newTestcamCommand(o),
		newTopCommand(o),
		newRelayCommand(o),
		newRunCommand(o),
		newSnapshotCommand(o),
		newTriggerCommand(o),
		&cobra.Command{
			Use: "version", Short: "Print the version", Long: "Prints the version, as --version does.\n" + exitStatusHelp,
			Example: "  cfpipe version", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				_, err := fmt.Fprintln(c.OutOrStdout(), "cfpipe version "+version)
				return err
			},
		},
	)
	addCompletions(root, o)
	root.InitDefaultCompletionCmd() // now: checkCommand is to know it
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		for _, shell := range c.Commands() {
			shell.Args = noArgs
		}
	}
	return root
}

func (o *globalOptions) setUp() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return usageError{fmt.Errorf("--log-level %q: want debug, info, warn or error", o.LogLevel)}
	}
	h := &slog.HandlerOptions{Level: level}
	switch o.LogFormat {
	case "text":
		o.Logger = slog.New(slog.NewTextHandler(os.Stderr, h))
	case "json":
		o.Logger = slog.New(slog.NewJSONHandler(os.Stderr, h))
	default:
		return usageError{fmt.Errorf("--log-format %q: want text or json", o.LogFormat)}
	}
	return nil
}
