package mux

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

// ErrNoSize says that a keyframe and its parameter sets do not tell the picture size: the keyframe is damaged, or its encoder is.
// The next one may be better.
var ErrNoSize = errors.New("picture size not known")

// hvc1 is the sample entry that Apple's players ask for; parameter sets stay in the access units beside it, so that a stream
// whose sets change decodes.
const hvc1 = 'h' | 'v'<<8 | 'c'<<16 | '1'<<24

// videoFormat reads what a keyframe's parameter sets say, in the access unit or else in the track's extradata, and returns
// the extradata that a muxer needs.
func videoFormat(t media.Track, key []byte) (bitstream.Format, []byte, error) {
	switch t.CodecID {
	case media.H264, media.HEVC:
		sets := bitstream.NewParameterSets(t.CodecID)
		sets.Update(key)
		if !sets.Complete() {
			sets = bitstream.NewParameterSets(t.CodecID)
			_ = sets.AddExtradata(t.Extradata) // what could be read counts
			sets.Update(key)
		}
		sps, ok := sets.SPS()
		if !ok {
			return bitstream.Format{}, nil, ErrNoSize
		}
		return sps.Format, sets.Extradata(), nil
	case media.AV1:
		extra := bitstream.AV1Extradata(key)
		if extra == nil {
			extra = t.Extradata
		}
		f, ok := bitstream.AV1Format(extra)
		if !ok {
			return f, nil, ErrNoSize
		}
		return f, extra, nil
	case media.MJPEG:
		w, h, ok := bitstream.JPEGSize(key)
		if !ok {
			return bitstream.Format{}, nil, ErrNoSize
		}
		return bitstream.Format{Codec: t.CodecID, Width: w, Height: h}, nil, nil
	}
	return bitstream.Format{Codec: t.CodecID}, t.Extradata, nil
}

// outputStream describes a track to a muxer. key is a keyframe of a video track.
func outputStream(f Format, t media.Track, key []byte) (av.OutputStream, error) {
	s := av.OutputStream{Track: t}
	if t.Kind == media.Video {
		format, extra, err := videoFormat(t, key)
		if err != nil {
			return s, err
		}
		s.Width, s.Height, s.Extradata = format.Width, format.Height, extra
		if t.CodecID == media.HEVC && (f == FMP4 || f == MP4) {
			s.Tag = hvc1
		}
		return s, nil
	}
	return s, audioStream(&s)
}

// audioStream fills in what the ring's extradata says (decisions: text for codecs without extradata of their own).
func audioStream(s *av.OutputStream) error {
	text := s.CodecID == media.PCMAlaw || s.CodecID == media.PCMMulaw || s.CodecID == media.PCMS16BE || s.CodecID == media.G726 ||
		bytes.HasPrefix(s.Extradata, []byte("rate="))
	if text {
		rate, channels, bits, err := media.ParseAudioText(s.Extradata)
		if err != nil {
			return err
		}
		s.ClockRate, s.Channels, s.BitsPerSample, s.Extradata = rate, channels, bits, nil
	}
	switch s.CodecID {
	case media.AAC:
		rate, channels, err := aacConfig(s.Extradata)
		if err != nil {
			return err
		}
		s.ClockRate, s.Channels, s.FrameSize = rate, channels, 1024
	case media.Opus:
		s.ClockRate = 48000
		if len(s.Extradata) >= 19 && bytes.HasPrefix(s.Extradata, []byte("OpusHead")) {
			s.Channels = int(s.Extradata[9])
		} else {
			if s.Channels < 1 || s.Channels > 2 {
				s.Channels = 2
			}
			s.Extradata = media.OpusHead(s.Channels)
		}
		s.FrameSize = 960
	}
	if s.ClockRate <= 0 || s.Channels <= 0 {
		return fmt.Errorf("%s: rate and channels are not known", media.CodecName(s.CodecID))
	}
	return nil
}

var aacRates = [...]int{96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350}

// aacConfig reads rate and channels from an AudioSpecificConfig.
func aacConfig(b []byte) (rate, channels int, err error) {
	bad := fmt.Errorf("AudioSpecificConfig of %d bytes cannot be read", len(b))
	bit := 0
	read := func(n int) (v int) {
		for range n {
			if bit/8 < len(b) {
				v = v<<1 | int(b[bit/8]>>(7-bit%8))&1
			} else {
				v <<= 1
			}
			bit++
		}
		return v
	}
	if len(b) < 2 {
		return 0, 0, bad
	}
	if read(5) == 31 { // audio object type, with its escape
		read(6)
	}
	i := read(4)
	switch {
	case i == 15:
		rate = read(24)
	case i < len(aacRates):
		rate = aacRates[i]
	}
	channels = read(4)
	switch channels {
	case 7:
		channels = 8
	case 0: // described inside: what cameras send is mono or stereo
		channels = 2
	}
	if rate <= 0 || rate > 384000 || channels > 8 || bit > 8*len(b) {
		return 0, 0, bad
	}
	return rate, channels, nil
}

// pcmDuration is the length in ns of a packet of uncompressed audio, 0 for other codecs.
func pcmDuration(s av.OutputStream, size int) int64 {
	bits := 0
	switch s.CodecID {
	case media.PCMAlaw, media.PCMMulaw:
		bits = 8
	case media.PCMS16BE, media.PCMS16LE:
		bits = 16
	case media.G726:
		bits = max(s.BitsPerSample, 2)
	}
	if bits == 0 {
		return 0
	}
	return int64(size) * 8 * 1e9 / int64(bits*s.Channels*s.ClockRate)
}
