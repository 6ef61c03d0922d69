package testcam

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
)

// maxClip bounds the memory of a clip.
const maxClip = 256 << 20

// OpenClip reads a clip through FFmpeg: its first video and its first audio track, those that RTP can carry. A clip without
// either, or longer than 256 MiB, is an error.
func OpenClip(path string) (*Clip, error) {
	var c clipSink
	err := av.NewInput(av.InputOptions{URL: path}).Run(context.Background(), &c)
	if err != nil {
		return nil, fmt.Errorf("open clip: %w", err)
	}
	clip, err := c.clip()
	if err != nil {
		return nil, fmt.Errorf("open clip %s: %w", filepath.Base(path), err)
	}
	return clip, nil
}

// clipSink collects an input.
type clipSink struct {
	tracks []clipTrack
	bytes  int
}

// Tracks implements media.Sink.
func (c *clipSink) Tracks(tracks []media.Track) error {
	if c.tracks == nil {
		c.tracks = make([]clipTrack, len(tracks))
	}
	for i := range min(len(tracks), len(c.tracks)) {
		if len(c.tracks[i].Extradata) == 0 { // known from the first packets on
			c.tracks[i].Track = tracks[i]
		}
	}
	return nil
}

// Packet implements media.Sink. Packets ahead of the first keyframe are left out.
func (c *clipSink) Packet(track int, p media.Packet) error {
	t := &c.tracks[track]
	key := p.Flags&media.FlagKey != 0 || t.Kind == media.Audio
	if len(t.units) == 0 && !key {
		return nil
	}
	if c.bytes += len(p.Data); c.bytes > maxClip {
		return fmt.Errorf("longer than %d MiB", maxClip>>20)
	}
	t.units = append(t.units, unit{pts: p.PTS, dts: p.DTS, key: key, data: bytes.Clone(p.Data)})
	return nil
}

// clip lets time begin at 0 and finds the length of a round: that of its first track, with the last step once more.
func (c *clipSink) clip() (*Clip, error) {
	clip := &Clip{}
	for _, t := range c.tracks {
		if len(t.units) > 0 && rtsp.CanCarry(t.Track) == nil {
			clip.tracks = append(clip.tracks, t)
		}
	}
	if len(clip.tracks) == 0 {
		return nil, errors.New("no track that RTP can carry")
	}
	start := clip.tracks[0].units[0].dts
	for _, t := range clip.tracks {
		start = min(start, t.units[0].dts)
	}
	for i := range clip.tracks {
		t := &clip.tracks[i]
		for j := range t.units {
			u := &t.units[j]
			u.pts, u.dts = u.pts-start, u.dts-start
			t.delay = max(t.delay, u.pts-u.dts)
		}
		end := t.units[len(t.units)-1].dts
		if n := len(t.units); n > 1 {
			end += end - t.units[n-2].dts
		}
		clip.duration = max(clip.duration, end)
	}
	if clip.duration <= 0 {
		return nil, errors.New("it has one picture: a clip needs two")
	}
	return clip, nil
}
