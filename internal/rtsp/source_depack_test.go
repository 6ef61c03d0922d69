package rtsp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

// Units made by hand. Slices carry a number so that they can be told apart.
var (
	tinySPS = []byte{0x67, 0x42, 0xC0, 0x1E, 0xDA, 0x02, 0x80, 0xBF, 0xE5, 0xC0, 0x44, 0x00, 0x00, 0x03, 0x00, 0x04, 0x00, 0x00, 0x03, 0x00,
		0xF0, 0x3C, 0x58, 0xBA, 0x80}
	tinyPPS = []byte{0x68, 0xCE, 0x3C, 0x80}
	tinySEI = []byte{0x06, 0x05, 0x01, 0xAA, 0x80}
)

// h264Slice makes a slice of n bytes; first says whether it begins the picture.
func h264Slice(idr, first bool, number byte, n int) []byte {
	b := bytes.Repeat([]byte{number | 0x10}, max(n, 4))
	b[0], b[1] = 0x41, 0x5A
	if idr {
		b[0] = 0x65
	}
	if first {
		b[1] = 0x88
	}
	return b
}

func h265Slice(typ, number byte, first bool, n int) []byte {
	b := bytes.Repeat([]byte{number | 0x10}, max(n, 4))
	b[0], b[1], b[2] = typ<<1, 1, 0x2F
	if first {
		b[2] = 0xAF
	}
	return b
}

func join(nals ...[]byte) (b []byte) {
	for _, n := range nals {
		b = bitstream.AppendNAL(b, n)
	}
	return b
}

// packets numbers payloads. A gap in the numbers is loss.
type packets struct {
	seq  uint16
	list []*rtpPacket
}

func (s *packets) add(time uint32, marker bool, payload ...byte) *packets {
	s.list = append(s.list, &rtpPacket{seq: s.seq, time: time, marker: marker, payload: payload, ssrc: 1, kind: 96})
	s.seq++
	return s
}

func (s *packets) lose(n int) *packets { s.seq += uint16(n); return s }

// fragments splits a NAL unit into FU-A or H.265 FUs.
func fragments(nal []byte, hevc bool, size int) (list [][]byte) {
	head := []byte{nal[0]&0xE0 | h264FUA, nal[0] & 0x1F}
	body := nal[1:]
	if hevc {
		head = []byte{nal[0]&0x81 | h265FU<<1, nal[1], nal[0] >> 1 & 0x3F}
		body = nal[2:]
	}
	for first := true; len(body) > 0; first = false {
		n := min(size, len(body))
		h := bytes.Clone(head)
		if first {
			h[len(h)-1] |= 0x80
		}
		if n == len(body) {
			h[len(h)-1] |= 0x40
		}
		list = append(list, append(h, body[:n]...))
		body = body[n:]
	}
	return list
}

func aggregate(hevc bool, nals ...[]byte) []byte {
	b := []byte{h264STAPA}
	if hevc {
		b = []byte{h265AP << 1, 1}
	}
	for _, n := range nals {
		b = binary.BigEndian.AppendUint16(b, uint16(len(n)))
		b = append(b, n...)
	}
	return b
}

type gotUnit struct {
	data              []byte
	time              uint32
	key, corrupt, gap bool
}

// depacketize runs packets through order and depacketizer as a TCP connection does.
func depacketize(d func(out func(unit)) depacketizer, list []*rtpPacket) (got []gotUnit) {
	dep := d(func(u unit) {
		if !u.bare {
			got = append(got, gotUnit{bytes.Clone(u.data), u.time, u.key, u.corrupt, u.gap})
		}
	})
	o := order{deliver: dep.packet}
	for _, p := range list {
		q := *p
		q.payload = bytes.Clone(p.payload)
		o.push(&q)
	}
	return got
}

func h264(out func(unit)) depacketizer { return newH26x(media.H264, false, 1<<20, out, func() {}) }
func h265(out func(unit)) depacketizer { return newH26x(media.HEVC, false, 1<<20, out, func() {}) }

