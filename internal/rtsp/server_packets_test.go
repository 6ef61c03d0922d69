package rtsp

import (
	"bytes"
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bluenviron/gortsplib/v4/pkg/format"
	"github.com/pion/rtcp"
	"github.com/pion/rtp"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
)

// fill makes n bytes without start codes in them.
func fill(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7) | 4 ^ seed&3
	}
	return b
}

func h264NAL(typ byte, n int) []byte { return append([]byte{0x60 | typ}, fill(n-1, typ)...) }
func h265NAL(typ byte, n int) []byte { return append([]byte{typ << 1, 1}, fill(n-2, typ)...) }

// packetsOf returns what p made, with sender reports apart.
func packetsOf(t *testing.T, p *packetiser) (packets []*rtp.Packet, reports [][]byte) {
	t.Helper()
	add := func(b []byte) {
		pkt := &rtp.Packet{}
		require.NoError(t, pkt.Unmarshal(bytes.Clone(b)))
		require.LessOrEqual(t, len(b), maxRTPPacket)
		packets = append(packets, pkt)
	}
	if p.framed {
		for b := p.buf; len(b) > 0; {
			require.Equal(t, byte('$'), b[0])
			n := int(binary.BigEndian.Uint16(b[2:]))
			if b[1] == p.channel+1 {
				reports = append(reports, bytes.Clone(b[4:4+n]))
			} else {
				require.Equal(t, p.channel, b[1])
				add(b[4 : 4+n])
			}
			b = b[4+n:]
		}
		return packets, reports
	}
	if len(p.report) > 0 {
		reports = append(reports, bytes.Clone(p.report))
	}
	from := 0
	for _, end := range p.ends {
		add(p.buf[from:end])
		from = end
	}
	require.Equal(t, len(p.buf), from)
	return packets, reports
}

