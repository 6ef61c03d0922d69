// Package rtsp is cfpipe's RTSP client and server. It is the only user of the RTSP library: what leaves this package speaks
// of tracks and access units.
package rtsp

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/bluenviron/gortsplib/v4/pkg/description"
	"github.com/bluenviron/gortsplib/v4/pkg/format"
	codech265 "github.com/bluenviron/mediacommon/v2/pkg/codecs/h265"
	"github.com/bluenviron/mediacommon/v2/pkg/codecs/mpeg4audio"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

// ErrUnsupportedCodec is returned for a codec that has no RTP payload format here.
var ErrUnsupportedCodec = errors.New("codec has no RTP payload format")

// videoClockRate is the RTP clock of every video format.
const videoClockRate = 90000

// formatOf makes the RTP format of a track. payloadType is used where the format has no static one.
func formatOf(t media.Track, payloadType uint8) (format.Format, error) {
	switch t.CodecID {
	case media.H264:
		f := &format.H264{PayloadTyp: payloadType, PacketizationMode: 1}
		forEachParameterSet(t, func(nal []byte) {
			switch nal[0] & 0x1F {
			case 7:
				f.SPS = keepFirst(f.SPS, nal)
			case 8:
				f.PPS = keepFirst(f.PPS, nal)
			}
		})
		return f, nil

	case media.HEVC:
		f := &format.H265{PayloadTyp: payloadType}
		forEachParameterSet(t, func(nal []byte) {
			switch nal[0] >> 1 & 0x3F {
			case 32:
				f.VPS = keepFirst(f.VPS, nal)
			case 33:
				f.SPS = keepFirst(f.SPS, nal)
			case 34:
				f.PPS = keepFirst(f.PPS, nal)
			}
		})
		return f, nil

	case media.AV1:
		return &format.AV1{PayloadTyp: payloadType}, nil

	case media.MJPEG:
		return &format.MJPEG{}, nil

	case media.AAC:
		config := &mpeg4audio.AudioSpecificConfig{}
		if err := config.Unmarshal(t.Extradata); err != nil {
			return nil, fmt.Errorf("read AudioSpecificConfig: %w", err)
		}
		return &format.MPEG4Audio{PayloadTyp: payloadType, ProfileLevelID: 1, Config: config,
			SizeLength: 13, IndexLength: 3, IndexDeltaLength: 3}, nil

	case media.Opus:
		return &format.Opus{PayloadTyp: payloadType, ChannelCount: opusChannels(t)}, nil

	case media.PCMMulaw, media.PCMAlaw, media.PCMS16BE, media.G726, media.G726LE:
		rate, channels, bits, err := audioParameters(t)
		if err != nil {
			return nil, err
		}
		mulaw := t.CodecID == media.PCMMulaw
		switch t.CodecID {
		case media.PCMS16BE:
			return &format.LPCM{PayloadTyp: payloadType, BitDepth: 16, SampleRate: rate, ChannelCount: channels}, nil
		case media.G726, media.G726LE:
			return &format.G726{PayloadTyp: payloadType, BitRate: 8 * bits, BigEndian: t.CodecID == media.G726}, nil
		}
		if rate == 8000 && channels == 1 {
			payloadType = 8
			if mulaw {
				payloadType = 0
			}
		}
		return &format.G711{PayloadTyp: payloadType, MULaw: mulaw, SampleRate: rate, ChannelCount: channels}, nil
	}
	return nil, fmt.Errorf("%s: %w", media.CodecName(t.CodecID), ErrUnsupportedCodec)
}

// describe makes the SDP description of the tracks; their order is that of the media.
func describe(tracks []media.Track) (*description.Session, error) {
	desc := &description.Session{Title: "cfpipe"}
	for i, t := range tracks {
		f, err := formatOf(t, uint8(96+i))
		if err != nil {
			return nil, err
		}
		typ := description.MediaTypeVideo
		if t.Kind == media.Audio {
			typ = description.MediaTypeAudio
		}
		desc.Medias = append(desc.Medias, &description.Media{Type: typ, Formats: []format.Format{f}})
	}
	return desc, nil
}

// marshalSDP writes the description, with the frame rates that the parameter sets declare.
func marshalSDP(desc *description.Session, tracks []media.Track) ([]byte, error) {
	for i, m := range desc.Medias {
		m.Control = controlOf(i)
	}
	sdp, err := desc.Marshal(false)
	if err != nil {
		return nil, err
	}
	for i, t := range tracks {
		if fps := declaredRate(t); fps > 0 {
			control := "a=control:" + controlOf(i) + "\r\n"
			sdp = bytes.Replace(sdp, []byte(control), fmt.Appendf(nil, "%sa=framerate:%s\r\n", control, strconv.FormatFloat(fps, 'f', -1, 64)), 1)
		}
	}
	return sdp, nil
}

// controlOf is the control URL of a track, below that of its stream.
func controlOf(track int) string { return "trackID=" + strconv.Itoa(track) }

// declaredRate is how many pictures a second a track declares, to the thousandth; 0 when it does not.
func declaredRate(t media.Track) (fps float64) {
	forEachParameterSet(t, func(nal []byte) {
		sps, ok := bitstream.ParseSPS(t.CodecID, nal)
		if ok && t.CodecID == media.HEVC { // our own reader stops ahead of it
			var all codech265.SPS
			if all.Unmarshal(nal) == nil {
				sps.FPS = all.FPS()
			}
		}
		if sps.FPS > 0.1 && sps.FPS < 1000 {
			fps = math.Round(sps.FPS*1000) / 1000
		}
	})
	return fps
}

func keepFirst(have, nal []byte) []byte {
	if have != nil {
		return have
	}
	return bytes.Clone(nal)
}

// forEachParameterSet calls f with every NAL unit of the extradata of an H.264 or H.265 track, in Annex B, avcC or hvcC form.
func forEachParameterSet(t media.Track, f func(nal []byte)) {
	if bitstream.IsAnnexB(t.Extradata) {
		for nal := range bitstream.NALs(t.Extradata) {
			f(nal)
		}
		return
	}
	sets, _, err := bitstream.ParseConfigRecord(t.CodecID, t.Extradata)
	if err != nil {
		return // readers take the parameter sets from the stream
	}
	for _, nal := range sets {
		if len(nal) > 0 {
			f(nal)
		}
	}
}

// audioParameters prefers what the extradata says over the track's own fields.
func audioParameters(t media.Track) (rate, channels, bits int, err error) {
	if len(t.Extradata) == 0 {
		bits = t.BitsPerSample
		if bits == 0 {
			bits = 4
		}
		return max(t.ClockRate, 1), max(t.Channels, 1), bits, nil
	}
	return media.ParseAudioText(t.Extradata)
}

func opusChannels(t media.Track) int {
	if len(t.Extradata) >= 10 && string(t.Extradata[:8]) == "OpusHead" {
		return max(int(t.Extradata[9]), 1)
	}
	return max(t.Channels, 1)
}

// CanCarry returns nil when RTP has a payload format for the track, and else what stands in the way.
func CanCarry(t media.Track) error {
	_, err := formatOf(t, 96)
	return err
}
