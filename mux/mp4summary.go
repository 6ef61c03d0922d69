package mux

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
)

// Bounds of the boxes that are read into memory. A day of 30 pictures a second is 2.6 million samples: its moov has 40 MB.
const (
	maxMoov = 128 << 20
	maxMoof = 4 << 20
	// maxSamples bounds what a damaged file may count to: a week of 25 pictures a second.
	maxSamples = 1 << 24
	// maxIdle bounds the boxes one after another that bring no picture. Each costs a read.
	maxIdle = 1 << 14
)

var errBox = errors.New("a box is damaged")

// mp4File collects what the boxes say.
type mp4File struct {
	Summary
	track     uint32 // id of the video
	timescale uint64
	// What samples of fragments have where they say nothing.
	duration, flags uint32

	fragments bool
	last      uint64 // end of the newest sample in decoding order
	first     int64  // PTS of the first picture; shown order
	end       int64  // the latest end of a picture
}

const notSync = 0x10000 // sample_is_non_sync_sample

func summarizeMP4(ctx context.Context, r io.ReaderAt, size int64) (Summary, error) {
	m := mp4File{first: math.MaxInt64}
	m.Counts = Counts{Lost: unknownCounts.Lost}
	var head [16]byte
	idle, pictures := 0, 0
	for at := int64(0); at+8 <= size; idle++ {
		if err := ctx.Err(); err != nil {
			return m.Summary, err
		}
		if m.Packets > pictures {
			idle, pictures = 0, m.Packets
		}
		if idle > maxIdle {
			return m.Summary, fmt.Errorf("%w: more than %d boxes in a row without a picture", errBox, maxIdle)
		}
		n, err := r.ReadAt(head[:min(16, size-at)], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return m.Summary, err
		}
		length, kind, skip := int64(binary.BigEndian.Uint32(head[:])), string(head[4:8]), int64(8)
		if length == 1 && n == 16 {
			length, skip = int64(min(binary.BigEndian.Uint64(head[8:]), math.MaxInt64)), 16
		} else if length == 0 {
			length = size - at
		}
		if length < skip || length > size-at { // cut off here
			break
		}
		limit := map[string]int64{"moov": maxMoov, "moof": maxMoof}[kind]
		if limit > 0 {
			if length > limit {
				return m.Summary, fmt.Errorf("%w: %s of %d bytes", errBox, kind, length)
			}
			body := make([]byte, length-skip)
			if _, err := r.ReadAt(body, at+skip); err != nil {
				return m.Summary, err
			}
			if kind == "moov" {
				if !m.fragments { // else it is that of an ordinary MP4 which its fragments did not become: it says the same
					m.moov(body)
				}
			} else {
				m.fragments = true
				whole := m
				m.moof(body)
				if next := at + length; !wholeBox(r, next, size) { // its pictures were cut off
					m = whole
					break
				}
			}
		}
		if kind == "mfra" {
			m.Complete = true
		}
		if kind == "uuid" && length-skip <= int64(len(countsBox))+maxCounts {
			body := make([]byte, length-skip)
			if _, err := r.ReadAt(body, at+skip); err != nil {
				return m.Summary, err
			}
			if c := mp4Counts(body, size); c != unknownCounts {
				m.Lost = c.Lost // the others are counted
			}
		}
		at += length
		m.Bytes = at
	}
	if m.timescale == 0 || m.Video == 0 {
		return m.Summary, fmt.Errorf("%w: no track of pictures", ErrNoRecording)
	}
	if !m.fragments && m.Packets > 0 {
		m.Complete = true
	}
	if m.Packets > 0 {
		m.Begin, m.End = m.time(m.first), m.time(m.end)
	}
	return m.Summary, nil
}

func wholeBox(r io.ReaderAt, at, size int64) bool {
	var head [16]byte
	n, _ := r.ReadAt(head[:], at)
	if n < 8 {
		return false
	}
	length := int64(binary.BigEndian.Uint32(head[:]))
	if length == 1 && n == 16 {
		length = int64(min(binary.BigEndian.Uint64(head[8:]), math.MaxInt64))
	}
	return length >= 8 && length <= size-at
}