// Each codec's packets go through the library's decoder, which was not written together with our payloaders.
func TestPayloadFormats(t *testing.T) {
	sizes := []int{2, 100, maxRTPPayload - 1, maxRTPPayload, maxRTPPayload + 1, 2*maxRTPPayload - 3, 50_000, 1_000_000}
	jpeg := testJPEG(t)
	type decode = func(*rtp.Packet) ([][]byte, error)
	cases := []struct {
		name   string
		track  media.Track
		units  [][]byte
		want   func(unit []byte) [][]byte // nil: the unit itself
		decode func(format.Format) decode
	}{
		{name: "h264", track: media.Track{CodecID: media.H264}, units: func() (u [][]byte) {
			for _, n := range sizes {
				u = append(u, annexB([]byte{9, 0xF0}, h264NAL(7, 20), h264NAL(8, 5), h264NAL(6, 300), h264NAL(5, n)), annexB(h264NAL(1, n), h264NAL(1, n)))
			}
			return u
		}(), want: splitUnit, decode: func(f format.Format) decode {
			d, err := f.(*format.H264).CreateDecoder()
			require.NoError(t, err)
			return d.Decode
		}},
		{name: "h265", track: media.Track{CodecID: media.HEVC}, units: func() (u [][]byte) {
			for _, n := range sizes {
				u = append(u, annexB(h265NAL(32, 30), h265NAL(33, 40), h265NAL(34, 8), h265NAL(19, n+1)), annexB(h265NAL(1, n+1), h265NAL(1, n+1)))
			}
			return u
		}(), want: splitUnit, decode: func(f format.Format) decode {
			d, err := f.(*format.H265).CreateDecoder()
			require.NoError(t, err)
			return d.Decode
		}},
		{name: "av1", track: media.Track{CodecID: media.AV1}, units: [][]byte{
			av1Unit(10, 3000), av1Unit(7), av1Unit(100, 200, 100_000)},
			want: av1OBUs, decode: func(f format.Format) decode {
				d, err := f.(*format.AV1).CreateDecoder()
				require.NoError(t, err)
				return d.Decode
			}},
		{name: "mjpeg", track: media.Track{CodecID: media.MJPEG}, units: [][]byte{jpeg}, decode: func(f format.Format) decode {
			d, err := f.(*format.MJPEG).CreateDecoder()
			require.NoError(t, err)
			return func(p *rtp.Packet) ([][]byte, error) {
				b, err := d.Decode(p)
				if err != nil {
					return nil, err
				}
				require.True(t, sameJPEG(t, jpeg, b), "another picture arrived")
				return [][]byte{jpeg}, nil // the headers are rebuilt by the receiver: the same picture, not the same bytes
			}
		}},
		{name: "aac", track: media.Track{CodecID: media.AAC, Kind: media.Audio, Extradata: []byte{0x14, 0x08}},
			units: [][]byte{fill(1, 0), fill(400, 1), fill(maxRTPPayload-4, 2), fill(maxRTPPayload-3, 3), fill(8191, 4)},
			decode: func(f format.Format) decode {
				return func(p *rtp.Packet) ([][]byte, error) {
					// RFC 3640, 3.2.1: the headers' length in bits, then the size of the whole access unit, also in a fragment.
					require.Equal(t, []byte{0, 16}, p.Payload[:2])
					size := int(binary.BigEndian.Uint16(p.Payload[2:]) >> 3)
					require.Equal(t, p.Marker, size == len(p.Payload)-4 || len(p.Payload) < maxRTPPayload)
					require.GreaterOrEqual(t, size, len(p.Payload)-4)
					return [][]byte{p.Payload[4:]}, nil
				}
			}},
		{name: "opus", track: media.Track{CodecID: media.Opus, Kind: media.Audio, Extradata: media.OpusHead(2)},
			units: [][]byte{fill(3, 0), fill(1275, 1)}, decode: wholePackets},
		{name: "pcmu", track: media.Track{CodecID: media.PCMMulaw, Kind: media.Audio}, units: [][]byte{fill(160, 0), fill(5000, 1)}, decode: wholePackets},
		{name: "pcma stereo", track: media.Track{CodecID: media.PCMAlaw, Kind: media.Audio, Extradata: media.AudioText(16000, 2, 0)},
			units: [][]byte{fill(320, 0), fill(4098, 1)}, decode: wholePackets},
		{name: "l16", track: media.Track{CodecID: media.PCMS16BE, Kind: media.Audio, Extradata: media.AudioText(44100, 2, 0)},
			units: [][]byte{fill(4000, 0)}, decode: wholePackets},
		{name: "g726", track: media.Track{CodecID: media.G726, Kind: media.Audio, Extradata: media.AudioText(8000, 1, 5)},
			units: [][]byte{fill(100, 0), fill(3000, 1)}, decode: wholePackets},
	}
	for _, c := range cases {
		for _, framed := range []bool{true, false} {
			t.Run(c.name, func(t *testing.T) {
				f, err := formatOf(c.track, 96)
				require.NoError(t, err)
				p, err := newPacketiser(c.track, f, 0xFFFF_FFF0) // the sequence number wraps
				require.NoError(t, err)
				p.framed, p.channel = framed, 6
				dec := c.decode(f)
				pts, seq := int64(1_700_000_000_123_456_789), uint16(0xFFF0)
				for i, unit := range c.units {
					pts += 40_000_000
					require.NoError(t, p.unit(media.Packet{PTS: pts, Flags: media.FlagLastInAU, Data: unit}))
					packets, reports := packetsOf(t, p)
					require.Equal(t, i == 0, len(reports) == 1, "the first report comes first")
					var got [][]byte
					for j, pkt := range packets {
						require.Equal(t, seq, pkt.SequenceNumber)
						seq++
						require.Equal(t, f.PayloadType(), pkt.PayloadType)
						require.Equal(t, uint32(0xFFFF_FFF0), pkt.SSRC)
						if c.track.Kind == media.Video {
							require.Equal(t, j == len(packets)-1, pkt.Marker)
							require.Equal(t, rtpTime(pts, 90000), pkt.Timestamp)
						}
						nals, err := dec(pkt)
						if err == nil {
							got = append(got, nals...)
						}
					}
					want := [][]byte{unit}
					if c.want != nil {
						want = c.want(unit)
					}
					if c.track.Kind == media.Audio {
						got, want = [][]byte{bytes.Join(got, nil)}, [][]byte{bytes.Join(want, nil)}
					}
					require.Equal(t, len(want), len(got), "unit %d", i)
					for k := range want {
						require.True(t, bytes.Equal(want[k], got[k]), "unit %d part %d differs", i, k)
					}
				}
			})
		}
	}
}

func wholePackets(format.Format) func(*rtp.Packet) ([][]byte, error) {
	return func(p *rtp.Packet) ([][]byte, error) { return [][]byte{p.Payload}, nil }
}

// Samples that are split carry the time of their first one.
func TestSplitSamples(t *testing.T) {
	track := media.Track{CodecID: media.PCMS16BE, Kind: media.Audio, Extradata: media.AudioText(48000, 2, 0)}
	f, err := formatOf(track, 97)
	require.NoError(t, err)
	p, err := newPacketiser(track, f, 1)
	require.NoError(t, err)
	require.NoError(t, p.unit(media.Packet{PTS: 1e18, Flags: media.FlagLastInAU, Data: fill(4000, 0)}))
	packets, _ := packetsOf(t, p)
	require.Len(t, packets, 3)
	base := rtpTime(1e18, 48000)
	for i, pkt := range packets {
		require.Equal(t, base+uint32(i)*1440/4, pkt.Timestamp)
	}
}

// An access unit in several ring packets has one marker, on the last.
func TestMarkerOfParts(t *testing.T) {
	track := media.Track{CodecID: media.H264}
	f, _ := formatOf(track, 96)
	p, err := newPacketiser(track, f, 1)
	require.NoError(t, err)
	require.NoError(t, p.unit(media.Packet{PTS: 1e18, Data: annexB(h264NAL(5, 10))}))
	packets, _ := packetsOf(t, p)
	require.False(t, packets[0].Marker)
	require.NoError(t, p.unit(media.Packet{PTS: 1e18, Flags: media.FlagLastInAU, Data: annexB(h264NAL(5, 10))}))
	packets, _ = packetsOf(t, p)
	require.True(t, packets[0].Marker)
}

