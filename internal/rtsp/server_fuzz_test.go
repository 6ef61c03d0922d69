package rtsp

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
)

// Rings may hold anything. Whatever is published, packets stay within their size, count on without a gap, and the frames of an
// interleaved connection stay in step.
func FuzzPacketiser(f *testing.F) {
	codecs := []uint32{media.H264, media.HEVC, media.AV1, media.MJPEG, media.AAC, media.Opus, media.PCMAlaw, media.PCMS16BE, media.G726}
	f.Add(byte(0), annexB(h264NAL(7, 20), h264NAL(5, 4000)))
	f.Add(byte(1), annexB(h265NAL(33, 20), h265NAL(19, 4000)))
	f.Add(byte(2), av1Unit(10, 3000))
	f.Add(byte(4), fill(3000, 0))
	f.Add(byte(7), fill(4001, 0))
	f.Fuzz(func(t *testing.T, which byte, data []byte) {
		track := media.Track{CodecID: codecs[int(which)%len(codecs)]}
		track.Kind = media.KindOf(track.CodecID)
		if track.CodecID == media.AAC {
			track.Extradata = []byte{0x14, 0x08}
		}
		format, err := formatOf(track, 96)
		require.NoError(t, err)
		p, err := newPacketiser(track, format, 7)
		require.NoError(t, err)
		p.framed, p.channel = true, 2
		seq := p.seq
		_ = p.unit(media.Packet{PTS: int64(binary.LittleEndian.Uint16(append(data, 0, 0))) * 1e9, Data: data})
		for b := p.buf; len(b) > 0; {
			require.GreaterOrEqual(t, len(b), 4)
			n := 4 + int(binary.BigEndian.Uint16(b[2:]))
			require.LessOrEqual(t, n, min(len(b), 4+maxRTPPacket))
			require.Equal(t, byte('$'), b[0])
			if b[1] == 2 {
				require.Equal(t, seq, binary.BigEndian.Uint16(b[6:]))
				seq++
			}
			b = b[n:]
		}
		require.Equal(t, seq, p.seq)
	})
}

// Extradata comes from a ring, too.
func FuzzExtradata(f *testing.F) {
	f.Add(true, annexB(h264NAL(7, 20), h264NAL(8, 5)))
	f.Add(false, []byte{1, 1, 2, 3, 0xFF, 0xE1, 0, 2, 0x67, 1, 1, 0, 1, 0x68})
	f.Add(true, media.OpusHead(2))
	f.Fuzz(func(t *testing.T, video bool, extradata []byte) {
		codecs := []uint32{media.H264, media.HEVC, media.AV1}
		if !video {
			codecs = []uint32{media.AAC, media.Opus, media.PCMAlaw, media.PCMS16BE, media.G726}
		}
		for _, c := range codecs {
			tracks := []media.Track{{Kind: media.KindOf(c), CodecID: c, Extradata: extradata}}
			if desc, err := describe(tracks); err == nil {
				_, _ = marshalSDP(desc, tracks)
			}
		}
	})
}
