package rtsp

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/bluenviron/mediacommon/v2/pkg/codecs/mpeg4audio"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

// maxSDPMedia bounds the media lines that are looked at; cameras have up to four.
const maxSDPMedia = 32

// sdpMedia is one m= section of a session description. The RTSP library's parser refuses a whole description for one parameter set
// it cannot read; here a line that makes no sense costs what it would have said.
type sdpMedia struct {
	kind     string // video, audio, application, …
	payloads []int
	control  string
	inactive bool           // not sent to us (sendonly here means: the camera wants to receive)
	rtpmap   map[int]string // "H264/90000"
	fmtp     map[int]map[string]string
	address  net.IP // multicast group, when the description names one
	port     int
}

// parseSDP returns the session's control attribute and its media.
func parseSDP(b []byte) (control string, list []*sdpMedia, err error) {
	var m *sdpMedia
	var session net.IP
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\r\n \x00")
		if len(line) < 2 || line[1] != '=' {
			continue
		}
		value := strings.TrimSpace(line[2:])
		switch line[0] {
		case 'm':
			f := strings.Fields(value)
			if len(list) == maxSDPMedia || len(f) == 0 {
				continue
			}
			m = &sdpMedia{kind: strings.ToLower(f[0]), rtpmap: map[int]string{}, fmtp: map[int]map[string]string{}, address: session}
			list = append(list, m)
			if len(f) > 1 {
				port, _, _ := strings.Cut(f[1], "/")
				if m.port, _ = strconv.Atoi(port); m.port < 0 || m.port >= 65535 { // RTCP's is the next
					m.port = 0
				}
			}
			for _, p := range f[min(3, len(f)):] {
				if n, err := strconv.Atoi(p); err == nil && n >= 0 && n < 128 {
					m.payloads = append(m.payloads, n)
				}
			}
		case 'c':
			f := strings.Fields(value)
			if len(f) == 3 {
				group, _, _ := strings.Cut(f[2], "/")
				if ip := net.ParseIP(group); ip != nil && ip.IsMulticast() {
					if m == nil {
						session = ip
					} else {
						m.address = ip
					}
				}
			}
		case 'a':
			name, v, _ := strings.Cut(value, ":")
			v = strings.TrimSpace(v)
			if m == nil {
				if name == "control" {
					control = v
				}
				continue
			}
			m.attribute(strings.ToLower(strings.TrimSpace(name)), v)
		}
	}
	if len(list) == 0 {
		return "", nil, fmt.Errorf("session description without media: %w", errMalformed)
	}
	return control, list, nil
}

func (m *sdpMedia) attribute(name, v string) {
	switch name {
	case "control":
		m.control = v
	case "sendonly", "inactive":
		m.inactive = true
	case "rtpmap", "fmtp":
		id, rest, _ := strings.Cut(v, " ")
		n, err := strconv.Atoi(strings.TrimSpace(id))
		if err != nil {
			return
		}
		if name == "rtpmap" {
			m.rtpmap[n] = strings.TrimSpace(rest)
			return
		}
		if m.fmtp[n] == nil {
			m.fmtp[n] = map[string]string{}
		}
		for kv := range strings.SplitSeq(rest, ";") {
			k, v, _ := strings.Cut(strings.TrimSpace(kv), "=")
			if k != "" {
				m.fmtp[n][strings.ToLower(strings.TrimSpace(k))] = strings.TrimSpace(v)
			}
		}
	}
}

// static payload types of RFC 3551 that cameras use.
var staticPayloads = map[int]string{0: "PCMU/8000", 2: "G726-32/8000", 8: "PCMA/8000", 10: "L16/44100/2", 11: "L16/44100/1", 26: "JPEG/90000"}

// rtpFormat is a payload format that can be received.
type rtpFormat struct {
	track     media.Track
	payload   int // RTP payload type
	clockRate int
	sets      *bitstream.ParameterSets // H.264, H.265: what the description holds
	fmtp      map[string]string
	encoding  string // upper case
	latm      *mpeg4audio.StreamMuxConfig
	aac       *mpeg4audio.AudioSpecificConfig
}

// formats returns the first format of the media that is known here.
func (m *sdpMedia) format() (*rtpFormat, error) {
	var refused []string
	for _, p := range m.payloads {
		rtpmap := m.rtpmap[p]
		if rtpmap == "" {
			rtpmap = staticPayloads[p]
		}
		f, err := newFormat(p, rtpmap, m.fmtp[p])
		if err == nil {
			return f, nil
		}
		refused = append(refused, err.Error())
	}
	return nil, fmt.Errorf("%s: %s", m.kind, strings.Join(refused, ", "))
}

