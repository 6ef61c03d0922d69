package rtsp

import (
	"bytes"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/clock"
	"github.com/cfpipe/cfpipe/internal/media"
)

// feed brings the RTP streams of one connection to a sink: order, units, time, parameter sets. With UDP each stream has a
// goroutine of its own; mu keeps them apart.
type feed struct {
	mu     sync.Mutex
	sink   media.Sink
	clock  *clock.Clock
	tracks []*feedTrack
	desc   []media.Track
	log    *slog.Logger
	stats  *counters
	err    error // of the sink

	lastPacket atomic.Int64 // mono, of any RTP packet
	lastUnit   atomic.Int64 // mono, of the newest access unit or audio frame that packets made up, used or not
	toldLarge  int64        // mono, when one that was too large was last told of; 0 = never
	bye        atomic.Int64 // mono, of the last goodbye; 0 = none
}

type feedTrack struct {
	feed    *feed
	index   int
	format  *rtpFormat
	arrived rtpPacket // the packet at hand, so that it need not be allocated
	order   order
	depack  depacketizer
	clock   *clock.Track
	dts     *clock.DTS

	ssrc     uint32 // of the camera
	lastSR   uint64
	lastSRAt clock.Instant

	sets    *bitstream.ParameterSets // H.264, H.265
	picture bitstream.Format
	started bool  // handed out a first packet
	waiting int64 // mono since when slices come that cannot be used; 0: none
	warned  bool
	untimed bool // it was told that the RTP timestamps are of no use
	scratch []byte
	lastDTS int64
	anyKind bool  // the only format of its media: packets of any payload type are its own
	misfit  uint8 // the payload type of the last packets that fit no description
	misfits int
}

func newFeed(sink media.Sink, formats []*rtpFormat, o *SourceOptions, datagrams bool, stats *counters) *feed {
	f := &feed{sink: sink, clock: clock.New(), log: o.Logger, stats: stats}
	for i, rf := range formats {
		t := &feedTrack{feed: f, index: i, format: rf, sets: rf.sets, anyKind: true}
		t.clock = f.clock.Track(rf.clockRate, rf.track.Kind == media.Video)
		t.dts = clock.NewDTS(-1, 0)
		t.order.deliver = func(p *rtpPacket, lost bool) { t.depack.packet(p, lost) }
		if datagrams {
			t.order.wait = int64(o.ReorderWait)
		}
		dropped := func() {
			n := stats.oversized.Add(1)
			if now := clock.Now().Mono; f.toldLarge == 0 || now-f.toldLarge >= int64(tellAgain) {
				f.toldLarge = now
				o.Logger.Warn("access unit larger than the ring takes, dropped", "limit", o.MaxUnit, "track", rf.track.Name, "dropped", n)
			}
		}
		room := o.MaxUnit - bitstream.MaxExtradata // for parameter sets in front
		switch rf.track.CodecID {
		case media.H264, media.HEVC:
			donl := rf.fmtp["sprop-max-don-diff"]
			t.depack = newH26x(rf.track.CodecID, donl != "" && donl != "0", room, t.video, dropped)
		case media.AV1:
			t.depack = &av1Depacketizer{max: room, out: t.video, dropped: dropped}
		case media.MJPEG:
			t.depack = &jpegDepacketizer{max: room, out: t.video, dropped: dropped}
		case media.AAC:
			if rf.encoding == "MP4A-LATM" {
				t.depack = &latmDepacketizer{inBand: rf.latm == nil, config: rf.latm, clock: rf.clockRate, out: t.audio, learn: t.learnAAC}
			} else {
				t.depack = newAAC(rf, t.audio)
			}
		default:
			p := &plainAudio{out: t.audio}
			if rf.track.CodecID == media.G726 && rf.encoding[0] == 'G' {
				p.swap = rf.track.BitsPerSample
			}
			t.depack = p
		}
		f.tracks = append(f.tracks, t)
		f.desc = append(f.desc, rf.track)
	}
	return f
}

func (f *feed) announce() error {
	return f.sink.Tracks(append([]media.Track(nil), f.desc...))
}

// rtp takes a packet as it came from the network.
func (t *feedTrack) rtp(b []byte, at clock.Instant) error {
	f := t.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &t.arrived
	if !parseRTP(b, p) || int(p.kind) != t.format.payload && !t.takes(p.kind) {
		f.stats.malformed.Add(1)
		return nil
	}
	p.at = at
	f.lastPacket.Store(at.Mono)
	f.bye.Store(0)
	f.stats.rtpPackets.Add(1)
	t.ssrc = p.ssrc
	missing := t.order.missing
	t.order.push(p)
	if n := t.order.missing - missing; n > 0 {
		f.stats.rtpLost.Add(n)
	}
	return f.err
}

// takes says whether packets of another payload type than the description names belong to the track: there are cameras that
// number one way and send the other, one type all the time. Their own never come.
func (t *feedTrack) takes(kind uint8) bool {
	if kind >= 72 && kind <= 76 { // RTCP on the wrong channel
		return false
	}
	if t.order.started {
		return false
	}
	if kind != t.misfit {
		t.misfit, t.misfits = kind, 0
	}
	if t.misfits++; t.misfits < 20 {
		return false
	}
	t.format.payload = int(kind)
	t.feed.log.Warn("packets have another payload type than described; taken all the same", "track", t.format.track.Name, "type", kind)
	return true
}

// expire gives up waiting for packets that are overdue; deadline is when to call it again (mono, 0: not needed).
func (t *feedTrack) expire(now int64) (deadline int64, err error) {
	t.feed.mu.Lock()
	defer t.feed.mu.Unlock()
	missing := t.order.missing
	t.order.expire(now)
	t.feed.stats.rtpLost.Add(t.order.missing - missing)
	d, _ := t.order.deadline()
	return d, t.feed.err
}

