// Command cfpipe shares cameras between processes through shared memory rings.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
)

// version is set by scripts/setup.
var version = "unknown"

func main() {
	// A closed pipe is an error of the write that meets it and no more: who reads the log or the list of files may go away, and
	// the camera and the recording stay. Caught and not ignored, so that child processes begin with the default.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newRootCommand().ExecuteContext(ctx)
	stop()
	status := exitStatus(err)
	if status != exitDone {
		fmt.Fprintln(os.Stderr, "cfpipe: "+printable(err.Error()))
	}
	os.Exit(status)
}

// Exit statuses, the same for every command (shown by --help).
const (
	exitDone     = 0 // done, or stopped by SIGINT or SIGTERM after a clean shutdown
	exitFailed   = 1
	exitUsage    = 2
	exitNotFound = 3 // no such key or file
	exitTimeout  = 4
)

// usageError marks an error in how the command was called.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// outputClosed says whether whoever read standard output has seen enough.
func outputClosed(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && path.Path == os.Stdout.Name() && errors.Is(path.Err, syscall.EPIPE)
}

// exitStatus maps the error that a command returned to its exit status.
func exitStatus(err error) int {
	var usage usageError
	switch {
	case err == nil, errors.Is(err, context.Canceled), outputClosed(err):
		return exitDone
	case errors.As(err, &usage):
		return exitUsage
	case errors.Is(err, os.ErrNotExist):
		return exitNotFound
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return exitTimeout
	default:
		return exitFailed
	}
}
