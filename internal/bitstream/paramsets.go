package bitstream

import (
	"bytes"

	"github.com/cfpipe/cfpipe/internal/media"
)

// MaxExtradata is the room for parameter sets in a packet ring's header.
const MaxExtradata = 4096

// maxSets bounds how many parameter sets of one kind are kept: H.264 and H.265 streams of cameras use one to four; a stream that
// numbers through all of PPS's 256 ids must not fill every keyframe with them.
const maxSets = 16

// ParameterSets keeps the newest parameter sets of an H.264 or H.265 stream, from the session description and from the stream,
// and sets them in front of keyframes that come without. The zero value is not usable; see NewParameterSets.
type ParameterSets struct {
	codec uint32
	kinds [3][]paramSet // VPS, SPS, PPS
	sps   SPS           // of the newest SPS that could be read
	known bool
}

type paramSet struct {
	id  int
	nal []byte
}

const (
	kindVPS = iota
	kindSPS
	kindPPS
)

// NewParameterSets returns an empty cache for media.H264 or media.HEVC.
func NewParameterSets(codec uint32) *ParameterSets { return &ParameterSets{codec: codec} }

// kindOf returns which parameter set a NAL unit is and its id, or -1.
func (p *ParameterSets) kindOf(nal []byte) (kind, id int) {
	if p.codec == media.HEVC {
		switch H265Type(nal) {
		case H265VPS:
			if len(nal) > 2 {
				return kindVPS, int(nal[2] >> 4)
			}
		case H265SPS:
			return kindSPS, h265SPSID(nal)
		case H265PPS:
			if len(nal) > 2 {
				return kindPPS, int(newBitReader(nal[2:]).ue())
			}
		}
		return -1, 0
	}
	switch H264Type(nal) {
	case H264SPS:
		if len(nal) > 4 {
			return kindSPS, int(newBitReader(nal[4:]).ue())
		}
	case H264PPS:
		if len(nal) > 1 {
			return kindPPS, int(newBitReader(nal[1:]).ue())
		}
	}
	return -1, 0
}

func h265SPSID(nal []byte) int {
	if len(nal) < 4 {
		return 0
	}
	r := newBitReader(nal[2:])
	r.bits(4)
	n := int(r.bits(3))
	r.bit()
	r.skip(88 + 8)
	var present [16]bool
	for i := range 2 * n {
		present[i] = r.flag()
	}
	if n > 0 {
		r.skip(2 * (8 - n))
	}
	for i := range n {
		if present[2*i] {
			r.skip(88)
		}
		if present[2*i+1] {
			r.skip(8)
		}
	}
	return int(r.ue())
}

// Add keeps a NAL unit when it is a parameter set, in place of an older one with the same id. It says whether anything changed.
// The NAL unit is copied.
func (p *ParameterSets) Add(nal []byte) bool {
	nal = bytes.TrimRight(nal, "\x00") // a NAL unit never ends in zero bytes, but some come with padding
	kind, id := p.kindOf(nal)
	if kind < 0 || len(nal) > MaxExtradata/2 {
		return false
	}
	sets := p.kinds[kind]
	for i := range sets {
		if sets[i].id != id {
			continue
		}
		if bytes.Equal(sets[i].nal, nal) {
			if kind == kindSPS {
				p.readSPS(nal)
			}
			return false
		}
		sets[i].nal = bytes.Clone(nal)
		if kind == kindSPS {
			p.readSPS(nal)
		}
		return true
	}
	if len(sets) == maxSets {
		sets = append(sets[:0], sets[1:]...) // the oldest goes
	}
	p.kinds[kind] = append(sets, paramSet{id, bytes.Clone(nal)})
	if kind == kindSPS {
		p.readSPS(nal)
	}
	return true
}

func (p *ParameterSets) readSPS(nal []byte) {
	if sps, ok := ParseSPS(p.codec, nal); ok {
		p.sps, p.known = sps, true
	}
}

// Update keeps all parameter sets of an Annex B access unit (or Annex B extradata) and says whether anything changed.
func (p *ParameterSets) Update(au []byte) bool {
	changed := false
	for nal := range NALs(au) {
		c := Classify(p.codec, nal)
		if c.ParamSet && p.Add(nal) {
			changed = true
		}
		if c.Slice {
			break // parameter sets stand in front of the picture
		}
	}
	return changed
}

// AddExtradata takes a decoder's extradata: Annex B, avcC or hvcC.
func (p *ParameterSets) AddExtradata(b []byte) error {
	if len(b) == 0 || IsAnnexB(b) {
		p.Update(b)
		return nil
	}
	sets, _, err := ParseConfigRecord(p.codec, b)
	for _, nal := range sets {
		p.Add(nal)
	}
	return err
}

// Complete says whether a decoder could start with what is kept.
func (p *ParameterSets) Complete() bool {
	return len(p.kinds[kindSPS]) > 0 && len(p.kinds[kindPPS]) > 0 && (p.codec != media.HEVC || len(p.kinds[kindVPS]) > 0)
}

// SPS returns what the newest readable SPS says.
func (p *ParameterSets) SPS() (SPS, bool) { return p.sps, p.known }

// Extradata returns VPS, SPS and PPS in Annex B, or nil while they are not Complete. What does not fit MaxExtradata is left out
// from the end.
func (p *ParameterSets) Extradata() []byte {
	if !p.Complete() {
		return nil
	}
	var b []byte
	for _, sets := range p.kinds {
		for _, s := range sets {
			if len(b)+4+len(s.nal) <= MaxExtradata {
				b = AppendNAL(b, s.nal)
			}
		}
	}
	return b
}

// has returns which kinds of parameter sets stand in front of the picture of an access unit.
func (p *ParameterSets) has(au []byte) (kinds [3]bool) {
	for nal := range NALs(au) {
		c := Classify(p.codec, nal)
		if c.Slice {
			break
		}
		if c.ParamSet {
			if k, _ := p.kindOf(nal); k >= 0 {
				kinds[k] = true
			}
		}
	}
	return kinds
}

// Missing says whether a keyframe's access unit lacks parameter sets that are known.
func (p *ParameterSets) Missing(key []byte) bool {
	have := p.has(key)
	for k := range p.kinds {
		if !have[k] && len(p.kinds[k]) > 0 {
			return true
		}
	}
	return false
}

// Insert appends the keyframe's access unit to dst with all kept parameter sets in front (behind an access unit delimiter). The
// unit's own parameter sets are left out: Update has taken them in before.
func (p *ParameterSets) Insert(dst, key []byte) []byte {
	inserted := false
	insert := func() {
		if inserted {
			return
		}
		inserted = true
		for _, sets := range p.kinds {
			for _, s := range sets {
				dst = AppendNAL(dst, s.nal)
			}
		}
	}
	for nal := range NALs(key) {
		c := Classify(p.codec, nal)
		if c.AUD && !inserted {
			dst = AppendNAL(dst, nal)
			continue
		}
		insert()
		if !c.ParamSet {
			dst = AppendNAL(dst, nal)
		}
	}
	return dst
}
