package nnrp

// SessionPatchLen and SessionPatchAckLen are the sizes of the fixed metadata. The body follows at once, also behind the 36 bytes of
// SESSION_PATCH.
const (
	SessionPatchLen    = 36
	SessionPatchAckLen = 48
)

// Bits of patch_mask.
const (
	PatchTargetCadence        = 0x00000001
	PatchQualityTier          = 0x00000002
	PatchDegradePolicy        = 0x00000004
	PatchActiveLaneMask       = 0x00000008
	PatchPreferredCodec       = 0x00000010
	PatchPreferredCompression = 0x00000020
	PatchProfile              = 0x00000040
	PatchAll                  = 0x0000007F
)

// SessionPatch changes low-frequency fields of a session (section 6.5). Body: profile patch block, control_extension_block.
//
//	Offset Size Field                 Offset Size Field
//	0      2    profile_id            14     2    degrade_policy
//	2      2    reserved0             16     8    active_lane_mask
//	4      4    patch_mask            24     4    preferred_codec_bitmap
//	8      4    target_cadence_x100   28     4    preferred_compression_bitmap
//	12     2    quality_tier          32     4    profile_patch_bytes
type SessionPatch struct {
	ProfileID                  uint16
	Reserved0                  uint16
	PatchMask                  uint32
	TargetCadenceX100          uint32
	QualityTier                uint16
	DegradePolicy              uint16
	ActiveLaneMask             uint64
	PreferredCodecBitmap       uint32
	PreferredCompressionBitmap uint32
	ProfilePatch               []byte // begins with a TensorClamp for the tensor profile
	Extensions                 []byte
}

// Type returns SESSION_PATCH.
func (*SessionPatch) Type() MsgType { return MsgSessionPatch }

// Append adds the whole message.
func (m *SessionPatch) Append(b []byte, h Header) ([]byte, error) {
	if err := validExtensions(MsgSessionPatch, m.Extensions); err != nil {
		return b, err
	}
	b, err := h.begin(b, MsgSessionPatch, blocksLen(m.ProfilePatch, m.Extensions))
	if err != nil {
		return b, err
	}
	b = le.AppendUint16(b, m.ProfileID)
	b = le.AppendUint16(b, m.Reserved0)
	b = le.AppendUint32(b, m.PatchMask)
	b = le.AppendUint32(b, m.TargetCadenceX100)
	b = le.AppendUint16(b, m.QualityTier)
	b = le.AppendUint16(b, m.DegradePolicy)
	b = le.AppendUint64(b, m.ActiveLaneMask)
	b = le.AppendUint32(b, m.PreferredCodecBitmap)
	b = le.AppendUint32(b, m.PreferredCompressionBitmap)
	b = le.AppendUint32(b, uint32(len(m.ProfilePatch)))
	return appendBlocks(b, m.ProfilePatch, m.Extensions), nil
}

// Parse reads metadata and body.
func (m *SessionPatch) Parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgSessionPatch, payload, l)
	if err != nil {
		return err
	}
	*m = SessionPatch{
		ProfileID:                  le.Uint16(p[0:]),
		Reserved0:                  le.Uint16(p[2:]),
		PatchMask:                  le.Uint32(p[4:]),
		TargetCadenceX100:          le.Uint32(p[8:]),
		QualityTier:                le.Uint16(p[12:]),
		DegradePolicy:              le.Uint16(p[14:]),
		ActiveLaneMask:             le.Uint64(p[16:]),
		PreferredCodecBitmap:       le.Uint32(p[24:]),
		PreferredCompressionBitmap: le.Uint32(p[28:]),
	}
	m.ProfilePatch, m.Extensions, err = twoBlocks(&body, uint64(le.Uint32(p[32:])), "profile patch block")
	return err
}

// Status and reason of SESSION_PATCH_ACK.
const (
	PatchAccepted = 0
	PatchPartial  = 1
	PatchRejected = 2

	ReasonNone             = 0
	ReasonInvalidFieldMask = 1
	ReasonImmutableField   = 2
	ReasonUnsupportedValue = 3
	ReasonOutOfRange       = 4
	ReasonServerBusy       = 5
)

// SessionPatchAck answers SESSION_PATCH (section 6.6). Body: profile patch ack block, control_extension_block.
//
//	Offset Size Field                Offset Size Field
//	0      2    status               20     4    effective_target_cadence_x100
//	2      2    reason               24     2    effective_quality_tier
//	4      4    applied_patch_mask   26     2    effective_degrade_policy
//	8      4    rejected_patch_mask  28     8    effective_lane_mask
//	12     4    retry_after_ms       36     4    effective_codec_bitmap
//	16     2    effective_profile_id 40     4    effective_compression_bitmap
//	18     2    reserved0            44     4    profile_patch_ack_bytes
type SessionPatchAck struct {
	Status                     uint16
	Reason                     uint16
	AppliedPatchMask           uint32
	RejectedPatchMask          uint32
	RetryAfterMs               uint32
	EffectiveProfileID         uint16
	Reserved0                  uint16
	EffectiveTargetCadenceX100 uint32
	EffectiveQualityTier       uint16
	EffectiveDegradePolicy     uint16
	EffectiveLaneMask          uint64
	EffectiveCodecBitmap       uint32
	EffectiveCompressionBitmap uint32
	ProfilePatchAck            []byte // begins with a TensorClamp for the tensor profile
	Extensions                 []byte
}