func TestAccessUnits(t *testing.T) {
	idr, idr2 := h264Slice(true, true, 1, 30), h264Slice(true, false, 2, 30)
	p1, p2, p3 := h264Slice(false, true, 3, 20), h264Slice(false, true, 4, 20), h264Slice(false, true, 5, 20)
	key := gotUnit{data: join(tinySPS, tinyPPS, idr), time: 100, key: true}
	begin := func() *packets {
		return (&packets{}).add(100, false, aggregate(false, tinySPS, tinyPPS)...).add(100, true, idr...)
	}
	fus := fragments(idr, false, 8)
	require.Len(t, fus, 4)
	hvps, hsps, hpps := []byte{0x40, 1, 0x0C}, []byte{0x42, 1, 1, 2, 3}, []byte{0x44, 1, 0xC0}
	hidr := h265Slice(19, 1, true, 30)
	hp := h265Slice(1, 2, true, 20)

	for name, c := range map[string]struct {
		make func(func(unit)) depacketizer
		in   *packets
		want []gotUnit
	}{
		"plain": {h264, begin().add(200, true, p1...), []gotUnit{key, {data: join(p1), time: 200}}},
		"b4 aggregation of parameter sets, H.265": {
			h265, (&packets{}).add(100, false, aggregate(true, hvps, hsps, hpps)...).add(100, true, hidr...),
			[]gotUnit{{data: join(hvps, hsps, hpps, hidr), time: 100, key: true}},
		},
		"b4 aggregation, H.264": {h264, (&packets{}).add(100, true, aggregate(false, tinySPS, tinyPPS, idr)...), []gotUnit{key}},
		"b5 middle fragment lost": {
			h264, begin().add(200, false, fus[0]...).lose(1).add(200, false, fus[2]...).add(200, true, fus[3]...).add(300, true, p1...),
			[]gotUnit{key, {data: join(p1), time: 300, gap: true}},
		},
		"b5 first fragment lost": {
			h264, begin().lose(1).add(200, false, fus[1]...).add(200, true, fus[3]...).add(300, true, p1...),
			[]gotUnit{key, {data: join(p1), time: 300, gap: true}},
		},
		"b5 last fragment lost": {
			h264, begin().add(200, false, fus[0]...).add(200, false, fus[1]...).lose(2).add(300, true, p1...).add(400, true, p2...),
			[]gotUnit{key, {data: join(p1), time: 300, gap: true}, {data: join(p2), time: 400}},
		},
		"b5 one slice of two lost": {
			h264, begin().add(200, false, h264Slice(false, true, 6, 20)...).lose(1).add(300, true, p1...),
			[]gotUnit{key, {data: join(h264Slice(false, true, 6, 20)), time: 200, corrupt: true}, {data: join(p1), time: 300, gap: true}},
		},
		"b5 keyframe with loss is no keyframe": {
			h264, begin().add(200, false, idr...).lose(1).add(200, true, h264Slice(true, false, 3, 20)...).add(300, true, p1...),
			[]gotUnit{key, {data: join(idr, h264Slice(true, false, 3, 20)), time: 200, corrupt: true}, {data: join(p1), time: 300, gap: true}},
		},
		"b5 whole units lost": {
			h264, begin().add(200, true, p1...).lose(5).add(300, true, p2...).add(400, true, p3...),
			[]gotUnit{key, {data: join(p1), time: 200}, {data: join(p2), time: 300, gap: true}, {data: join(p3), time: 400}},
		},
		"b5 fragment lost, H.265": {
			h265, (&packets{}).add(100, true, hidr...).add(200, false, fragments(hp, true, 8)[0]...).lose(1).
				add(200, true, fragments(hp, true, 8)[2]...).add(300, true, hp...),
			[]gotUnit{{data: join(hidr), time: 100, key: true}, {data: join(hp), time: 300, gap: true}},
		},
		"b6 marker on the SEI in front": {
			h264, (&packets{}).add(100, true, tinySEI...).add(100, false, idr...).add(100, true, idr2...).add(200, true, tinySEI...).add(200, true, p1...),
			[]gotUnit{{data: join(tinySEI, idr, idr2), time: 100, key: true}, {data: join(tinySEI, p1), time: 200}},
		},
		"b6 marker on parameter sets in front": {
			h264, (&packets{}).add(100, true, tinySPS...).add(100, true, tinyPPS...).add(100, true, idr...), []gotUnit{key},
		},
		"b6 marker never set": {
			h264, (&packets{}).add(100, false, tinySPS...).add(100, false, tinyPPS...).add(100, false, idr...).add(200, false, p1...).
				add(300, false, p2...).add(400, false, p3...),
			[]gotUnit{key, {data: join(p1), time: 200}, {data: join(p2), time: 300}},
		},
		"b6 marker on every slice": {
			h264, begin().add(200, true, p1...).add(200, true, h264Slice(false, false, 7, 20)...).
				add(300, true, p2...).add(300, true, h264Slice(false, false, 8, 20)...).add(400, true, p3...).add(500, true, p3...),
			[]gotUnit{key, {data: join(p1), time: 200}, {data: join(h264Slice(false, false, 7, 20)), time: 200, corrupt: true},
				{data: join(p2, h264Slice(false, false, 8, 20)), time: 300, gap: true}, {data: join(p3), time: 400}},
		},
		"b7 fragment with start and end": {
			h264, (&packets{}).add(100, false, tinySPS...).add(100, false, tinyPPS...).add(100, true, fragments(idr, false, 100)[0]...), []gotUnit{key},
		},
		"b7 fragment with start and end, H.265": {
			h265, (&packets{}).add(100, true, fragments(hidr, true, 100)[0]...), []gotUnit{{data: join(hidr), time: 100, key: true}},
		},
		"end bit never set": {
			h264, (&packets{}).add(100, false, aggregate(false, tinySPS, tinyPPS)...).add(100, false, fus[0]...).add(100, false, fus[1]...).
				add(100, false, fus[2]...).add(100, true, append([]byte{fus[3][0], fus[3][1] &^ 0x40}, fus[3][2:]...)...),
			[]gotUnit{key},
		},
		"b9 several slices": {
			h264, (&packets{}).add(100, false, tinySPS...).add(100, false, tinyPPS...).add(100, false, idr...).add(100, true, idr2...).add(200, true, p1...),
			[]gotUnit{{data: join(tinySPS, tinyPPS, idr, idr2), time: 100, key: true}, {data: join(p1), time: 200}},
		},
		"suffix behind the marker": {
			h265, (&packets{}).add(100, true, hidr...).add(100, false, 80, 1, 1, 2).add(200, true, hp...),
			[]gotUnit{{data: join(hidr), time: 100, key: true}, {data: join(hp), time: 200}},
		},
		"start codes inside a payload": {
			h264, (&packets{}).add(100, true, join(tinySPS, tinyPPS, idr)...), []gotUnit{key},
		},
		"joined in the middle of a picture": {
			h264, (&packets{}).add(50, true, h264Slice(false, false, 9, 20)...).add(100, false, aggregate(false, tinySPS, tinyPPS)...).add(100, true, idr...),
			[]gotUnit{{data: join(h264Slice(false, false, 9, 20)), time: 50, corrupt: true}, key},
		},
		"server counts wrong": {
			h264, &packets{list: []*rtpPacket{
				{seq: 5, time: 100, marker: true, payload: idr}, {seq: 5, time: 200, marker: true, payload: p1}, {seq: 5, time: 300, marker: true, payload: p2},
			}},
			[]gotUnit{{data: join(idr), time: 100, key: true}, {data: join(p1), time: 200}, {data: join(p2), time: 300}},
		},
		"empty and short payloads": {
			h264, begin().add(200, false).add(200, false, 28).add(200, false, 24).add(200, false, 24, 0).add(300, true, p1...),
			[]gotUnit{key, {data: join(p1), time: 300}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := depacketize(c.make, c.in.list)
			require.Equal(t, len(c.want), len(got), "%+v", got)
			for i := range got {
				require.Equal(t, c.want[i], got[i], i)
			}
		})
	}
}

