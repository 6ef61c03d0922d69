package bitstream

import "github.com/cfpipe/cfpipe/internal/media"

// Format is what a sequence parameter set says about the pictures. Two streams of the same Format can stand in one file and one
// frame ring.
type Format struct {
	Codec         uint32
	Width, Height int // after cropping
	Profile       int
	ChromaFormat  int // 0 monochrome, 1 4:2:0, 2 4:2:2, 3 4:4:4
	BitDepth      int
}

// SPS is what cfpipe wants to know from a sequence parameter set.
type SPS struct {
	Format
	FPS float64 // declared; 0 when it is not. Cameras lie here: never use it for time
	// Reorder is the number of pictures that may stand in front of one in decoding order and behind it in output order; -1 when
	// the stream does not say.
	Reorder int
}

// maxDimension bounds a picture's sides: the largest that H.264 and H.265 levels allow.
const maxDimension = 16888

// ParseSPS reads an H.264 or H.265 sequence parameter set. ok is false when it cannot be read up to the picture size; what
// stands behind that (broken VUI, bytes behind the stop bit) costs only what it would have told.
func ParseSPS(codec uint32, nal []byte) (sps SPS, ok bool) {
	switch {
	case codec == media.H264 && H264Type(nal) == H264SPS && len(nal) >= 4:
		sps, ok = parseH264SPS(nal[1:])
	case codec == media.HEVC && H265Type(nal) == H265SPS:
		sps, ok = parseH265SPS(nal[2:])
	}
	sps.Codec = codec
	if !ok || sps.Width <= 0 || sps.Height <= 0 || sps.Width > maxDimension || sps.Height > maxDimension {
		return SPS{}, false
	}
	return sps, true
}

func parseH264SPS(b []byte) (SPS, bool) {
	s := SPS{Reorder: -1}
	r := newBitReader(b)
	s.Profile = int(r.bits(8))
	constraints := r.bits(8)
	r.bits(8) // level_idc
	r.ue()    // seq_parameter_set_id
	s.ChromaFormat, s.BitDepth = 1, 8
	separatePlanes := false
	switch s.Profile {
	case 100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135:
		s.ChromaFormat = int(r.ue())
		if s.ChromaFormat > 3 {
			return s, false
		}
		if s.ChromaFormat == 3 {
			separatePlanes = r.flag()
		}
		s.BitDepth = int(r.ue()) + 8
		r.ue() // bit_depth_chroma_minus8
		r.bit()
		if r.flag() { // seq_scaling_matrix_present_flag
			n := 8
			if s.ChromaFormat == 3 {
				n = 12
			}
			for i := range n {
				if r.flag() {
					skipScalingList(r, i)
				}
			}
		}
	}
	r.ue()          // log2_max_frame_num_minus4
	switch r.ue() { // pic_order_cnt_type
	case 0:
		r.ue()
	case 1:
		r.bit()
		r.se()
		r.se()
		n := r.ue()
		if n > 255 {
			return s, false
		}
		for range n {
			r.se()
		}
	case 2:
		s.Reorder = 0 // output order is decoding order
	}
	r.ue() // max_num_ref_frames
	r.bit()
	widthMBs := r.ue() + 1
	heightUnits := r.ue() + 1
	if r.bad || widthMBs > maxDimension/16+1 || heightUnits > maxDimension/16+1 {
		return s, false
	}
	frameMBsOnly := r.bit()
	if frameMBsOnly == 0 {
		r.bit() // mb_adaptive_frame_field_flag
	}
	r.bit() // direct_8x8_inference_flag
	s.Width = int(widthMBs) * 16
	s.Height = int(heightUnits) * int(2-frameMBsOnly) * 16
	if r.flag() { // frame_cropping_flag
		unitX, unitY := 1, int(2-frameMBsOnly)
		if s.ChromaFormat == 1 || s.ChromaFormat == 2 {
			unitX = 2
		}
		if s.ChromaFormat == 1 {
			unitY *= 2
		}
		if separatePlanes {
			unitX, unitY = 1, int(2-frameMBsOnly)
		}
		left, right, top, bottom := int(r.ue()), int(r.ue()), int(r.ue()), int(r.ue())
		s.Width -= (left + right) * unitX
		s.Height -= (top + bottom) * unitY
	}
	if r.bad {
		return s, false
	}
	if s.Profile == 66 || constraints&0x10 != 0 && (s.Profile == 100 || s.Profile == 44 || s.Profile == 110 || s.Profile == 122) {
		s.Reorder = 0 // Baseline has no B pictures; constraint_set3 with these profiles: intra only
	}
	if r.flag() {
		h264VUI(r, &s)
	}
	return s, true
}

