package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/pipeline"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// segmentLine is the JSON line of record --json for a finished file.
type segmentLine struct {
	Path          string    `json:"path"`
	Start         time.Time `json:"start"`
	End           time.Time `json:"end"`
	Duration      float64   `json:"duration"` // seconds
	Packets       int       `json:"packets"`  // access units of video
	AudioPackets  int       `json:"audio_packets"`
	Lost          uint64    `json:"lost"`
	Keyframes     int       `json:"keyframes"`
	Bytes         int64     `json:"bytes"`
	Discontinuous bool      `json:"discontinuous"` // a gap in front of it
	Error         string    `json:"error,omitempty"`

	Event *trigger.Event `json:"event,omitempty"` // that made the file; its end is null in all but its last file

	Key    string `json:"key"`
	Codecs string `json:"codecs"` // as recordings list names them: h264+aac
	Width  int    `json:"width"`
	Height int    `json:"height"`
	Cause  string `json:"cause"` // why it was recorded
}

func newSegmentLine(f pipeline.Recorded) segmentLine {
	l := segmentLine{
		Path: f.Path, Start: f.Start, End: f.End, Duration: f.Duration().Seconds(), Packets: f.Packets, AudioPackets: f.AudioPackets,
		Lost: f.Lost, Keyframes: f.Keyframes, Bytes: f.Bytes, Discontinuous: f.Discontinuous, Event: f.Event,
		Key: f.Key, Codecs: codecsOf(f), Width: f.Width, Height: f.Height, Cause: f.Cause,
	}
	if f.Err != nil {
		l.Error = f.Err.Error()
	}
	return l
}

func codecsOf(f pipeline.Recorded) string {
	file := recordings.FileOf(f.Key, f.Segment)
	return file.Codecs()
}

// segmentText is the line of record for people.
func segmentText(f pipeline.Recorded) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %d access units", f.Path, f.Duration().Round(time.Millisecond), f.Packets)
	if e := f.Event; e != nil {
		fmt.Fprintf(&b, ", event %s", e.ID)
		if e.Reason != "" {
			fmt.Fprintf(&b, " (%s)", e.Reason)
		}
	}
	if f.Lost > 0 {
		fmt.Fprintf(&b, ", %d lost", f.Lost)
	}
	if f.Discontinuous {
		b.WriteString(", after a gap")
	}
	if f.Err != nil {
		fmt.Fprintf(&b, ", ended early: %v", f.Err)
	}
	return b.String()
}

// siteLine is the JSON line of run --json for a finished file: that of record --json, with some fields of its own.
type siteLine struct {
	Key           string    `json:"key"`
	Path          string    `json:"path"`
	Start         time.Time `json:"start"`
	End           time.Time `json:"end"`
	Bytes         int64     `json:"bytes"`
	Packets       int       `json:"packets"`
	Lost          uint64    `json:"lost"`
	Discontinuous bool      `json:"discontinuous"` // a gap in front of it

	Event *trigger.Event `json:"event,omitempty"` // as in segmentLine

	Keyframes  int    `json:"keyframes"`
	VideoCodec uint32 `json:"video_codec"` // FFmpeg's number, as in the rings
	AudioCodec uint32 `json:"audio_codec"` // 0 = no sound
	Width      int    `json:"width"`
	Height     int    `json:"height"`
	Cause      string `json:"cause"`         // why it was recorded
	Cut        bool   `json:"cut,omitempty"` // it ended early: the disk

	Duration     float64 `json:"duration"` // these as in segmentLine
	AudioPackets int     `json:"audio_packets"`
	Codecs       string  `json:"codecs"`
	Error        string  `json:"error,omitempty"`
}

func newSiteLine(f pipeline.Recorded) siteLine {
	s := newSegmentLine(f)
	return siteLine{
		Key: f.Key, Path: f.Path, Start: f.Start, End: f.End, Bytes: f.Bytes, Packets: f.Packets, Lost: f.Lost,
		Discontinuous: f.Discontinuous, Event: f.Event,
		Keyframes: f.Keyframes, VideoCodec: f.Video, AudioCodec: f.Audio, Width: f.Width, Height: f.Height, Cause: f.Cause, Cut: f.Err != nil,
		Duration: s.Duration, AudioPackets: s.AudioPackets, Codecs: s.Codecs, Error: s.Error,
	}
}
