package session

import "github.com/cfpipe/cfpipe/nnrp"

// Patch applies a SESSION_PATCH as the server: every field that can be is, the others are named in rejected_patch_mask together with
// the first reason (section 6.6).
func (a *Agreement) Patch(p *nnrp.SessionPatch) *nnrp.SessionPatchAck {
	ack := &nnrp.SessionPatchAck{}
	field := func(bit uint32, reason uint16, apply func()) {
		if p.PatchMask&bit == 0 {
			return
		}
		if reason == nnrp.ReasonNone {
			apply()
			ack.AppliedPatchMask |= bit
			return
		}
		ack.RejectedPatchMask |= bit
		if ack.Reason == nnrp.ReasonNone {
			ack.Reason = reason
		}
	}
	either := func(bad bool, reason uint16) uint16 {
		if bad {
			return reason
		}
		return nnrp.ReasonNone
	}
	if p.ProfileID != 0 && p.ProfileID != nnrp.ProfileTensor { // the profile itself cannot change
		ack.RejectedPatchMask, ack.Reason = p.PatchMask, nnrp.ReasonImmutableField
	} else {
		field(^uint32(nnrp.PatchAll), nnrp.ReasonInvalidFieldMask, nil)
		ack.RejectedPatchMask &= p.PatchMask
		tooFast := p.TargetCadenceX100 > 65535 || a.maxCadence > 0 && p.TargetCadenceX100 > uint32(a.maxCadence)
		field(nnrp.PatchTargetCadence, either(tooFast, nnrp.ReasonOutOfRange), func() { a.Cadence = p.TargetCadenceX100 })
		field(nnrp.PatchQualityTier, either(p.QualityTier > a.maxQuality, nnrp.ReasonOutOfRange), func() { a.Quality = p.QualityTier })
		field(nnrp.PatchDegradePolicy, either(p.DegradePolicy > nnrp.DegradeAllowAggressiveFallback, nnrp.ReasonUnsupportedValue),
			func() { a.Degrade = p.DegradePolicy })
		field(nnrp.PatchActiveLaneMask, either(p.ActiveLaneMask == 0 || p.ActiveLaneMask&^allLanes(a.Lanes) != 0, nnrp.ReasonOutOfRange),
			func() { a.LaneMask = p.ActiveLaneMask })
		field(nnrp.PatchPreferredCodec, either(p.PreferredCodecBitmap&a.Codecs == 0, nnrp.ReasonUnsupportedValue),
			func() { a.CodecPreferred = p.PreferredCodecBitmap & a.Codecs })
		field(nnrp.PatchPreferredCompression, either(p.PreferredCompressionBitmap&a.Compression == 0, nnrp.ReasonUnsupportedValue),
			func() { a.CompressionPrefd = p.PreferredCompressionBitmap & a.Compression })
		c, ok := nnrp.ParseTensorClamp(p.ProfilePatch)
		reason := either(!ok, nnrp.ReasonInvalidFieldMask)
		if ok {
			l := a.clampLimit
			reason = either(c.MinWidth > c.MaxWidth || c.MinHeight > c.MaxHeight || c.MinWidth < l.MinWidth || c.MinHeight < l.MinHeight ||
				c.MaxWidth > l.MaxWidth || c.MaxHeight > l.MaxHeight, nnrp.ReasonOutOfRange)
		}
		field(nnrp.PatchProfile, reason, func() { a.Clamp = c })
	}
	switch {
	case ack.RejectedPatchMask == 0:
		ack.Status = nnrp.PatchAccepted
	case ack.AppliedPatchMask == 0:
		ack.Status = nnrp.PatchRejected
	default:
		ack.Status = nnrp.PatchPartial
	}
	ack.EffectiveProfileID = nnrp.ProfileTensor
	ack.EffectiveTargetCadenceX100 = a.Cadence
	ack.EffectiveQualityTier = a.Quality
	ack.EffectiveDegradePolicy = a.Degrade
	ack.EffectiveLaneMask = a.LaneMask
	ack.EffectiveCodecBitmap = a.CodecPreferred
	ack.EffectiveCompressionBitmap = a.CompressionPrefd
	ack.ProfilePatchAck = a.Clamp.Append(nil)
	return ack
}

// Patched takes over what a SESSION_PATCH_ACK says is in effect, as the client.
func (a *Agreement) Patched(ack *nnrp.SessionPatchAck) {
	a.Cadence = ack.EffectiveTargetCadenceX100
	a.Quality = ack.EffectiveQualityTier
	a.Degrade = ack.EffectiveDegradePolicy
	a.LaneMask = ack.EffectiveLaneMask
	a.CodecPreferred = ack.EffectiveCodecBitmap & a.Codecs
	a.CompressionPrefd = ack.EffectiveCompressionBitmap & a.Compression
	if c, ok := nnrp.ParseTensorClamp(ack.ProfilePatchAck); ok {
		a.Clamp = c
	}
}
