package rtsp

import (
	"bytes"
	"encoding/binary"
	"image"
	"image/color"
	"image/jpeg"
	"testing"

	"github.com/bluenviron/gortsplib/v4/pkg/format"
	"github.com/bluenviron/mediacommon/v2/pkg/codecs/av1"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

func splitUnit(unit []byte) [][]byte {
	var nals [][]byte
	for nal := range bitstream.NALs(unit) {
		nals = append(nals, nal)
	}
	return nals
}

func av1Unit(sizes ...int) []byte {
	var b []byte
	for i, n := range sizes {
		b = append(b, [...]byte{0x0A, 0x32}[min(i, 1)]) // a sequence header, then frames, with a size field
		b = binary.AppendUvarint(b, uint64(n))          // LEB128
		b = append(b, fill(n, byte(i))...)
	}
	return b
}

func av1OBUs(unit []byte) [][]byte {
	var obus av1.Bitstream
	if err := obus.Unmarshal(unit); err != nil {
		panic(err)
	}
	return obus
}

func testPicture() image.Image {
	m := image.NewRGBA(image.Rect(0, 0, 320, 240))
	for y := range 240 {
		for x := range 320 {
			m.Set(x, y, color.RGBA{byte(x), byte(y), byte(x * y), 255})
		}
	}
	return m
}

func testJPEG(t *testing.T) []byte {
	var b bytes.Buffer
	require.NoError(t, jpeg.Encode(&b, testPicture(), &jpeg.Options{Quality: 80}))
	return b.Bytes()
}

func sameJPEG(t *testing.T, a, b []byte) bool {
	ma, err := jpeg.Decode(bytes.NewReader(a))
	require.NoError(t, err)
	mb, err := jpeg.Decode(bytes.NewReader(b))
	require.NoError(t, err)
	return bytes.Equal(ma.(*image.YCbCr).Y, mb.(*image.YCbCr).Y)
}

// A track survives the way through an SDP, as our client reads it.
func TestTracksThroughSDP(t *testing.T) {
	sps := []byte{0x67, 0x64, 0x00, 0x1f, 0xac, 0xd9, 0x40, 0x50, 0x05, 0xbb, 0x01, 0x6a, 0x02, 0x02, 0x02, 0x80, 0x00, 0x00, 0x03, 0x00, 0x80, 0x00,
		0x00, 0x19, 0x07, 0x8c, 0x18, 0xcb}
	pps := []byte{0x68, 0xeb, 0xe3, 0xcb, 0x22, 0xc0}
	audio := func(id uint32, rate, channels, bits int) media.Track {
		return media.Track{Kind: media.Audio, Name: "audio", CodecID: id, ClockRate: rate, Channels: channels, BitsPerSample: bits,
			Extradata: media.AudioText(rate, channels, bits)}
	}
	video := func(id uint32, extradata []byte) media.Track {
		return media.Track{Name: "video", CodecID: id, ClockRate: 90000, Extradata: extradata}
	}
	opus := audio(media.Opus, 48000, 2, 0)
	opus.Extradata = media.OpusHead(2)
	aac := audio(media.AAC, 16000, 1, 0)
	aac.Extradata = []byte{0x14, 0x08}
	tracks := []media.Track{
		video(media.H264, annexB(sps, pps)), video(media.H264, nil), video(media.AV1, nil), video(media.MJPEG, nil),
		aac, opus, audio(media.PCMMulaw, 8000, 1, 0), audio(media.PCMAlaw, 8000, 1, 0), audio(media.PCMAlaw, 16000, 2, 0),
		audio(media.PCMS16BE, 44100, 2, 0), audio(media.G726, 8000, 1, 4), audio(media.G726, 8000, 1, 2),
	}
	desc, err := describe(tracks)
	require.NoError(t, err)
	body, err := desc.Marshal(false)
	require.NoError(t, err)
	_, list, err := parseSDP(body)
	require.NoError(t, err)
	require.Len(t, list, len(tracks))
	for i, m := range list {
		f, err := m.format()
		require.NoError(t, err)
		require.Equal(t, tracks[i], f.track)
	}
}

func annexB(nals ...[]byte) (b []byte) {
	for _, nal := range nals {
		b = bitstream.AppendNAL(b, nal)
	}
	return b
}

// avcC is taken as well as Annex B, and garbage is no more than missing parameter sets.
func TestExtradataForms(t *testing.T) {
	sps, pps := []byte{0x67, 1, 2, 3}, []byte{0x68, 4}
	avcc := append([]byte{1, 1, 2, 3, 0xFF, 0xE1, 0, byte(len(sps))}, sps...)
	avcc = append(append(avcc, 1, 0, byte(len(pps))), pps...)
	for _, extradata := range [][]byte{annexB(sps, pps), avcc} {
		f, err := formatOf(media.Track{CodecID: media.H264, Extradata: extradata}, 96)
		require.NoError(t, err)
		require.Equal(t, sps, f.(*format.H264).SPS)
		require.Equal(t, pps, f.(*format.H264).PPS)
	}
	for n := range avcc {
		_, err := formatOf(media.Track{CodecID: media.H264, Extradata: avcc[:n]}, 96)
		require.NoError(t, err)
	}
	_, err := formatOf(media.Track{CodecID: 12345}, 96)
	require.ErrorIs(t, err, ErrUnsupportedCodec)
	_, err = formatOf(media.Track{CodecID: media.AAC, Kind: media.Audio}, 96)
	require.Error(t, err)
}
