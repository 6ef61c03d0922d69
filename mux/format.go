// Package mux turns packets into files and byte streams: containers, timestamps, segments.
//
// Times are Unix ns throughout; a file's own clock begins with its first packet in decoding order.
package mux

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cfpipe/cfpipe/internal/media"
)

// Format is a container, or the bare byte stream.
type Format string

// The formats.
const (
	FMP4   Format = "fmp4"   // fragmented MP4: playable at any moment, loses at most the fragment in flight
	MP4    Format = "mp4"    // MP4 that is fragmented while it is written and gets an ordinary index at its end
	MKV    Format = "mkv"    // Matroska
	TS     Format = "ts"     // MPEG transport stream
	FLV    Format = "flv"    // what RTMP carries
	NUT    Format = "nut"    // FFmpeg's own container: any codec, exact times
	AnnexB Format = "annexb" // the video's bytes alone: Annex B, OBUs or JPEGs one after another
)

// ParseFormat reads the name of a format; "mpegts", "matroska" and "h264" … are taken too.
func ParseFormat(s string) (Format, error) {
	switch strings.ToLower(s) {
	case "fmp4":
		return FMP4, nil
	case "mp4", "mov":
		return MP4, nil
	case "mkv", "matroska":
		return MKV, nil
	case "ts", "mpegts":
		return TS, nil
	case "nut":
		return NUT, nil
	case "annexb", "h264", "h265", "hevc", "raw":
		return AnnexB, nil
	}
	return "", fmt.Errorf("format %q: want fmp4, mp4, mkv, ts, nut or annexb", s)
}

// FileFormat is the container of a recorded file: what format says, or where that is "", what the extension of its name does. The two must agree.
func FileFormat(format, name string) (Format, error) {
	byName := map[string]Format{".mp4": FMP4, ".m4v": FMP4, ".fmp4": FMP4, ".mkv": MKV, ".ts": TS}[strings.ToLower(filepath.Ext(name))]
	if byName == "" {
		return "", errors.New("the name must end in .mp4, .mkv or .ts")
	}
	switch format {
	case "":
		return byName, nil
	case "fmp4", "mp4", "mkv", "ts", "matroska", "mpegts":
	default:
		return "", fmt.Errorf("format %s: a recording is fmp4, mkv, ts or mp4", format)
	}
	f, err := ParseFormat(format)
	if err != nil {
		return "", err
	}
	if f != byName && (f != MP4 || byName != FMP4) {
		return "", fmt.Errorf("format %s and the name do not agree: it must end in %s", format, f.Extension())
	}
	return f, nil
}

// Extension is the file name extension of the format, with its dot.
func (f Format) Extension() string {
	switch f {
	case FMP4, MP4:
		return ".mp4"
	case AnnexB:
		return ".bin"
	}
	return "." + string(f)
}

// ErrCannotHold says that a container has no place for a codec: no later attempt will find one.
var ErrCannotHold = errors.New("the container cannot hold this codec")

// unheld is an ErrCannotHold that says which.
type unheld string

func (e unheld) Error() string        { return string(e) }
func (e unheld) Is(target error) bool { return target == ErrCannotHold }

// HoldsVideo says whether a format can hold a video codec, and what stands in the way: an ErrCannotHold.
func HoldsVideo(f Format, codec uint32) error {
	if f == AnnexB {
		return nil
	}
	_, err := muxerFor(f, codec)
	return err
}

// muxerFor returns libavformat's muxer for a format and whether the format can hold the codec. "" for AnnexB.
func muxerFor(f Format, video uint32) (string, error) {
	switch f {
	case FMP4, MP4, MKV, NUT:
		if !sized(video) {
			return "", unheld(fmt.Sprintf("%s asks for the size of the pictures, which is not read from this video (%s)", f, media.CodecName(video)))
		}
		return map[Format]string{FMP4: "mp4", MP4: "mp4", MKV: "matroska", NUT: "nut"}[f], nil
	case TS:
		switch video {
		case media.H264, media.HEVC, media.MPEG1, media.MPEG2, media.MPEG4:
			return "mpegts", nil
		}
		instead := ""
		if sized(video) {
			instead = ": use mkv or fmp4"
		}
		return "", unheld(fmt.Sprintf("an MPEG transport stream cannot hold this video (%s)%s", media.CodecName(video), instead))
	case FLV:
		if video != media.H264 && video != media.HEVC && video != media.AV1 {
			return "", unheld(fmt.Sprintf("FLV cannot hold this video (%s)", media.CodecName(video)))
		}
		return "flv", nil
	}
	return "", fmt.Errorf("format %q has no muxer", f)
}

// sized says whether videoFormat reads the pictures' size from a codec.
func sized(video uint32) bool {
	switch video {
	case media.H264, media.HEVC, media.AV1, media.MJPEG:
		return true
	}
	return false
}

// HoldsAudio says whether a format can hold an audio codec, and what stands in the way.
//
// MP4 has no place for G.711 and L16 that players know: with such audio the file is written in MP4's QuickTime flavour, which
// holds the samples as they are.
func HoldsAudio(f Format, codec uint32) error {
	switch f {
	case FMP4, MP4:
		if isoAudio(codec) || quickTimeAudio(codec) {
			return nil
		}
	case TS:
		switch codec {
		case media.AAC, media.Opus, media.MP2, media.MP3, media.AC3, media.EAC3:
			return nil
		}
	case FLV:
		switch codec {
		case media.AAC, media.MP3:
			return nil
		}
	case NUT: // it does not carry G.726's bits per sample
		if codec != media.G726 {
			return nil
		}
	case MKV:
		return nil
	case AnnexB:
		return fmt.Errorf("%s is video alone", f)
	}
	return fmt.Errorf("%s cannot hold this audio (%s): mkv can", f, media.CodecName(codec))
}

func isoAudio(codec uint32) bool {
	switch codec {
	case media.AAC, media.Opus, media.MP2, media.MP3, media.AC3, media.EAC3, media.FLAC, media.ALAC:
		return true
	}
	return false
}

func quickTimeAudio(codec uint32) bool {
	switch codec {
	case media.PCMAlaw, media.PCMMulaw, media.PCMS16BE, media.PCMS16LE:
		return true
	}
	return false
}
