package framering

import "encoding/binary"

// vmmFDs is VMM_FDS (§3.7). The descriptors travel beside it as SCM_RIGHTS; with fd_count 0 there is no ancillary data.
//
//	4   fd_count          ring_size, or 0 for who gets no frames
//	8   frame_size_bytes  of one mapping: the frame rounded up to the granularity
//	8   vmm_granularity   the CUDA driver's (usually 2 MiB), or the page size of memfds
//	12  reserved          0
type vmmFDs struct {
	Count       uint32
	FrameSize   uint64
	Granularity uint64
}

func (vmmFDs) msgType() MsgType { return msgVMMFDs }

func (m vmmFDs) appendPayload(b []byte, _ *dialect) []byte {
	b = binary.LittleEndian.AppendUint32(b, m.Count)
	b = binary.LittleEndian.AppendUint64(b, m.FrameSize)
	b = binary.LittleEndian.AppendUint64(b, m.Granularity)
	return appendReserved(b)
}

// maxGranularity bounds what a reader rounds up to; drivers use 64 KiB to 32 MiB.
const maxGranularity = 1 << 30

func parseVMMFDs(p []byte) (vmmFDs, error) {
	c := cursor{b: p}
	m := vmmFDs{Count: c.u32(), FrameSize: c.u64(), Granularity: c.u64()}
	c.take(reservedSize)
	if err := c.end(msgVMMFDs); err != nil {
		return vmmFDs{}, err
	}
	switch {
	case m.Count > maxFDs:
		return vmmFDs{}, malformed(msgVMMFDs, "fd_count %d, the limit is %d", m.Count, maxFDs)
	case m.Count == 0:
	case m.FrameSize == 0 || m.FrameSize > maxFrameBytes:
		return vmmFDs{}, malformed(msgVMMFDs, "frame_size_bytes %d", m.FrameSize)
	case m.Granularity == 0 || m.Granularity > maxGranularity || m.Granularity&(m.Granularity-1) != 0:
		return vmmFDs{}, malformed(msgVMMFDs, "vmm_granularity %d", m.Granularity)
	}
	return m, nil
}