func newFormat(payload int, rtpmap string, fmtp map[string]string) (*rtpFormat, error) {
	parts := strings.Split(rtpmap, "/")
	f := &rtpFormat{payload: payload, fmtp: fmtp, encoding: strings.ToUpper(parts[0]), clockRate: videoClockRate}
	rate, channels := 0, 1
	if len(parts) > 1 {
		rate, _ = strconv.Atoi(parts[1])
	}
	if len(parts) > 2 {
		channels, _ = strconv.Atoi(parts[2])
	}
	if rate < 0 || rate > 384000 || channels < 1 || channels > 255 {
		return nil, fmt.Errorf("%.40q makes no sense", rtpmap)
	}
	f.track = media.Track{Kind: media.Video, Name: "video", ClockRate: videoClockRate}
	switch f.encoding {
	case "H264":
		f.track.CodecID = media.H264
		f.parameterSets("sprop-parameter-sets")
	case "H265", "HEVC":
		f.track.CodecID = media.HEVC
		f.parameterSets("sprop-vps", "sprop-sps", "sprop-pps")
	case "AV1":
		f.track.CodecID = media.AV1
	case "JPEG":
		f.track.CodecID = media.MJPEG
	default:
		return f, f.audio(rate, channels)
	}
	if rate > 0 {
		f.clockRate = rate
	}
	return f, nil
}

// parameterSets takes what the description holds and ignores the rest (case b2): empty values, a missing PPS, start codes.
func (f *rtpFormat) parameterSets(names ...string) {
	f.sets = bitstream.NewParameterSets(f.track.CodecID)
	for _, name := range names {
		for v := range strings.SplitSeq(f.fmtp[name], ",") {
			v = strings.TrimRight(strings.TrimSpace(v), "=")
			nal, err := base64.RawStdEncoding.DecodeString(v)
			if err != nil || len(nal) == 0 {
				continue
			}
			if bitstream.IsAnnexB(nal) {
				f.sets.Update(nal)
			} else {
				f.sets.Add(nal)
			}
		}
	}
	f.track.Extradata = f.sets.Extradata()
}

func (f *rtpFormat) audio(rate, channels int) error {
	if rate == 0 {
		rate = 8000
	}
	t := media.Track{Kind: media.Audio, Name: "audio", ClockRate: rate, Channels: channels}
	f.clockRate = rate
	switch f.encoding {
	case "PCMU":
		t.CodecID = media.PCMMulaw
	case "PCMA":
		t.CodecID = media.PCMAlaw
	case "L16":
		t.CodecID = media.PCMS16BE
	case "G726-16", "G726-24", "G726-32", "G726-40", "AAL2-G726-16", "AAL2-G726-24", "AAL2-G726-32", "AAL2-G726-40":
		bits, _ := strconv.Atoi(f.encoding[len(f.encoding)-2:])
		t.CodecID, t.BitsPerSample = media.G726, bits/8
	case "OPUS":
		t.CodecID, t.ClockRate, f.clockRate = media.Opus, 48000, 48000
		switch f.fmtp["sprop-stereo"] {
		case "1":
			t.Channels = 2
		case "0":
			t.Channels = 1
		}
		t.Extradata = media.OpusHead(t.Channels)
		f.track = t
		return nil
	case "MPEG4-GENERIC", "MP4A-LATM":
		return f.aacTrack(rate, channels)
	default:
		return fmt.Errorf("%.40q is not supported", f.encoding)
	}
	t.Extradata = media.AudioText(t.ClockRate, t.Channels, t.BitsPerSample)
	f.track = t
	return nil
}

func (f *rtpFormat) aacTrack(rate, channels int) error {
	config, _ := hex.DecodeString(strings.Trim(f.fmtp["config"], `"`))
	if f.encoding == "MP4A-LATM" {
		if len(config) > 0 {
			f.latm = &mpeg4audio.StreamMuxConfig{}
			if err := f.latm.Unmarshal(config); err != nil {
				return fmt.Errorf("AAC (LATM) configuration: %w", err)
			}
			if len(f.latm.Programs) == 0 || len(f.latm.Programs[0].Layers) == 0 {
				return fmt.Errorf("AAC (LATM) configuration without a layer")
			}
			f.aac = f.latm.Programs[0].Layers[0].AudioSpecificConfig
		}
	} else {
		if mode := strings.ToLower(f.fmtp["mode"]); mode != "" && !strings.HasPrefix(mode, "aac") {
			return fmt.Errorf("mpeg4-generic of mode %.20q is not supported", mode)
		}
		f.aac = &mpeg4audio.AudioSpecificConfig{}
		if len(config) == 0 || f.aac.Unmarshal(config) != nil {
			f.aac = &mpeg4audio.AudioSpecificConfig{Type: mpeg4audio.ObjectTypeAACLC, SampleRate: rate, ChannelCount: channels}
			config = nil
		}
	}
	f.track = media.Track{Kind: media.Audio, Name: "audio", CodecID: media.AAC, ClockRate: rate, Channels: channels}
	if f.aac != nil {
		f.track.ClockRate, f.track.Channels = f.aac.SampleRate, f.aac.ChannelCount
		if f.latm == nil && config != nil {
			f.track.Extradata = config // as it came: what is unknown to us is known to decoders
		} else if b, err := f.aac.Marshal(); err == nil {
			f.track.Extradata = b
		}
	}
	return nil
}
