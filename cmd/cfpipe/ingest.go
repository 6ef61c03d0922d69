package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/pipeline"
)

// passwordVariable keeps a password out of the process list.
const passwordVariable = "CFPIPE_PASSWORD"

func newIngestCommand(o *globalOptions) *cobra.Command {
	var i pipeline.IngestOptions
	var src pipeline.SourceOptions
	var passwordFile string
	var packetBytes byteSize
	var d decodeFlags
	c := &cobra.Command{
		Use:   "ingest SOURCE --key KEY",
		Short: "Bring a camera into shared memory",
		Long: `Ingest connects to SOURCE and publishes its access units as they come: video as KEY, audio as KEY-audio. Any number of other
processes then read them: record, relay, packets, programs of your own. Nothing is decoded unless --decode asks for it; the
pictures are then the frames of KEY.

SOURCE is a camera's URL (rtsp:// or rtsps://), a file, "-" for standard input, or anything else that FFmpeg opens. A camera is
connected to again whenever it goes away, after 1 s, then longer, up to a minute while it does not last; the rings stay
meanwhile. A file ends when it ends, unless --loop is given; --realtime plays it at its own speed, as a camera would.

User name and password may stand in the URL, with any characters, but everyone on this host can read them there: better are
--username with --password-file, or $` + passwordVariable + `.

The packet ring holds --packet-bytes: the default of 16 MiB is 33 s of 4 Mbit/s. That is how far back --pre of record reaches,
and what a keyframe interval has to fit into. /dev/shm must have room for it.` + "\n" + exitStatusHelp,
		Example: `  cfpipe ingest rtsp://camera.local/stream1 --key cam1 --username viewer --password-file /etc/cfpipe/cam1
  cfpipe ingest rtsp://10.0.0.7/live --key gate --transport udp --no-audio
  cfpipe ingest clip.mp4 --key test --loop --realtime
  ffmpeg -i … -c copy -f mpegts - | cfpipe ingest - --key test`,
		Args: oneSource,
		RunE: func(cmd *cobra.Command, a []string) error {
			src.URL, src.NoAudio, src.Logger = a[0], i.NoAudio, o.Logger
			if i.Key == "" {
				return usageError{fmt.Errorf("--key is missing (see %s --help)", cmd.CommandPath())}
			}
			if err := notNegative(cmd, "duration", "timeout", "stagger"); err != nil {
				return err
			}
			switch i.Protocol {
			case 1, 2, 4:
			default:
				return usageError{fmt.Errorf("--protocol %d: want 4, 2 or 1", i.Protocol)}
			}
			if d.mode != "off" {
				if err := d.parse(); err != nil {
					return err
				}
				i.Decode = &d.options
			}
			if i.Protocol == 1 && i.Decode == nil {
				return usageError{errors.New("--protocol 1 has frames alone and needs --decode")}
			}
			if err := sourcePassword(&src, passwordFile); err != nil {
				return err
			}
			if o.Group != "" {
				if _, err := framering.GroupID(o.Group); err != nil { // not when the camera answers
					return usageError{fmt.Errorf("--group: %w", err)}
				}
			}
			i.RuntimeDir, i.Group, i.Logger, i.PacketBytes = o.RuntimeDir, o.Group, o.Logger, int(packetBytes)
			src.MaxUnit = i.MaxUnit()
			av.SetLogger(o.Logger)
			opened, err := pipeline.OpenSource(src)
			if err != nil {
				if errors.Is(err, os.ErrNotExist) {
					return err
				}
				return usageError{err}
			}
			i.Source, i.Name, i.Live = opened.Source, opened.Name, opened.Live
			status := newStatusLine(os.Stderr)
			if status.on {
				rate := &ingestRate{}
				i.Progress = func(s pipeline.IngestStats) { status.show(rate.line(i.Key, s)) }
			}
			in, err := pipeline.NewIngest(i)
			if err != nil {
				return usageError{err}
			}
			tuneForPackets()
			err = in.Run(cmd.Context())
			status.clear()
			if errors.Is(err, framering.ErrInvalidArg) || errors.Is(err, media.ErrUnsupported) {
				err = usageError{err}
			}
			return stopped(cmd.Context(), err)
		},
	}
	f := c.Flags()
	f.StringVar(&i.Key, "key", "", "name to publish under: 1 to 57 of a-z, A-Z, 0-9, _ and - (63 with --no-audio)")
	f.StringVar(&src.Transport, "transport", "auto", "RTSP: auto, tcp, udp or multicast")
	f.StringVar(&src.Username, "username", "", "RTSP: user name")
	f.StringVar(&passwordFile, "password-file", "", "RTSP: file that holds the password (or $"+passwordVariable+")")
	f.BoolVar(&i.NoAudio, "no-audio", false, "leave audio out")
	f.IntVar(&i.PacketSlots, "packet-slots", 0, "access units that the packet ring holds, at most 1024 (default 1024)")
	f.Var(&packetBytes, "packet-bytes", "bytes that the packet ring holds (default 16MiB)")
	f.StringVar(&d.mode, "decode", "off", "pictures of the video under the same key: off, auto (NVDEC where it can, else the CPU), cuda or cpu")
	d.add(f)
	f.Uint32Var(&i.Protocol, "protocol", 4,
		"dialect of KEY for older readers: 4, 2 (frames in GPU memory by CUDA IPC), or 1 (frames alone; the packets are KEY-source then)")
	f.DurationVar(&i.Duration, "duration", 0, "stop after so much; 0 = when stopped")
	f.BoolVar(&src.Loop, "loop", false, "files: begin again at the end")
	f.BoolVar(&src.Realtime, "realtime", false, "files: play at their own speed")
	f.StringVar(&src.Format, "input-format", "", "FFmpeg inputs: name of the demuxer, where looking at the data does not tell")
	f.DurationVar(&src.Timeout, "timeout", 10*time.Second, "RTSP: for answers, and until silence ends a connection")
	f.DurationVar(&i.Stagger, "stagger", 0, "wait a random part of this first, so that many sources do not start together")
	f.StringVar(&src.CAFile, "ca", "", "rtsps: file of certificates to trust")
	f.StringVar(&src.Fingerprint, "fingerprint", "", "rtsps: SHA-256 of the camera's own certificate")
	f.BoolVar(&src.Insecure, "insecure", false, "rtsps: accept any certificate")
	return c
}