func TestSenderReports(t *testing.T) {
	track := media.Track{CodecID: media.H264}
	f, _ := formatOf(track, 96)
	p, err := newPacketiser(track, f, 42)
	require.NoError(t, err)
	pts := int64(1_700_000_000_500_000_000)
	at := []int64{}
	for i := range 500 {
		now := pts + int64(i)*40_000_000
		require.NoError(t, p.unit(media.Packet{PTS: now, Flags: media.FlagLastInAU, Data: annexB(h264NAL(1, 3000))}))
		_, reports := packetsOf(t, p)
		for _, b := range reports {
			require.Len(t, b, senderReportSize)
			packets, err := rtcp.Unmarshal(b)
			require.NoError(t, err)
			require.Len(t, packets, 2)
			sr := packets[0].(*rtcp.SenderReport)
			require.Equal(t, uint32(42), sr.SSRC)
			require.Equal(t, rtpTime(now, 90000), sr.RTPTime)
			require.Equal(t, uint32(3*i), sr.PacketCount)
			s := int64(sr.NTPTime>>32) - 2208988800
			ns := int64((sr.NTPTime & 0xFFFFFFFF * 1_000_000_000) >> 32)
			require.InDelta(t, now, s*1_000_000_000+ns, 2)
			sdes := packets[1].(*rtcp.SourceDescription)
			require.Equal(t, "cfpipe", sdes.Chunks[0].Items[0].Text)
			at = append(at, now-pts)
		}
	}
	require.Equal(t, []int64{0, 5e9, 10e9, 15e9}, at)
	// A step back of the clock brings a report at once.
	require.NoError(t, p.unit(media.Packet{PTS: pts - int64(time.Hour), Flags: media.FlagLastInAU, Data: annexB(h264NAL(1, 10))}))
	require.NotEmpty(t, p.report)
}

func TestRTPTime(t *testing.T) {
	for range 10_000 {
		ns, rate := rand.Int64(), uint64(rand.IntN(384000)+1)
		want := new(big.Int).Mul(big.NewInt(ns), new(big.Int).SetUint64(rate))
		want.Add(want, big.NewInt(500_000_000)).Div(want, big.NewInt(1_000_000_000))
		require.Equal(t, uint32(new(big.Int).And(want, big.NewInt(0xFFFFFFFF)).Uint64()), rtpTime(ns, rate), "%d at %d", ns, rate)
	}
	require.Zero(t, rtpTime(-5, 90000))
	// What a camera's 90 kHz clock said comes back out of the ns it was turned into, step by step.
	for i := range int64(100_000) {
		ns := (i*1_000_000_000*3 + 45_000) / 90_000
		require.Equal(t, uint32(i*3), rtpTime(ns, 90000))
	}
}

func TestPacketiserDoesNotAllocate(t *testing.T) {
	for _, c := range []struct {
		track media.Track
		unit  []byte
	}{
		{media.Track{CodecID: media.H264}, annexB(h264NAL(7, 20), h264NAL(5, 50_000))},
		{media.Track{CodecID: media.HEVC}, annexB(h265NAL(32, 20), h265NAL(19, 50_000))},
		{media.Track{CodecID: media.AAC, Kind: media.Audio, Extradata: []byte{0x14, 0x08}}, fill(300, 0)},
		{media.Track{CodecID: media.PCMAlaw, Kind: media.Audio}, fill(160, 0)},
	} {
		f, err := formatOf(c.track, 96)
		require.NoError(t, err)
		p, err := newPacketiser(c.track, f, 1)
		require.NoError(t, err)
		pts := int64(1e18)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			pts += 40_000_000
			_ = p.unit(media.Packet{PTS: pts, Flags: media.FlagLastInAU, Data: c.unit})
		}), "codec %d", c.track.CodecID)
	}
}

func TestBadUnits(t *testing.T) {
	for _, c := range []struct {
		track media.Track
		unit  []byte
	}{
		{media.Track{CodecID: media.H264}, nil},
		{media.Track{CodecID: media.H264}, []byte{1, 2, 3}},
		{media.Track{CodecID: media.HEVC}, []byte{0, 0, 1, 5}},
		{media.Track{CodecID: media.AV1}, []byte{0xFF, 0xFF}},
		{media.Track{CodecID: media.MJPEG}, []byte{0xFF, 0xD8, 0xFF}},
		{media.Track{CodecID: media.AAC, Kind: media.Audio, Extradata: []byte{0x14, 0x08}}, fill(9000, 0)},
		{media.Track{CodecID: media.Opus, Kind: media.Audio}, fill(2000, 0)},
	} {
		f, err := formatOf(c.track, 96)
		require.NoError(t, err)
		p, err := newPacketiser(c.track, f, 1)
		require.NoError(t, err)
		require.Error(t, p.unit(media.Packet{PTS: 1, Data: c.unit}), "codec %d", c.track.CodecID)
	}
}
