// Command cfpipe shares cameras between processes through shared memory rings.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

// version is set by scripts/setup.
var version = "unknown"

func main() {
	// A closed pipe is an error of the write that meets it and no more: who reads the log or the list of files may go away, and
	// the camera and the recording stay. Caught and not ignored, so that child processes begin with the default.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	root := newRootCommand()
	err := checkCommand(root, os.Args[1:])
	if err == nil {
		var c *cobra.Command
		c, err = root.ExecuteContextC(ctx)
		err = waitHint(c, err)
	}
	stop()
	status := exitStatus(err)
	if status != exitDone {
		tellFailure(root, err, status)
	}
	os.Exit(status)
}

// tellFailure is the last line of a command that failed, in the form of its log.
func tellFailure(root *cobra.Command, err error, status int) {
	if root.PersistentFlags().Lookup("log-format").Value.String() == "json" {
		slog.New(slog.NewJSONHandler(os.Stderr, nil)).Error(err.Error(), "exit_status", status)
		return
	}
	fmt.Fprintln(os.Stderr, "cfpipe: "+printable(err.Error()))
}

// Exit statuses, the same for every command (shown by --help).
const (
	exitDone     = 0 // done, or stopped by SIGINT or SIGTERM after a clean shutdown
	exitFailed   = 1
	exitUsage    = 2
	exitNotFound = 3 // no such key or file
	exitTimeout  = 4
)

// outputClosed says whether whoever read standard output has seen enough.
func outputClosed(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && path.Path == os.Stdout.Name() && errors.Is(path.Err, syscall.EPIPE)
}

// exitStatus maps the error that a command returned to its exit status.
func exitStatus(err error) int {
	var usage usageError
	var key *framering.KeyError
	var absent *pipeline.NoKeyError
	var undecoded *pipeline.NoFramesError
	var unwritten *mux.WriteError
	var output *recordings.OutputError
	switch {
	case err == nil, errors.Is(err, context.Canceled), outputClosed(err):
		return exitDone
	case errors.As(err, &usage), errors.As(err, &key):
		return exitUsage
	case errors.As(err, &absent) && absent.Waited > 0, errors.As(err, &undecoded) && undecoded.Waited > 0:
		return exitTimeout
	case errors.As(err, &unwritten), errors.As(err, &output): // a folder that cannot be made is no missing input
		return exitFailed
	case errors.Is(err, os.ErrNotExist):
		return exitNotFound
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	default:
		return exitFailed
	}
}