// sourcePassword takes the password from the file or the environment.
func sourcePassword(src *pipeline.SourceOptions, file string) (err error) {
	// The variable may stand there for other cameras: without a user name it does not matter.
	if file == "" && (src.Username != "" || strings.Contains(src.URL, "@")) {
		src.Password = os.Getenv(passwordVariable)
	}
	if file != "" {
		src.Password, err = readPassword(file)
	}
	return err
}

// ingestRate makes the progress line from one second to the next.
type ingestRate struct {
	packets, bytes uint64
	at             time.Time
}

func (r *ingestRate) line(key string, s pipeline.IngestStats) string {
	now := time.Now()
	passed := now.Sub(r.at).Seconds()
	packets, bytes := s.Video.Packets, s.Video.Bytes+s.Audio.Bytes
	line := key
	switch {
	case !s.Connected && s.LastError != "":
		line += "  not connected: " + s.LastError
	case !s.Connected:
		line += "  connecting"
	default:
		if !r.at.IsZero() && passed > 0 {
			line += fmt.Sprintf("  %.1f fps  %.2f Mbit/s", float64(packets-r.packets)/passed, float64(bytes-r.bytes)*8/1e6/passed)
		}
		line += fmt.Sprintf("  %d access units  %d keyframes  last %v ago", packets, s.Video.Keyframes, s.Video.Age().Round(10*time.Millisecond))
	}
	if s.Video.Gaps+s.Reconnects > 0 {
		line += fmt.Sprintf("  %d gaps  %d reconnects", s.Video.Gaps, s.Reconnects)
	}
	r.packets, r.bytes, r.at = packets, bytes, now
	if len(line) > 200 {
		line = line[:200]
	}
	return line
}
