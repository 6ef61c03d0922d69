// Package media holds the nouns that sources, rings and outputs share: what a track is and which numbers name its codec.
package media

import (
	"fmt"
	"strconv"
	"strings"
)

// Kind says what a track carries.
type Kind uint8

// The kinds of tracks.
const (
	Video Kind = iota
	Audio
)

func (k Kind) String() string {
	if k == Audio {
		return "audio"
	}
	return "video"
}

// Codec ids are FFmpeg's AVCodecID: the packet ring's header carries them, and any reader knows them.
const (
	MPEG1 uint32 = 1
	MPEG2 uint32 = 2
	MJPEG uint32 = 7
	MPEG4 uint32 = 12
	H264  uint32 = 27
	VP8   uint32 = 139
	VP9   uint32 = 167
	HEVC  uint32 = 173
	AV1   uint32 = 225

	PCMS16LE uint32 = 65536
	PCMS16BE uint32 = 65537 // L16
	PCMMulaw uint32 = 65542 // G.711
	PCMAlaw  uint32 = 65543 // G.711
	G726     uint32 = 69643 // big-endian nibbles: RTP's AAL2-G726-*
	G726LE   uint32 = 69667 // little-endian nibbles: RTP's G726-*
	MP2      uint32 = 86016
	MP3      uint32 = 86017
	AAC      uint32 = 86018
	AC3      uint32 = 86019
	Vorbis   uint32 = 86021
	FLAC     uint32 = 86028
	ALAC     uint32 = 86032
	EAC3     uint32 = 86056
	Opus     uint32 = 86076
)

// OpusHead is FFmpeg's extradata for Opus (RFC 7845, section 5.1): version 1, no pre-skip, 48 kHz, no gain, mapping family 0.
func OpusHead(channels int) []byte {
	b := append([]byte("OpusHead"), 1, byte(channels), 0, 0)
	b = append(b, 0x80, 0xBB, 0, 0) // 48000
	return append(b, 0, 0, 0)
}

// Track is one elementary stream of a source.
type Track struct {
	Kind          Kind
	CodecID       uint32
	Extradata     []byte // video: parameter sets, Annex B; audio: what FFmpeg expects, or AudioText for codecs without any
	ClockRate     int    // Hz; 90000 for video, the sampling rate for audio
	Channels      int    // audio
	Name          string // for people: "video", "audio" or what the source calls it
	BitsPerSample int    // G.726: bits per sample, 2…5; 0 = 4
}

// KindOf returns the kind of a codec id: FFmpeg numbers audio codecs from 0x10000.
func KindOf(codecID uint32) Kind {
	if codecID >= 0x10000 {
		return Audio
	}
	return Video
}

// AudioText is the extradata of codecs that have none of their own (G.711, G.726, L16): "rate=8000;channels=1", and for
// G.726 ";bits=N" when N is not 4.
func AudioText(rate, channels, bits int) []byte {
	s := fmt.Sprintf("rate=%d;channels=%d", rate, channels)
	if bits != 0 && bits != 4 {
		s += fmt.Sprintf(";bits=%d", bits)
	}
	return []byte(s)
}

// ParseAudioText reads what AudioText writes. Unknown keys are ignored; what is missing is 8000 Hz, 1 channel, 4 bits.
// Values out of range (rate ≤ 384000, channels ≤ 255, bits 2…5) are an error.
func ParseAudioText(b []byte) (rate, channels, bits int, err error) {
	rate, channels, bits = 8000, 1, 4
	for field := range strings.SplitSeq(strings.TrimRight(string(b), "\x00"), ";") {
		key, value, found := strings.Cut(strings.TrimSpace(field), "=")
		if !found {
			continue
		}
		var p *int
		lo, hi := 1, 0
		switch key {
		case "rate":
			p, hi = &rate, 384000
		case "channels":
			p, hi = &channels, 255
		case "bits":
			p, lo, hi = &bits, 2, 5
		default:
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < lo || n > hi {
			return 0, 0, 0, fmt.Errorf("parse audio parameters: %s=%.16q is not between %d and %d", key, value, lo, hi)
		}
		*p = n
	}
	return rate, channels, bits, nil
}

var codecNames = map[uint32]string{
	MPEG1: "mpeg1", MPEG2: "mpeg2", MJPEG: "mjpeg", MPEG4: "mpeg4", VP8: "vp8", VP9: "vp9",
	H264: "h264", HEVC: "h265", AV1: "av1", PCMS16BE: "l16", PCMMulaw: "pcmu", PCMAlaw: "pcma", G726: "g726",
	G726LE: "g726le", AAC: "aac", Opus: "opus", PCMS16LE: "pcm_s16le", MP2: "mp2", MP3: "mp3", AC3: "ac3", EAC3: "eac3", Vorbis: "vorbis",
	FLAC: "flac", ALAC: "alac",
}

// CodecName returns the short name of a codec for people, "codec N" for one that is not listed above.
func CodecName(id uint32) string {
	if s, ok := codecNames[id]; ok {
		return s
	}
	return fmt.Sprintf("codec %d", id)
}

var codecTitles = map[uint32]string{
	H264: "H.264", HEVC: "H.265", PCMMulaw: "G.711 mu-law", PCMAlaw: "G.711 A-law", G726: "G.726", G726LE: "G.726", Opus: "Opus",
}

// CodecTitle returns the name of a codec as it stands in texts.
func CodecTitle(id uint32) string {
	if s, ok := codecTitles[id]; ok {
		return s
	}
	if s, ok := codecNames[id]; ok {
		return strings.ToUpper(s)
	}
	return CodecName(id)
}

// firstAudio is the smallest id that FFmpeg gives to an audio codec.
const firstAudio = 0x10000

// IsAudio says whether an id is one of sound.
func IsAudio(id uint32) bool { return id >= firstAudio }