// Case f5: a fragmented unit that never ends keeps its bound and harms only itself.
func TestEndlessUnit(t *testing.T) {
	dropped := 0
	var got []int
	d := newH26x(media.H264, false, 64<<10, func(u unit) { got = append(got, len(u.data)) }, func() { dropped++ })
	o := order{deliver: d.packet}
	body := make([]byte, 1400)
	for i := range uint16(10000) {
		head := []byte{h264FUA, 1}
		if i == 0 {
			head[1] |= 0x80
		}
		o.push(&rtpPacket{seq: i, time: 7, payload: append(head, body...)})
	}
	require.LessOrEqual(t, cap(d.buf), 256<<10)
	require.Equal(t, 1, dropped)
	o.push(&rtpPacket{seq: 10000, time: 8, marker: true, payload: h264Slice(true, true, 1, 50)})
	require.Equal(t, []int{54}, got)

	// the same with AV1 and JPEG
	a := &av1Depacketizer{max: 64 << 10, out: func(unit) { t.Fatal("not a unit") }, dropped: func() { dropped++ }}
	for i := range 1000 {
		head := byte(0xD0)
		if i == 0 {
			head = 0x50
		}
		a.packet(&rtpPacket{time: 7, payload: append([]byte{head}, body...)}, false)
	}
	require.LessOrEqual(t, cap(a.buf)+cap(a.part), 512<<10)
	require.Equal(t, 2, dropped)
}