func (m *mp4File) time(ticks int64) time.Duration {
	t, s := ticks, int64(m.timescale)
	return time.Duration(t/s)*time.Second + time.Duration(t%s*int64(time.Second)/s)
}

func (m *mp4File) moov(b []byte) {
	m.Origin = readOrigin(func(name string) string { return mp4Tag(b, name) })
	var seen []byte
	for x, rest, ok := nextBox(b); ok; x, rest, ok = nextBox(rest) {
		if x.kind != "trak" {
			continue
		}
		handler := child(x.body, "mdia", "hdlr")
		if len(handler) < 12 {
			continue
		}
		entry, _, _ := nextBox(skipped(child(x.body, "mdia", "minf", "stbl", "stsd"), 8))
		switch string(handler[8:12]) {
		case "soun":
			m.Audio = mp4Codecs[entry.kind]
		case "vide":
			if seen == nil {
				seen = x.body
				m.video(x.body, entry)
			}
		}
	}
	for x, rest, ok := nextBox(child(b, "mvex")); ok; x, rest, ok = nextBox(rest) {
		if _, _, f := fullBox(x.body); x.kind == "trex" && f.u32() == m.track {
			f.skip(4)
			m.duration = f.u32()
			f.skip(4)
			m.flags = f.u32()
		}
	}
	if seen != nil {
		m.tables(child(seen, "mdia", "minf", "stbl"))
	}
}

func skipped(b []byte, n int) []byte { return b[min(n, len(b)):] }

func (m *mp4File) video(trak []byte, entry box) {
	version, _, f := fullBox(child(trak, "tkhd"))
	f.skip(8 + 8*int(version&1))
	m.track = f.u32()
	version, _, f = fullBox(child(trak, "mdia", "mdhd"))
	f.skip(8 + 8*int(version&1))
	m.timescale = uint64(f.u32())
	m.Video = mp4Codecs[entry.kind]
	if len(entry.body) >= 28 {
		m.Width, m.Height = int(binary.BigEndian.Uint16(entry.body[24:])), int(binary.BigEndian.Uint16(entry.body[26:]))
	}
}

// tables reads those of an ordinary MP4. They count in runs: what they say is taken in as many steps as they have entries.
func (m *mp4File) tables(stbl []byte) {
	_, _, sizes := fullBox(child(stbl, "stsz"))
	sizes.skip(4)
	count := min(int64(sizes.u32()), maxSamples)
	if count == 0 {
		return
	}
	_, _, times := fullBox(child(stbl, "stts"))
	_, _, shifts := fullBox(child(stbl, "ctts"))
	times.skip(4)
	shifts.skip(4)
	dts := int64(0)
	var run, step, shiftRun, shift int64
	for count > 0 {
		for run == 0 && len(times.b) > 0 {
			run, step = int64(times.u32()), int64(times.u32())
		}
		for shiftRun == 0 && len(shifts.b) > 0 {
			shiftRun, shift = int64(shifts.u32()), int64(int32(shifts.u32()))
		}
		n := min(run, count)
		if shiftRun > 0 {
			n = min(n, shiftRun)
			shiftRun -= n
		}
		if n == 0 {
			break
		}
		m.samples(n, dts+shift, step)
		dts += n * step
		run -= n
		count -= n
	}
	if sync := child(stbl, "stss"); sync != nil {
		_, _, f := fullBox(sync)
		m.Keyframes = min(int(f.u32()), m.Packets)
	} else {
		m.Keyframes = m.Packets
	}
}

// samples counts n of them, the first of which is shown at pts.
func (m *mp4File) samples(n, pts, duration int64) {
	m.Packets += int(n)
	m.first, m.end = min(m.first, pts), max(m.end, pts+n*duration)
}

