package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/redact"
	"github.com/cfpipe/cfpipe/pipeline"
	sites "github.com/cfpipe/cfpipe/pipeline/site"
)

func newRunCommand(o *globalOptions) *cobra.Command {
	var check, schema, stage, asJSON bool
	c := &cobra.Command{
		Use:   "run FILE",
		Short: "Run a site: many cameras and what is done with them, from one file",
		Long: `Run starts what a YAML file asks for, cameras, their recordings and events, inference, pushes, a relay, and keeps it running.
The stages are those of the other commands and are connected by rings alone; one that fails is started again after a pause that
grows from 1 s to a minute, and touches no other. All run in this process unless the file says "isolation: process" for one.

The file is read again at SIGHUP and when it changes: only stages whose part of it has changed are restarted. A file with an error
changes nothing. SIGINT and SIGTERM stop the cameras first; what the rings hold is recorded, and the files are finished.

--check names what is wrong with the file, each with its line, warns of what is hardly meant, of folders that this user cannot
write, of bounds that no disk can meet and of recordings of cameras that are no longer in it, and starts nothing. --schema prints
the JSON Schema of the file for editors.

Secrets do not stand in the file: name files (password_file) or environment variables (${NAME}).` + "\n" + exitStatusHelp,
		Example: `  cfpipe run site.yaml --check && cfpipe run site.yaml
  cfpipe run --schema > site.schema.json

  # site.yaml
  defaults:
    username: viewer
    password_file: /etc/cfpipe/password
    record: {out: '/srv/video/%{key}/%Y-%m-%d/%H-%M-%S.mp4', retention: {age: 30d}}
  cameras:
    door: {source: 'rtsp://10.0.0.21/stream1'}
    yard: {source: 'rtsp://10.0.0.22/stream1'}
  relay: {listen: ':8554'}`,
		Args: func(cmd *cobra.Command, a []string) error {
			if err := oneOf(cmd, "check", "schema", "stage", "json"); err != nil {
				return err
			}
			if schema || stage {
				return noArgs(cmd, a)
			}
			return oneFile(cmd, a)
		},
		RunE: func(cmd *cobra.Command, a []string) error {
			secrets := &redact.Set{} // of the site file: FFmpeg's messages hold its URLs too
			o.Logger = secrets.Logger(o.Logger)
			av.SetLogger(o.Logger)
			quietQUIC()
			switch {
			case schema:
				_, err := cmd.OutOrStdout().Write(sites.Schema())
				return err
			case stage:
				tuneForPackets()
				return sites.RunStage(cmd.Context(), os.Stdin, os.Stdout, o.Logger, secrets)
			case check:
				config, err := sites.Load(a[0])
				if err != nil {
					return siteError(err)
				}
				if err := config.CheckIndex(); err != nil {
					return siteError(err)
				}
				for _, w := range slices.Concat(config.Warnings(), config.Unwritable(), config.Unmet(), config.Strays(cmd.Context())) {
					fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+printable(w))
				}
				fmt.Fprintln(cmd.OutOrStdout(), config.Summary())
				return nil
			}
			return runSite(cmd, o, a[0], asJSON, secrets)
		},
	}
	f := c.Flags()
	f.BoolVar(&check, "check", false, "check the file and start nothing")
	f.BoolVar(&schema, "schema", false, "print the JSON Schema of the file")
	f.BoolVar(&asJSON, "json", false, "print a JSON line for each finished file")
	f.BoolVar(&stage, "stage", false, "run one stage for another cfpipe run")
	_ = f.MarkHidden("stage")
	return c
}

// siteError gives an error of a site file the status of wrong usage; a file that is not there keeps its own.
func siteError(err error) error {
	var field *sites.FieldError
	if errors.As(err, &field) {
		return usageError{err}
	}
	return err
}

func runSite(cmd *cobra.Command, o *globalOptions, file string, asJSON bool, secrets *redact.Set) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	options := sites.Options{
		File: file, Group: o.Group, Logger: o.Logger, Secrets: secrets,
		Command: []string{exe, "run", "--stage", "--log-level", o.LogLevel, "--log-format", o.LogFormat},
	}
	if cmd.Flags().Changed("runtime-dir") || os.Getenv("CUFRAMES_RUNTIME_DIR") != "" {
		options.RuntimeDir = o.RuntimeDir
	}
	manager := newSystemd()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	reload := make(chan struct{})
	ctx := cmd.Context()
	go relaySignal(ctx, hup, reload)
	options.Reload = reload
	options.Ready = func(c *sites.Config) {
		o.Logger.Info("site is running", "file", file, "cameras", len(c.Cameras))
		manager.say("READY=1")
	}
	options.Alive = manager.alive
	defer context.AfterFunc(ctx, func() { manager.say("STOPPING=1") })()
	if asJSON {
		var mu sync.Mutex
		lines := json.NewEncoder(cmd.OutOrStdout())
		options.Finished = func(f pipeline.Recorded) {
			mu.Lock()
			defer mu.Unlock()
			_ = lines.Encode(newSiteLine(f)) // whoever read it has gone; the recordings matter more
		}
	}
	s, err := sites.New(options)
	if err != nil {
		return siteError(err)
	}
	tuneForSite(s.Streams())
	return secrets.Error(s.Run(ctx))
}

func relaySignal(ctx context.Context, from <-chan os.Signal, to chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-from:
		}
		select {
		case <-ctx.Done():
			return
		case to <- struct{}{}:
		}
	}
}