func TestAV1Units(t *testing.T) {
	seq := []byte{0x08, 0x00, 0x00, 0x00, 0x42, 0xA7, 0xBF, 0xE4, 0x60, 0x0D, 0x00, 0x40}
	frame := append([]byte{0x30, 0x10}, bytes.Repeat([]byte{7}, 40)...)
	sized := func(b []byte) []byte { return append([]byte{b[0] | 2, byte(len(b) - 1)}, b[1:]...) }
	key := append(sized(seq), sized(frame)...)
	next := append([]byte{0x30, 0x30}, bytes.Repeat([]byte{8}, 20)...)
	av1 := func(out func(unit)) depacketizer { return &av1Depacketizer{max: 1 << 20, out: out, dropped: func() {}} }
	whole := append(append([]byte{0x20 | 0x08, byte(len(seq))}, seq...), frame...)
	head := append(append([]byte{0x60 | 0x08, byte(len(seq))}, seq...), frame[:10]...)
	for name, c := range map[string]struct {
		in   *packets
		want []gotUnit
	}{
		"one packet": {(&packets{}).add(1, true, whole...), []gotUnit{{data: key, time: 1, key: true}}},
		"fragmented": {
			(&packets{}).add(1, false, head...).add(1, false, append([]byte{0xD0}, frame[10:20]...)...).add(1, true, append([]byte{0x90}, frame[20:]...)...).
				add(2, true, append([]byte{0x10}, next...)...),
			[]gotUnit{{data: key, time: 1, key: true}, {data: sized(next), time: 2}},
		},
		"all sizes given": {
			(&packets{}).add(1, true, append(append(append([]byte{0x00, byte(len(seq))}, seq...), byte(len(frame))), frame...)...),
			[]gotUnit{{data: key, time: 1, key: true}},
		},
		"fragment lost": {
			(&packets{}).add(1, false, head...).lose(1).add(1, true, append([]byte{0x90}, frame[20:]...)...).add(2, true, append([]byte{0x10}, next...)...),
			[]gotUnit{{data: sized(seq), time: 1, corrupt: true}, {data: sized(next), time: 2, gap: true}},
		},
		"no marker": {
			(&packets{}).add(1, false, whole...).add(2, true, append([]byte{0x10}, next...)...),
			[]gotUnit{{data: key, time: 1, key: true}, {data: sized(next), time: 2}},
		},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, depacketize(av1, c.in.list)) })
	}
}

