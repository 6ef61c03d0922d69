package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/testcam"
)

func newTestcamCommand(o *globalOptions) *cobra.Command {
	var (
		options      testcam.Options
		codec        string
		audio        bool
		file         string
		passwordFile string
		asJSON       bool
	)
	c := &cobra.Command{
		Use:   "testcam",
		Short: "Run built-in RTSP cameras",
		Long: "Serves one or more RTSP cameras that loop a clip in real time; their time goes on across the loop.\n" +
			"The addresses are printed on stdout. A frame counter is drawn in the built-in pictures.\n" + exitStatusHelp,
		Example: "  cfpipe testcam --audio &\n  cfpipe ingest rtsp://127.0.0.1:8555/cam0 --key cam0",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if options.Count < 1 || options.Count > 10000 {
				return usageError{fmt.Errorf("--count %d: want 1 to 10000", options.Count)}
			}
			if !(options.Loss >= 0 && options.Loss <= 1) {
				return usageError{fmt.Errorf("--loss %v: want 0 to 1", options.Loss)}
			}
			if file != "" && (cmd.Flags().Changed("codec") || audio) {
				return usageError{errors.New("--file decides the codec and the audio: leave out --codec and --audio")}
			}
			var err error
			if options.Password, err = readPassword(passwordFile); err != nil {
				return err
			}
			if err := checkCredentials(options.Username, passwordFile, options.Password); err != nil {
				return err
			}
			if file != "" {
				options.Clip, err = testcam.OpenClip(file)
			} else if options.Clip, err = testcam.EmbeddedClip(codec, audio); err != nil {
				err = usageError{err}
			}
			if err != nil {
				return err
			}
			options.Logger = o.Logger
			var mu sync.Mutex
			line := func(v any) {
				mu.Lock()
				defer mu.Unlock()
				_ = json.NewEncoder(cmd.OutOrStdout()).Encode(v) // whoever read it has gone; the cameras go on
			}
			if asJSON {
				options.Left = func(s testcam.Sent) { line(s) }
			}
			cameras, err := testcam.Start(options)
			if err != nil {
				return err
			}
			defer cameras.Close()
			for _, u := range cameras.URLs() {
				if asJSON {
					line(map[string]string{"url": u})
				} else {
					fmt.Fprintln(cmd.OutOrStdout(), u)
				}
			}
			<-cmd.Context().Done()
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&options.Listen, "listen", "127.0.0.1:8555", "address to listen on; port 0 takes a free one")
	f.IntVar(&options.Count, "count", 1, "number of cameras: paths /cam0, /cam1, …")
	f.StringVar(&codec, "codec", "h264", "codec of the built-in clip: h264 or h265")
	f.BoolVar(&audio, "audio", false, "with an AAC track")
	f.StringVar(&file, "file", "", "loop this clip instead of the built-in one")
	f.StringVar(&options.Username, "username", "", "ask readers for this user name")
	f.StringVar(&passwordFile, "password-file", "", "file that holds the password")
	f.BoolVar(&asJSON, "json", false,
		"print a JSON line for each camera, its url, and for each reader that leaves: access units sent, times of the first and the last")
	f.Float64Var(&options.Loss, "loss", 0, "part of the RTP packets over UDP that get lost, 0 to 1")
	f.StringVar(&options.Multicast, "multicast", "", "serve multicast from this range too, for example 239.255.42.0/24")
	return c
}
