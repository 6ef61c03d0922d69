package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/packetring"
	"github.com/cfpipe/cfpipe/pipeline"
)

// ringReader reads the packet ring to its end.
type ringReader struct {
	packets    atomic.Uint64
	bytes      atomic.Uint64
	beforeKey  uint64 // packets in front of the first keyframe: no recording can begin with those
	lost       uint64
	dtsStepped uint64 // times that dts did not rise
}

func (r *ringReader) run(ctx context.Context, ring *pipeline.Subscription) {
	keySeen, lastDTS := false, int64(0)
	for {
		p, err := ring.Next(ctx)
		if err != nil { // the publisher's end of the ring, or the end of the demo
			r.lost = ring.Stats().Lost
			return
		}
		keySeen = keySeen || p.Flags&packetring.FlagKey != 0
		if !keySeen {
			r.beforeKey++
		}
		if r.packets.Load() > 0 && p.DTS <= lastDTS {
			r.dtsStepped++
		}
		lastDTS = p.DTS
		r.bytes.Add(uint64(len(p.Data)))
		r.packets.Add(1)
	}
}

// relayViewer reads the relay with FFmpeg's RTSP client, which shares no code with the relay.
type relayViewer struct {
	packets  atomic.Uint64
	firstKey bool
	wait     time.Duration // from asking to the first access unit
	err      error

	asked time.Time
	video int
}

func (v *relayViewer) run(ctx context.Context, url string, o *globalOptions) {
	for {
		v.asked = time.Now()
		in := av.NewInput(av.InputOptions{URL: url, Options: map[string]string{"rtsp_transport": "tcp", "analyzeduration": "200000"}, Logger: o.Logger})
		v.err = in.Run(ctx, v)
		if ctx.Err() != nil {
			v.err = nil
			return
		}
		if v.packets.Load() > 0 {
			return // the relay ended the session
		}
		select { // the relay is not listening yet
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Tracks is a method of media.Sink.
func (v *relayViewer) Tracks(tracks []media.Track) error {
	for i, t := range tracks {
		if t.Kind == media.Video {
			v.video = i
		}
	}
	return nil
}

// Packet is a method of media.Sink.
func (v *relayViewer) Packet(track int, p media.Packet) error {
	if track != v.video {
		return nil
	}
	if v.packets.Add(1) == 1 {
		v.wait = time.Since(v.asked)
		v.firstKey = p.Flags&media.FlagKey != 0
	}
	return nil
}

// fileCheck reads a finished recording back.
type fileCheck struct {
	video    int
	packets  uint64
	firstKey bool
}

func (f *fileCheck) Tracks(tracks []media.Track) error {
	for i, t := range tracks {
		if t.Kind == media.Video {
			f.video = i
		}
	}
	return nil
}

func (f *fileCheck) Packet(track int, p media.Packet) error {
	if track != f.video {
		return nil
	}
	if f.packets == 0 {
		f.firstKey = p.Flags&media.FlagKey != 0
	}
	f.packets++
	return nil
}

// report shows what was made and returns an error when something does not add up.
func (r *demo) report() error {
	fmt.Fprintf(r.w, "What was made\n\n  %-28s %-10s %9s %8s  %s\n", "recording", "start", "duration", "packets", "begins with a keyframe")
	var packets, lost uint64
	var faults []error
	fault := func(format string, a ...any) { faults = append(faults, fmt.Errorf("demo: "+format, a...)) }
	for _, s := range r.segments {
		check := &fileCheck{}
		if err := av.NewInput(av.InputOptions{URL: s.Path}).Run(context.Background(), check); err != nil {
			fault("%s does not play: %w", s.Path, err)
		}
		if check.packets != uint64(s.Packets) {
			fault("%s holds %d access units, the recorder reported %d", s.Path, check.packets, s.Packets)
		}
		if !check.firstKey {
			fault("%s does not begin with a keyframe", s.Path)
		}
		packets += check.packets
		lost += s.Lost
		fmt.Fprintf(r.w, "  %-28s %-10s %7.2f s %8d  %s\n", filepath.Base(s.Path), s.Start.Local().Format("15:04:05"), s.Duration,
			check.packets, yesNo(check.firstKey))
	}
	published, relayed := r.published.packets.Load(), r.viewer.packets.Load()
	fmt.Fprintf(r.w, "\n  published   %d access units, %s; dts never steps back: %s\n", published, mebibyte(r.published.bytes.Load()),
		yesNo(r.published.dtsStepped == 0))
	fmt.Fprintf(r.w, "  recorded    %d in %d files, %d lost\n", packets, len(r.segments), lost)
	fmt.Fprintf(r.w, "  relayed     %d to FFmpeg; first picture %d ms after asking, a keyframe: %s\n", relayed,
		r.viewer.wait.Milliseconds(), yesNo(r.viewer.firstKey))

	if want := published - r.published.beforeKey; packets != want {
		fault("%d access units recorded, %d published", packets, want)
	}
	if r.published.dtsStepped > 0 || r.published.lost > 0 || lost > 0 {
		fault("lost %d, dts stepped back %d times", r.published.lost+lost, r.published.dtsStepped)
	}
	if relayed == 0 || !r.viewer.firstKey {
		fault("FFmpeg got %d access units from the relay (%v)", relayed, r.viewer.err)
	}
	if len(faults) > 0 {
		fmt.Fprintf(r.w, "\nThe logs are in %s\n", r.dir)
		return errors.Join(faults...)
	}
	fmt.Fprintf(r.w, `
Every access unit (picture) that the camera sent is in the files, and one connection served all readers. With a camera of your own:

  cfpipe ingest rtsp://host/stream --username NAME --password-file FILE --key door
  cfpipe record door --out '/srv/video/%%{key}/%%Y-%%m-%%d/%%H-%%M-%%S.mp4'
  cfpipe relay                                  # then: ffplay -rtsp_transport tcp rtsp://localhost:8554/door
  cfpipe packets door -f nut | ffmpeg -i - -c:v copy door.mp4

Play what was recorded: ffplay %s
Nothing is left but files, which you may delete: rm -r %s
`, r.segments[0].Path, r.dir)
	return nil
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}

func mebibyte(n uint64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