// moof reads the runs of a fragment.
func (m *mp4File) moof(b []byte) {
	for x, rest, ok := nextBox(b); ok; x, rest, ok = nextBox(rest) {
		if x.kind != "traf" {
			continue
		}
		_, has, f := fullBox(child(x.body, "tfhd"))
		if f.u32() != m.track {
			continue
		}
		duration, flags := m.duration, m.flags
		for bit, n := range map[uint32]int{0x1: 8, 0x2: 4} {
			if has&bit != 0 {
				f.skip(n)
			}
		}
		if has&0x8 != 0 {
			duration = f.u32()
		}
		if has&0x10 != 0 {
			f.skip(4)
		}
		if has&0x20 != 0 {
			flags = f.u32()
		}
		dts := m.last
		if t := child(x.body, "tfdt"); t != nil {
			version, _, f := fullBox(t)
			dts = f.sized(version)
		}
		for y, rest, ok := nextBox(x.body); ok; y, rest, ok = nextBox(rest) {
			if y.kind == "trun" {
				dts = m.run(y.body, dts, duration, flags)
			}
		}
		m.last = dts
	}
}

func (m *mp4File) run(b []byte, dts uint64, duration, flags uint32) uint64 {
	_, has, f := fullBox(b)
	count := f.u32()
	if has&0x1 != 0 {
		f.skip(4)
	}
	first := flags
	if has&0x4 != 0 {
		first = f.u32()
	}
	if has&0xF00 == 0 { // all of them are alike, but for the first's flags
		return m.alike(dts, min(count, maxSamples), duration, first, flags)
	}
	for i := range count {
		if len(f.b) == 0 {
			break
		}
		d, fl, shift := duration, flags, int32(0)
		if i == 0 {
			fl = first
		}
		if has&0x100 != 0 {
			d = f.u32()
		}
		if has&0x200 != 0 {
			f.skip(4)
		}
		if has&0x400 != 0 {
			fl = f.u32()
		}
		if has&0x800 != 0 {
			shift = int32(f.u32())
		}
		if dts > math.MaxInt64/4 {
			break
		}
		m.samples(1, int64(dts)+int64(shift), int64(d))
		if fl&notSync == 0 {
			m.Keyframes++
		}
		dts += uint64(d)
	}
	return dts
}

// alike counts samples that say nothing of themselves.
func (m *mp4File) alike(dts uint64, count, duration, first, flags uint32) uint64 {
	if count == 0 || dts > math.MaxInt64/4 || m.Packets >= maxSamples {
		return dts
	}
	m.samples(int64(count), int64(dts), int64(duration))
	if first&notSync == 0 {
		m.Keyframes++
	}
	if flags&notSync == 0 {
		m.Keyframes += int(count) - 1
	}
	return dts + uint64(count)*uint64(duration)
}

// mp4Tag finds an entry of the metadata, in MP4's form and in QuickTime's.
func mp4Tag(moov []byte, name string) string {
	if name == "creation_time" {
		version, _, f := fullBox(child(moov, "mvhd"))
		const since1904 = 2082844800
		if t := f.sized(version); t > since1904 && t < 1<<40 {
			return time.Unix(int64(t-since1904), 0).UTC().Format(time.RFC3339Nano)
		}
		return ""
	}
	kind := map[string]string{"date": "\xa9day", "title": "\xa9nam", "comment": "\xa9cmt"}[name]
	if kind == "" {
		return ""
	}
	udta := child(moov, "udta")
	if data := child(skipped(child(udta, "meta"), 4), "ilst", kind, "data"); len(data) >= 8 {
		return string(data[8:])
	}
	if text := child(udta, kind); len(text) >= 4 {
		n := int(binary.BigEndian.Uint16(text))
		return string(bytes.TrimRight(text[4:min(4+n, len(text))], "\x00"))
	}
	return ""
}

var mp4Codecs = map[string]uint32{
	"avc1": media.H264, "avc3": media.H264, "hvc1": media.HEVC, "hev1": media.HEVC, "av01": media.AV1, "jpeg": media.MJPEG, "mp4v": media.MPEG4,
	"vp09": media.VP9, "mp4a": media.AAC, "Opus": media.Opus, "ulaw": media.PCMMulaw, "alaw": media.PCMAlaw, "twos": media.PCMS16BE, "sowt": media.PCMS16LE,
	"ac-3": media.AC3, "ec-3": media.EAC3, "fLaC": media.FLAC, "alac": media.ALAC, ".mp3": media.MP3,
}
