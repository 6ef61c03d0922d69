// Package testcam is the built-in camera: an RTSP server that loops a clip in real time, with time that goes on across the
// loop, for demonstrations, tests and measurements without a camera.
package testcam

import (
	"bytes"
	_ "embed" // the clips
	"errors"
	"fmt"
	"time"

	"github.com/bluenviron/mediacommon/v2/pkg/codecs/mpeg4audio"

	"github.com/cfpipe/cfpipe/internal/media"
)

//go:generate ../../scripts/make-testcam-clips

//go:embed clips/camera.h264
var cameraH264 []byte

//go:embed clips/camera.h265
var cameraH265 []byte

//go:embed clips/camera.aac
var cameraAAC []byte

// The embedded clips: 25 frames/s, a keyframe every 48 frames, a whole number of video and audio frames long.
const frameDuration = time.Second / 25

// unit is one access unit of a clip. Its data is shared by all who play the clip.
type unit struct {
	pts, dts int64 // ns from the clip's start
	key      bool
	data     []byte
}

// clipTrack is one track of a clip: its units in dts order.
type clipTrack struct {
	media.Track
	units []unit
	delay int64 // the most by which a pts is ahead of its dts: so late is a unit sent that no pts lies in the future
}

// Clip is what a camera loops.
type Clip struct {
	tracks   []clipTrack
	duration int64 // ns; one round of the loop
}

// Tracks describes the clip's tracks.
func (c *Clip) Tracks() []media.Track {
	var tracks []media.Track
	for _, t := range c.tracks {
		tracks = append(tracks, t.Track)
	}
	return tracks
}

// Packets returns one round of a track, in decoding order; times are ns from the round's start.
func (c *Clip) Packets(track int) []media.Packet {
	var packets []media.Packet
	for _, u := range c.tracks[track].units {
		packets = append(packets, u.packet(0))
	}
	return packets
}

// packet returns the unit as a packet of the round that starts at base.
func (u *unit) packet(base int64) media.Packet {
	p := media.Packet{PTS: base + u.pts, DTS: base + u.dts, Flags: media.FlagLastInAU, Data: u.data}
	if u.key {
		p.Flags |= media.FlagKey
	}
	return p
}

// Duration is the length of one round.
func (c *Clip) Duration() time.Duration { return time.Duration(c.duration) }

// EmbeddedClip returns a built-in clip: codec "h264" or "h265", with AAC when audio is set.
func EmbeddedClip(codec string, audio bool) (*Clip, error) {
	video := clipTrack{Track: media.Track{Kind: media.Video, Name: "video", ClockRate: 90000}}
	var err error
	switch codec {
	case "", "h264":
		video.CodecID = media.H264
		video.units, video.Extradata, err = splitAnnexB(cameraH264, h264Kind)
	case "h265", "hevc":
		video.CodecID = media.HEVC
		video.units, video.Extradata, err = splitAnnexB(cameraH265, h265Kind)
	default:
		return nil, fmt.Errorf("codec %q: the built-in clips are h264 and h265", codec)
	}
	if err != nil {
		return nil, fmt.Errorf("read built-in clip: %w", err)
	}
	c := &Clip{tracks: []clipTrack{video}, duration: int64(len(video.units)) * int64(frameDuration)}
	if audio {
		t, err := splitADTS(cameraAAC, c.duration)
		if err != nil {
			return nil, fmt.Errorf("read built-in clip: %w", err)
		}
		c.tracks = append(c.tracks, t)
	}
	return c, nil
}

// nalKind tells what a NAL unit is to the splitter.
type nalKind uint8

const (
	nalOther nalKind = iota
	nalDelimiter
	nalParameterSet
	nalKey
)

func h264Kind(nal []byte) nalKind {
	switch nal[0] & 0x1F {
	case 9:
		return nalDelimiter
	case 7, 8:
		return nalParameterSet
	case 5:
		return nalKey
	}
	return nalOther
}

func h265Kind(nal []byte) nalKind {
	switch t := nal[0] >> 1 & 0x3F; {
	case t == 35:
		return nalDelimiter
	case t >= 32 && t <= 34:
		return nalParameterSet
	case t >= 16 && t <= 21:
		return nalKey
	}
	return nalOther
}

// splitAnnexB splits an elementary stream with access unit delimiters into access units with 4-byte start codes. extradata
// is the first parameter set of each kind.
func splitAnnexB(b []byte, kind func([]byte) nalKind) (units []unit, extradata []byte, err error) {
	var seen []byte // NAL header bytes of the parameter sets in extradata
	code := []byte{0, 0, 1}
	parts := bytes.Split(b, code)
	for _, nal := range parts[1:] {
		nal = bytes.TrimRight(nal, "\x00")
		if len(nal) == 0 {
			continue
		}
		k := kind(nal)
		if k == nalDelimiter {
			at := int64(len(units)) * int64(frameDuration)
			units = append(units, unit{pts: at, dts: at})
		}
		if len(units) == 0 {
			return nil, nil, errors.New("the stream does not begin with an access unit delimiter")
		}
		u := &units[len(units)-1]
		u.key = u.key || k == nalKey
		u.data = append(append(u.data, 0, 0, 0, 1), nal...)
		if k == nalParameterSet && bytes.IndexByte(seen, nal[0]) < 0 {
			seen = append(seen, nal[0])
			extradata = append(append(extradata, 0, 0, 0, 1), nal...)
		}
	}
	if len(units) == 0 || !units[0].key {
		return nil, nil, errors.New("the stream does not begin with a keyframe")
	}
	return units, extradata, nil
}

// splitADTS splits an AAC stream; what lies behind duration is left out, so that the loop joins.
func splitADTS(b []byte, duration int64) (clipTrack, error) {
	var packets mpeg4audio.ADTSPackets
	if err := packets.Unmarshal(b); err != nil {
		return clipTrack{}, err
	}
	rate := packets[0].SampleRate
	config, err := mpeg4audio.AudioSpecificConfig{Type: packets[0].Type, SampleRate: rate, ChannelCount: packets[0].ChannelCount}.Marshal()
	if err != nil {
		return clipTrack{}, err
	}
	t := clipTrack{Track: media.Track{Kind: media.Audio, Name: "audio", CodecID: media.AAC, ClockRate: rate,
		Channels: packets[0].ChannelCount, Extradata: config}}
	for i, p := range packets {
		at := int64(i) * mpeg4audio.SamplesPerAccessUnit * int64(time.Second) / int64(rate)
		if at >= duration {
			break
		}
		t.units = append(t.units, unit{pts: at, dts: at, key: true, data: p.AU})
	}
	return t, nil
}
