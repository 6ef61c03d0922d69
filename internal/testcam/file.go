package testcam

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/asticode/go-astiav"
	"github.com/bluenviron/mediacommon/v2/pkg/codecs/mpeg4audio"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

// maxClip bounds the memory of a clip.
const maxClip = 256 << 20

// OpenClip reads a clip through FFmpeg: its first video and its first audio track, those that RTP can carry. A clip without
// either, or longer than 256 MiB, is an error.
func OpenClip(path string) (*Clip, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open clip: %w", err)
	}
	c, err := readClip(path)
	if err != nil {
		return nil, fmt.Errorf("read clip %s: %w", filepath.Base(path), err)
	}
	return c, nil
}

// clipReader collects one stream.
type clipReader struct {
	clipTrack
	stream *astiav.Stream
	filter *astiav.BitStreamFilterContext // nil: packets are as they should be
	adts   bool                           // AAC with headers, as MPEG-TS has it
	end    int64
}

func readClip(path string) (*Clip, error) {
	in := astiav.AllocFormatContext()
	if in == nil {
		return nil, errors.New("out of memory")
	}
	defer in.Free()
	if err := in.OpenInput(path, nil, nil); err != nil {
		return nil, err
	}
	defer in.CloseInput()
	if err := in.FindStreamInfo(nil); err != nil {
		return nil, err
	}
	readers := map[int]*clipReader{}
	var order []*clipReader
	for _, kind := range []media.Kind{media.Video, media.Audio} {
		for _, s := range in.Streams() {
			if r := newClipReader(s, kind); r != nil {
				defer r.free()
				if err := r.setUp(); err != nil {
					return nil, err
				}
				readers[s.Index()], order = r, append(order, r)
				break
			}
		}
	}
	if len(order) == 0 {
		return nil, errors.New("no track that RTP can carry")
	}
	p := astiav.AllocPacket()
	defer p.Free()
	for total := 0; ; {
		if err := in.ReadFrame(p); errors.Is(err, astiav.ErrEof) {
			break
		} else if err != nil {
			return nil, err
		}
		if total += p.Size(); total > maxClip {
			return nil, fmt.Errorf("longer than %d MiB", maxClip>>20)
		}
		r := readers[p.StreamIndex()]
		if r == nil {
			p.Unref()
			continue
		}
		err := r.packet(p)
		p.Unref()
		if err != nil {
			return nil, err
		}
	}
	return joinClip(order)
}

// joinClip lets time begin at 0 and finds the length of a round.
func joinClip(readers []*clipReader) (*Clip, error) {
	c := &Clip{}
	var start int64
	for i, r := range readers {
		if len(r.units) == 0 {
			return nil, fmt.Errorf("no packet in the %s track", r.Kind)
		}
		if i == 0 || r.units[0].dts < start {
			start = r.units[0].dts
		}
	}
	for _, r := range readers {
		for i := range r.units {
			r.units[i].pts -= start
			r.units[i].dts -= start
			r.delay = max(r.delay, r.units[i].pts-r.units[i].dts)
		}
		c.tracks = append(c.tracks, r.clipTrack)
		c.duration = max(c.duration, r.end-start)
	}
	if c.duration <= 0 {
		return nil, errors.New("it has no duration")
	}
	return c, nil
}

func newClipReader(s *astiav.Stream, kind media.Kind) *clipReader {
	p := s.CodecParameters()
	r := &clipReader{stream: s, clipTrack: clipTrack{Track: media.Track{Kind: kind, Name: kind.String(), CodecID: uint32(p.CodecID()), ClockRate: 90000}}}
	switch r.CodecID {
	case media.H264, media.HEVC, media.AV1, media.MJPEG:
		if kind != media.Video {
			return nil
		}
	case media.AAC, media.Opus, media.PCMMulaw, media.PCMAlaw, media.PCMS16BE, media.G726, media.G726LE:
		if kind != media.Audio {
			return nil
		}
		r.ClockRate, r.Channels = p.SampleRate(), p.ChannelLayout().Channels()
	default:
		return nil
	}
	return r
}