func TestJPEGUnits(t *testing.T) {
	mjpeg := func(out func(unit)) depacketizer {
		return &jpegDepacketizer{max: 1 << 20, out: out, dropped: func() {}}
	}
	part := func(offset int, b ...byte) []byte {
		return append([]byte{0, byte(offset >> 16), byte(offset >> 8), byte(offset), 1, 80, 40, 30}, b...)
	}
	got := depacketize(mjpeg, (&packets{}).add(1, false, part(0, 1, 2, 3)...).add(1, true, part(3, 4, 5)...).
		add(2, false, part(0, 1, 2, 3)...).lose(1).add(2, true, part(6, 4, 5)...).add(3, true, part(0, 9, 9)...).list)
	require.Len(t, got, 2)
	require.Equal(t, [2]bool{true, false}, [2]bool{got[0].key, got[0].gap})
	require.True(t, got[1].gap)
	w, h, ok := bitstream.JPEGSize(got[0].data)
	require.True(t, ok)
	require.Equal(t, [2]int{320, 240}, [2]int{w, h})
	require.True(t, bytes.HasSuffix(got[0].data, []byte{1, 2, 3, 4, 5, 0xFF, 0xD9}))
}

func TestAACUnits(t *testing.T) {
	f, err := newFormat(97, "MPEG4-GENERIC/48000/2", map[string]string{"config": "1190", "sizelength": "13", "indexlength": "3",
		"indexdeltalength": "3", "mode": "AAC-hbr"})
	require.NoError(t, err)
	require.Equal(t, []byte{0x11, 0x90}, f.track.Extradata)
	aac := func(out func(unit)) depacketizer { return newAAC(f, out) }
	two := []byte{0, 32, 0, 3 << 3, 0, 2 << 3, 1, 2, 3, 4, 5}
	require.Equal(t, []gotUnit{{data: []byte{1, 2, 3}, time: 10, key: true}, {data: []byte{4, 5}, time: 10 + 1024, key: true}},
		depacketize(aac, (&packets{}).add(10, true, two...).list))
	frag := (&packets{}).add(10, false, 0, 16, 0, 5<<3, 1, 2, 3).add(10, true, 0, 16, 0, 5<<3, 4, 5).add(1034, true, 0, 16, 0, 1<<3, 9)
	require.Equal(t, []gotUnit{{data: []byte{1, 2, 3, 4, 5}, time: 10, key: true}, {data: []byte{9}, time: 1034, key: true}},
		depacketize(aac, frag.list))
	lost := (&packets{}).add(10, true, 0, 16, 0, 1<<3, 9).lose(1).add(20, true, 0, 16, 0, 1<<3, 8)
	require.True(t, depacketize(aac, lost.list)[1].gap)
	adts := append([]byte{0, 16, 0, 10 << 3}, 0xFF, 0xF1, 0x4C, 0x80, 1, 0x7F, 0xFC, 7, 8, 9)
	require.Equal(t, []byte{7, 8, 9}, depacketize(aac, (&packets{}).add(1, true, adts...).list)[0].data)
	// HE-AAC: the RTP clock is twice the core's
	he, err := newFormat(97, "MPEG4-GENERIC/48000/2", map[string]string{"config": "131056E598", "sizelength": "13",
		"indexlength": "3", "indexdeltalength": "3"})
	require.NoError(t, err)
	require.EqualValues(t, 2048, aacStep(he.aac, he.clockRate))
}

