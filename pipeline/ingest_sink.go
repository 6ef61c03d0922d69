package pipeline

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/packetring"
)

// The flags of a packet are those of the ring.
var _ = [1]struct{}{}[packetring.Flags(media.FlagKey|media.FlagCorrupt|media.FlagDiscontinuity|media.FlagLastInAU)^
	(packetring.FlagKey|packetring.FlagCorrupt|packetring.FlagDiscontinuity|packetring.FlagLastInAU)]

// ingestSink publishes the tracks of a source: the first video under the key, the first audio under key-audio.
type ingestSink struct {
	in      *Ingest
	outputs [2]*output // by media.Kind
	routes  []*output  // by the connection's track; nil: not published
	fatal   error

	first, last time.Time // packets of this connection
}

// output is one key.
type output struct {
	in   *Ingest
	key  string
	kind media.Kind
	want media.Track // as the source describes it now
	have media.Track // as published
	pub  *Publication
	dec  *decoding // beside pub
	gap  bool      // the next packet has to be marked
	seen trackState
	told time.Time // when a packet that was too large was last reported
}

func newIngestSink(in *Ingest) *ingestSink {
	s := &ingestSink{in: in}
	s.outputs[media.Video] = &output{in: in, key: in.o.Key, kind: media.Video}
	s.outputs[media.Audio] = &output{in: in, key: in.o.Key + AudioSuffix, kind: media.Audio}
	return s
}

// Tracks implements media.Sink. Publications are made with a track's first packet: what is known then is more.
func (s *ingestSink) Tracks(tracks []media.Track) error {
	var taken [2]bool
	routes := make([]*output, len(tracks))
	for i, t := range tracks {
		o := s.outputs[t.Kind]
		if t.Kind == media.Audio && s.in.o.NoAudio {
			continue
		}
		if taken[t.Kind] {
			if len(s.routes) != len(tracks) {
				s.in.log.Warn("more than one track of a kind: left out", "kind", t.Kind, "track", i, "name", t.Name)
			}
			continue
		}
		taken[t.Kind] = true
		o.want = t
		routes[i] = o
	}
	if len(s.routes) != len(tracks) {
		s.in.log.Info("connected", "source", s.in.o.Name, "tracks", describeTracks(tracks))
	}
	s.routes = routes
	return nil
}

func describeTracks(tracks []media.Track) (list []string) {
	for _, t := range tracks {
		text := media.CodecName(t.CodecID)
		if t.Kind == media.Audio {
			text += fmt.Sprintf(" %d Hz, %d channel(s)", t.ClockRate, t.Channels)
		}
		list = append(list, text)
	}
	return list
}

// Packet implements media.Sink. It does not allocate once a publication stands.
func (s *ingestSink) Packet(track int, p media.Packet) error {
	if track < 0 || track >= len(s.routes) {
		return fmt.Errorf("packet of track %d of %d", track, len(s.routes))
	}
	o := s.routes[track]
	if o == nil {
		return nil
	}
	s.last = time.Now()
	if s.first.IsZero() {
		s.first = s.last
		s.in.state.connected()
	}
	err := s.audioFirst(o)
	if err == nil {
		err = o.packet(p, s.last)
	}
	s.fatal = err
	return err
}

// audioFirst publishes a described audio track in front of the video: who finds KEY finds KEY-audio too, and no recording begins
// without its sound.
func (s *ingestSink) audioFirst(o *output) error {
	audio := s.outputs[media.Audio]
	if o.kind != media.Video || o.pub != nil || audio.pub != nil || len(audio.want.Extradata) == 0 {
		return nil
	}
	return audio.follow()
}

// connectionEnded says for how long the connection has delivered. The publications live on; what comes next is marked.
func (s *ingestSink) connectionEnded() (good time.Duration) {
	if !s.first.IsZero() {
		good = s.last.Sub(s.first)
	}
	s.first, s.last, s.routes = time.Time{}, time.Time{}, nil
	for _, o := range s.outputs {
		o.gap = o.gap || o.pub != nil
	}
	return good
}