// setUp chooses the filter that makes packets what a ring holds: Annex B with parameter sets, AAC without ADTS.
func (r *clipReader) setUp() error {
	p := r.stream.CodecParameters()
	extradata := p.ExtraData()
	var name string
	switch {
	case r.CodecID == media.H264:
		name = "h264_mp4toannexb" // lets Annex B pass
	case r.CodecID == media.HEVC:
		name = "hevc_mp4toannexb"
	case r.CodecID == media.AAC && len(extradata) == 0:
		r.adts = true
	}
	if name != "" {
		f := astiav.FindBitStreamFilterByName(name)
		if f == nil {
			return fmt.Errorf("FFmpeg lacks the filter %s", name)
		}
		var err error
		if r.filter, err = astiav.AllocBitStreamFilterContext(f); err != nil {
			return err
		}
		if err := p.Copy(r.filter.InputCodecParameters()); err != nil {
			return err
		}
		r.filter.SetInputTimeBase(r.stream.TimeBase())
		if err := r.filter.Initialize(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		extradata = r.filter.OutputCodecParameters().ExtraData()
	}
	r.Extradata = append([]byte(nil), extradata...)
	switch r.CodecID {
	case media.PCMMulaw, media.PCMAlaw, media.PCMS16BE, media.G726, media.G726LE:
		r.Extradata = media.AudioText(r.ClockRate, r.Channels, 0)
	}
	return nil
}

func (r *clipReader) free() {
	if r.filter != nil {
		r.filter.Free()
	}
}

func (r *clipReader) packet(p *astiav.Packet) error {
	if r.filter == nil {
		return r.add(p)
	}
	if err := r.filter.SendPacket(p); err != nil {
		return err
	}
	for {
		switch err := r.filter.ReceivePacket(p); {
		case errors.Is(err, astiav.ErrEagain), errors.Is(err, astiav.ErrEof):
			return nil
		case err != nil:
			return err
		}
		err := r.add(p)
		p.Unref()
		if err != nil {
			return err
		}
	}
}

// add appends a packet; times are in ns. Packets ahead of the first keyframe are left out.
func (r *clipReader) add(p *astiav.Packet) error {
	key := p.Flags().Has(astiav.PacketFlagKey)
	if len(r.units) == 0 && !key || p.Size() == 0 {
		return nil
	}
	data := p.Data()
	if r.adts {
		var packets mpeg4audio.ADTSPackets
		if err := packets.Unmarshal(data); err != nil || len(packets) != 1 {
			return errors.New("AAC frame without a usable ADTS header")
		}
		config := mpeg4audio.AudioSpecificConfig{Type: packets[0].Type, SampleRate: packets[0].SampleRate, ChannelCount: packets[0].ChannelCount}
		var err error
		if r.Extradata, err = config.Marshal(); err != nil {
			return err
		}
		data = packets[0].AU
	}
	if r.CodecID == media.H264 || r.CodecID == media.HEVC { // the filters write 3-byte start codes in places
		var au []byte
		for nal := range bitstream.NALs(data) {
			au = bitstream.AppendNAL(au, nal)
		}
		data = au
	}
	ns := astiav.NewRational(1, int(time.Second))
	pts, dts, tb := p.Pts(), p.Dts(), r.stream.TimeBase()
	if dts == astiav.NoPtsValue {
		dts = pts
	}
	if pts == astiav.NoPtsValue {
		pts = dts
	}
	if pts == astiav.NoPtsValue { // an elementary stream
		pts, dts = r.end, r.end
	} else {
		pts, dts = astiav.RescaleQ(pts, tb, ns), astiav.RescaleQ(dts, tb, ns)
	}
	duration := astiav.RescaleQ(p.Duration(), tb, ns)
	if n := len(r.units); n > 0 {
		last := r.units[n-1].dts
		dts = max(dts, last+1)
		if duration <= 0 {
			duration = dts - last
		}
	}
	r.end = max(r.end, dts+duration)
	r.units = append(r.units, unit{pts: pts, dts: dts, key: key, data: data})
	return nil
}