// Type returns SESSION_PATCH_ACK.
func (*SessionPatchAck) Type() MsgType { return MsgSessionPatchAck }

// Append adds the whole message.
func (m *SessionPatchAck) Append(b []byte, h Header) ([]byte, error) {
	if err := validExtensions(MsgSessionPatchAck, m.Extensions); err != nil {
		return b, err
	}
	b, err := h.begin(b, MsgSessionPatchAck, blocksLen(m.ProfilePatchAck, m.Extensions))
	if err != nil {
		return b, err
	}
	b = le.AppendUint16(b, m.Status)
	b = le.AppendUint16(b, m.Reason)
	b = le.AppendUint32(b, m.AppliedPatchMask)
	b = le.AppendUint32(b, m.RejectedPatchMask)
	b = le.AppendUint32(b, m.RetryAfterMs)
	b = le.AppendUint16(b, m.EffectiveProfileID)
	b = le.AppendUint16(b, m.Reserved0)
	b = le.AppendUint32(b, m.EffectiveTargetCadenceX100)
	b = le.AppendUint16(b, m.EffectiveQualityTier)
	b = le.AppendUint16(b, m.EffectiveDegradePolicy)
	b = le.AppendUint64(b, m.EffectiveLaneMask)
	b = le.AppendUint32(b, m.EffectiveCodecBitmap)
	b = le.AppendUint32(b, m.EffectiveCompressionBitmap)
	b = le.AppendUint32(b, uint32(len(m.ProfilePatchAck)))
	return appendBlocks(b, m.ProfilePatchAck, m.Extensions), nil
}

// Parse reads metadata and body.
func (m *SessionPatchAck) Parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgSessionPatchAck, payload, l)
	if err != nil {
		return err
	}
	*m = SessionPatchAck{
		Status:                     le.Uint16(p[0:]),
		Reason:                     le.Uint16(p[2:]),
		AppliedPatchMask:           le.Uint32(p[4:]),
		RejectedPatchMask:          le.Uint32(p[8:]),
		RetryAfterMs:               le.Uint32(p[12:]),
		EffectiveProfileID:         le.Uint16(p[16:]),
		Reserved0:                  le.Uint16(p[18:]),
		EffectiveTargetCadenceX100: le.Uint32(p[20:]),
		EffectiveQualityTier:       le.Uint16(p[24:]),
		EffectiveDegradePolicy:     le.Uint16(p[26:]),
		EffectiveLaneMask:          le.Uint64(p[28:]),
		EffectiveCodecBitmap:       le.Uint32(p[36:]),
		EffectiveCompressionBitmap: le.Uint32(p[40:]),
	}
	m.ProfilePatchAck, m.Extensions, err = twoBlocks(&body, uint64(le.Uint32(p[44:])), "profile patch ack block")
	return err
}

// TensorClampLen is the size of a TensorClamp.
const TensorClampLen = 16

// TensorClamp is the tensor_profile_patch_block and its ack (section 6.7): the range of picture sizes.
//
//	Offset Size Field
//	0      4    min_width
//	4      4    min_height
//	8      4    max_width
//	12     4    max_height
type TensorClamp struct {
	MinWidth  uint32
	MinHeight uint32
	MaxWidth  uint32
	MaxHeight uint32
}

// Append adds the block's 16 bytes.
func (c TensorClamp) Append(b []byte) []byte {
	b = le.AppendUint32(b, c.MinWidth)
	b = le.AppendUint32(b, c.MinHeight)
	b = le.AppendUint32(b, c.MaxWidth)
	return le.AppendUint32(b, c.MaxHeight)
}

// ParseTensorClamp reads the block at the beginning of a profile patch; false: it is too short to hold one.
func ParseTensorClamp(b []byte) (TensorClamp, bool) {
	if len(b) < TensorClampLen {
		return TensorClamp{}, false
	}
	return TensorClamp{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])}, true
}

// blocksLen, appendBlocks and twoBlocks serve bodies of one block of known length and the extensions behind it.
func blocksLen(first, ext []byte) uint64 {
	if len(ext) == 0 {
		return uint64(len(first))
	}
	return align8(uint64(len(first))) + uint64(len(ext))
}

func appendBlocks(b, first, ext []byte) []byte {
	start := len(b)
	b = append(b, first...)
	if len(ext) == 0 {
		return b
	}
	return append(pad(b, start), ext...)
}

func twoBlocks(body *bodyReader, n uint64, name string) (first, ext []byte, err error) {
	if first, err = body.block(n, name); err != nil {
		return nil, nil, err
	}
	ext, err = body.rest()
	return first, ext, err
}