func TestLATMUnits(t *testing.T) {
	f, err := newFormat(97, "MP4A-LATM/48000/2", map[string]string{"config": "400023203fc0", "cpresent": "0"})
	require.NoError(t, err)
	require.NotEmpty(t, f.track.Extradata)
	latm := func(out func(unit)) depacketizer {
		return &latmDepacketizer{config: f.latm, clock: f.clockRate, out: out}
	}
	sent := (&packets{}).add(1, false, 5, 1, 2).add(1, true, 3, 4, 5).add(1025, true, 2, 8, 9).add(2049, true, 200, 1).add(3073, true, 1, 7)
	got := depacketize(latm, sent.list)
	require.Equal(t, []gotUnit{{data: []byte{1, 2, 3, 4, 5}, time: 1, key: true}, {data: []byte{8, 9}, time: 1025, key: true},
		{data: []byte{7}, time: 3073, key: true, gap: true}}, got)
}

func TestG726Order(t *testing.T) {
	// RFC 3551: the first 4-bit sample stands in the low half of the byte
	require.Equal(t, []byte{0x12, 0x34}, swapSamples(nil, []byte{0x21, 0x43}, 4))
	require.Equal(t, []byte{0b00011011}, swapSamples(nil, []byte{0b11100100}, 2))
	// eight 3-bit samples 0…7 in three bytes
	require.Equal(t, []byte{0b00000101, 0b00111001, 0b01110111}, swapSamples(nil, []byte{0b10001000, 0b11000110, 0b11111010}, 3))
}

func FuzzDepacketizers(f *testing.F) {
	add := func(kind byte, s *packets) {
		var b []byte
		for _, p := range s.list {
			b = append(b, byte(p.seq), byte(p.time), 0, byte(len(p.payload)))
			if p.marker {
				b[len(b)-2] = 1
			}
			b = append(b, p.payload...)
		}
		f.Add(kind, b)
	}
	idr := h264Slice(true, true, 1, 30)
	s := (&packets{}).add(1, false, aggregate(false, tinySPS, tinyPPS)...)
	for _, fu := range fragments(idr, false, 9) {
		s.add(1, true, fu...)
	}
	add(0, s)
	hs := (&packets{}).add(1, false, aggregate(true, []byte{0x40, 1, 2}, []byte{0x42, 1, 2})...)
	for _, fu := range fragments(h265Slice(19, 1, true, 30), true, 9) {
		hs.add(1, true, fu...)
	}
	add(1, hs)
	add(2, hs)
	add(3, (&packets{}).add(1, true, 0x20|8, 3, 8, 0, 0, 0x30, 0x10, 1))
	add(4, (&packets{}).add(1, true, 0, 0, 0, 0, 1, 80, 4, 4, 1, 2, 3))
	add(5, (&packets{}).add(1, true, 0, 32, 0, 3<<3, 0, 2<<3, 1, 2, 3, 4, 5))
	add(6, (&packets{}).add(1, true, 0x40, 0, 0x23, 0x20, 0x3f, 0xc0, 2, 1, 2))
	f.Fuzz(func(t *testing.T, kind byte, b []byte) {
		const limit = 4096
		out := func(u unit) {
			if len(u.data) > limit+1024 {
				t.Fatalf("unit of %d bytes", len(u.data))
			}
			if kind%7 < 3 && !bitstream.IsAnnexB(u.data) {
				t.Fatalf("not Annex B: %x", u.data)
			}
		}
		none := func() {}
		aac, _ := newFormat(97, "MPEG4-GENERIC/48000/2", map[string]string{"config": "1190"})
		d := []depacketizer{
			newH26x(media.H264, false, limit, out, none), newH26x(media.HEVC, false, limit, out, none), newH26x(media.HEVC, true, limit, out, none),
			&av1Depacketizer{max: limit, out: out, dropped: none}, &jpegDepacketizer{max: limit, out: out, dropped: none},
			newAAC(aac, func(unit) {}), &latmDepacketizer{inBand: true, clock: 90000, out: func(unit) {}, learn: func(*aacConfig) {}},
		}[kind%7]
		o := order{deliver: d.packet}
		for len(b) >= 4 {
			n := min(int(b[3]), len(b)-4)
			o.push(&rtpPacket{seq: uint16(b[0]), time: uint32(b[1]), marker: b[2]&1 != 0, payload: bytes.Clone(b[4 : 4+n])})
			b = b[4+n:]
		}
	})
}