func (s *ingestSink) close() {
	for _, o := range s.outputs {
		if err := o.close(framering.ReasonNormal); err != nil {
			s.in.o.Logger.Warn("close", "key", o.key, "error", err)
		}
	}
}

func (o *output) close(reason framering.Reason) error {
	if o.pub == nil {
		return nil
	}
	o.dec.stop()
	err := o.pub.Close(reason)
	o.pub, o.dec = nil, nil
	return err
}

func (o *output) packet(p media.Packet, now time.Time) error {
	if o.pub == nil || o.want.CodecID != o.have.CodecID || !bytes.Equal(o.want.Extradata, o.have.Extradata) {
		if err := o.follow(); err != nil {
			return err
		}
	}
	flags := packetring.Flags(p.Flags)
	if o.gap {
		flags |= packetring.FlagDiscontinuity
		o.gap = false
	}
	_, err := o.pub.Packet(packetring.Packet{PTS: p.PTS, DTS: p.DTS, Flags: flags, Data: p.Data})
	if errors.Is(err, packetring.ErrOversized) {
		o.gap = true
		o.seen.oversized.Add(1)
		if now.Sub(o.told) > time.Minute {
			o.told = now
			o.in.o.Logger.Warn("packet is too large for the ring, left out; a larger --packet-bytes takes it",
				"key", o.key, "bytes", len(p.Data), "limit", o.maxPacket())
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	o.seen.packet(flags, len(p.Data), now)
	return nil
}

// follow makes the publication what the track is now: it stays when a reader can go on with it, else a new one takes its place
// and readers follow.
func (o *output) follow() error {
	if o.pub != nil {
		if sameStream(o.have, o.want) {
			o.have = o.want // other parameter sets for the same pictures: they stand in front of each keyframe
			return nil
		}
		o.in.o.Logger.Info("the stream has changed; a new publication takes over",
			"key", o.key, "from", streamText(o.have), "to", streamText(o.want), "changed", changes(o.have, o.want))
		if err := o.close(framering.ReasonUpgrade); err != nil {
			return err
		}
		o.gap = true
	}
	c := packetring.Config{CodecID: o.want.CodecID, Extradata: o.want.Extradata, MaxPacket: o.maxPacket()}
	if len(c.Extradata) > bitstream.MaxExtradata {
		c.Extradata = nil
	}
	if o.kind == media.Video {
		c.Slots, c.DataSize = o.in.o.PacketSlots, o.in.o.PacketBytes
	} else {
		c.Slots, c.DataSize = defaultIngestSlots, audioBytes
	}
	key, protocol := o.key, o.in.o.Protocol
	if protocol == 1 {
		protocol = 4
		if o.kind == media.Video {
			key += SourceSuffix
		}
	}
	pub, err := Publish(PublishOptions{
		RuntimeDir: o.in.o.RuntimeDir, Key: key, Group: o.in.o.Group, Protocol: protocol, Packets: c, Logger: o.in.o.Logger,
	})
	if err != nil {
		return err
	}
	o.pub, o.have = pub, o.want
	if o.in.o.Decode != nil && o.kind == media.Video {
		o.dec = startDecoding(*o.in.o.Decode, o.in.o, pub, o.in.o.Decoded)
	}
	o.seen.codec.Store(c.CodecID)
	o.in.o.Logger.Info("publishing", "key", key, "codec", media.CodecName(c.CodecID), "ring_bytes", c.DataSize)
	if err := rtsp.CanCarry(o.have); errors.Is(err, rtsp.ErrUnsupportedCodec) {
		o.in.o.Logger.Warn("this codec is none of those that are taken everywhere", "key", key, "codec", media.CodecName(c.CodecID), "taken_by", takers(o.have))
	}
	return nil
}

func (o *output) maxPacket() int {
	if o.kind == media.Audio {
		return audioMaxPacket
	}
	return o.in.o.MaxUnit()
}