func skipScalingList(r *bitReader, i int) {
	size := 16
	if i >= 6 {
		size = 64
	}
	last, next := int32(8), int32(8)
	for range size {
		if next != 0 {
			next = (last + r.se() + 256) % 256
		}
		if next != 0 {
			last = next
		}
		if r.bad {
			return
		}
	}
}

func h264VUI(r *bitReader, s *SPS) {
	if r.flag() && r.bits(8) == 255 { // aspect_ratio_idc Extended_SAR
		r.bits(32)
	}
	if r.flag() { // overscan_info_present_flag
		r.bit()
	}
	if r.flag() { // video_signal_type_present_flag
		r.bits(4)
		if r.flag() {
			r.bits(24)
		}
	}
	if r.flag() { // chroma_loc_info_present_flag
		r.ue()
		r.ue()
	}
	if r.flag() { // timing_info_present_flag
		tick, scale := r.bits(32), r.bits(32)
		r.bit()
		if !r.bad && tick > 0 && scale > 0 {
			s.FPS = float64(scale) / float64(tick) / 2
		}
	}
	nal := r.flag()
	if nal {
		skipHRD(r)
	}
	vcl := r.flag()
	if vcl {
		skipHRD(r)
	}
	if nal || vcl {
		r.bit()
	}
	r.bit()       // pic_struct_present_flag
	if r.flag() { // bitstream_restriction_flag
		r.bit()
		r.ue()
		r.ue()
		r.ue()
		r.ue()
		reorder := r.ue()
		r.ue() // max_dec_frame_buffering
		if !r.bad && reorder <= 16 {
			s.Reorder = int(reorder)
		}
	}
}

func skipHRD(r *bitReader) {
	n := r.ue() + 1
	r.bits(8)
	if n > 32 {
		r.bad = true
		return
	}
	for range n {
		r.ue()
		r.ue()
		r.bit()
	}
	r.bits(20)
}

func parseH265SPS(b []byte) (SPS, bool) {
	s := SPS{Reorder: -1}
	r := newBitReader(b)
	r.bits(4) // sps_video_parameter_set_id
	subLayers := int(r.bits(3))
	r.bit()
	r.bits(3) // profile space, tier
	s.Profile = int(r.bits(5))
	r.skip(32 + 48 + 8) // compatibility flags, constraints, level
	var profilePresent, levelPresent [8]bool
	for i := range subLayers {
		profilePresent[i], levelPresent[i] = r.flag(), r.flag()
	}
	if subLayers > 0 {
		r.skip(2 * (8 - subLayers))
	}
	for i := range subLayers {
		if profilePresent[i] {
			r.skip(88)
		}
		if levelPresent[i] {
			r.skip(8)
		}
	}
	r.ue() // sps_seq_parameter_set_id
	s.ChromaFormat = int(r.ue())
	if s.ChromaFormat > 3 {
		return s, false
	}
	if s.ChromaFormat == 3 {
		r.bit()
	}
	s.Width, s.Height = int(r.ue()), int(r.ue())
	if r.flag() { // conformance_window_flag
		unitX, unitY := 1, 1
		if s.ChromaFormat == 1 || s.ChromaFormat == 2 {
			unitX = 2
		}
		if s.ChromaFormat == 1 {
			unitY = 2
		}
		left, right, top, bottom := int(r.ue()), int(r.ue()), int(r.ue()), int(r.ue())
		s.Width -= (left + right) * unitX
		s.Height -= (top + bottom) * unitY
	}
	s.BitDepth = int(r.ue()) + 8
	r.ue() // bit_depth_chroma_minus8
	if r.bad {
		return s, false
	}
	r.ue() // log2_max_pic_order_cnt_lsb_minus4
	first := subLayers
	if r.flag() { // sps_sub_layer_ordering_info_present_flag
		first = 0
	}
	for range subLayers - first + 1 { // the last one is the highest layer's
		r.ue()
		reorder := r.ue()
		r.ue()
		if !r.bad && reorder <= 16 {
			s.Reorder = int(reorder)
		}
	}
	return s, true
}