func (t *feedTrack) rtcp(b []byte, at clock.Instant) {
	sr, report, bye := parseRTCP(b)
	f := t.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if report {
		t.clock.SenderReport(sr.ntp, sr.time, at)
		t.lastSR, t.lastSRAt = sr.ntp, at
		f.tellAhead()
	}
	if bye {
		f.bye.Store(at.Mono)
	}
}

// tellAhead updates what Stats says of the camera's clock.
func (f *feed) tellAhead() {
	ahead, known := f.clock.Ahead()
	f.stats.clocked.Store(known)
	f.stats.ahead.Store(ahead)
}

// video takes an access unit from the depacketizer.
func (t *feedTrack) video(u unit) {
	f := t.feed
	f.lastUnit.Store(f.lastPacket.Load())
	if f.err != nil {
		return
	}
	if t.sets != nil && u.sets && !u.corrupt {
		t.sets.Update(u.data)
	}
	if u.bare {
		return
	}
	if !t.started && !t.begins(u) {
		return
	}
	pts, gap := t.clock.Time(u.time, u.at, u.key)
	if u.key { // sooner than with the next report, and also when this host's clock was set
		f.tellAhead()
	}
	if !t.untimed && t.clock.ByArrival() {
		t.untimed = true // told once: it may come and go
		f.log.Warn("RTP timestamps stand still, run backwards or jump all the time: the time of arrival is taken instead", "track", t.format.track.Name)
	}
	gap = gap || u.gap && t.started
	data := u.data
	if u.key {
		changed, err := t.keyframe(u.data)
		if err != nil {
			f.err = err
			return
		}
		gap = gap || changed && t.started
		if t.sets != nil && t.sets.Missing(u.data) {
			t.scratch = t.sets.Insert(t.scratch[:0], u.data)
			data = t.scratch
		}
	}
	if gap {
		t.dts.Reset()
	}
	dts, again := t.dts.Next(pts, u.idr)
	t.started = true
	t.emit(media.Packet{PTS: pts, DTS: dts, Data: data}, u.key, u.corrupt, gap || again)
}

// begins says whether handing out can start with this unit: a keyframe whose parameter sets are known.
func (t *feedTrack) begins(u unit) bool {
	complete := t.sets == nil || t.sets.Complete()
	if u.key && complete {
		return true
	}
	t.feed.stats.waiting.Add(1)
	if t.waiting == 0 {
		t.waiting = u.at.Mono
	}
	if !t.warned && u.at.Mono-t.waiting > int64(paramSetPatience) {
		t.warned = true
		if complete {
			t.feed.log.Info("waiting for the first keyframe")
		} else {
			t.feed.log.Warn("no parameter sets (SPS, PPS), neither in the session description nor in the stream: nothing can be decoded; waiting for them")
		}
	}
	return false
}

// keyframe reads what the pictures are from now on. changed: the picture's size or depth is another than it was.
func (t *feedTrack) keyframe(data []byte) (changed bool, err error) {
	track := &t.feed.desc[t.index]
	var picture bitstream.Format
	var extradata []byte
	switch {
	case t.sets != nil:
		if sps, ok := t.sets.SPS(); ok {
			picture = sps.Format
			frame := int64(0)
			if sps.FPS > 0 {
				frame = int64(1e9 / sps.FPS)
			}
			t.dts.Configure(sps.Reorder, frame)
		}
		if !t.started || picture != t.picture {
			extradata = t.sets.Extradata()
		}
	case track.CodecID == media.AV1:
		t.dts.Configure(0, 0)
		extradata = bitstream.AV1Extradata(data)
		if bytes.Equal(extradata, track.Extradata) {
			picture = t.picture
		} else {
			picture, _ = bitstream.AV1Format(extradata)
		}
	default:
		t.dts.Configure(0, 0)
		picture.Width, picture.Height, _ = bitstream.JPEGSize(data)
	}
	changed = picture != t.picture
	t.picture = picture
	if extradata != nil && !bytes.Equal(extradata, track.Extradata) {
		track.Extradata = extradata
		return changed, t.feed.announce()
	}
	return changed, nil
}

func (t *feedTrack) learnAAC(c *aacConfig) {
	b, err := c.Marshal()
	track := &t.feed.desc[t.index]
	if err != nil || bytes.Equal(b, track.Extradata) || t.feed.err != nil {
		return
	}
	track.Extradata, track.ClockRate, track.Channels = b, c.SampleRate, c.ChannelCount
	t.feed.err = t.feed.announce()
}

// audio takes a frame from the depacketizer.
func (t *feedTrack) audio(u unit) {
	t.feed.lastUnit.Store(t.feed.lastPacket.Load())
	if t.feed.err != nil || len(t.feed.desc[t.index].Extradata) == 0 || len(u.data) == 0 {
		return
	}
	pts, gap := t.clock.Time(u.time, u.at, true)
	gap = gap || u.gap && t.started
	if t.started && !gap && pts <= t.lastDTS {
		pts = t.lastDTS + 1000 // frames of one packet, a timestamp that stands still
	}
	t.started, t.lastDTS = true, pts
	t.emit(media.Packet{PTS: pts, DTS: pts, Data: u.data}, true, false, gap)
}

func (t *feedTrack) emit(p media.Packet, key, corrupt, gap bool) {
	p.Flags = media.FlagLastInAU
	if key {
		p.Flags |= media.FlagKey
	}
	if corrupt {
		p.Flags |= media.FlagCorrupt
		t.feed.stats.corrupt.Add(1)
	}
	if gap {
		p.Flags |= media.FlagDiscontinuity
	}
	t.feed.err = t.feed.sink.Packet(t.index, p)
}
