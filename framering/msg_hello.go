package framering

import (
	"encoding/binary"
	"unicode/utf8"
)

// Flags are the subscribe_flags of HELLO_REQ (§10.9).
type Flags uint32

// Zero flags mean WantsFrames alone. Bits 2 to 31 are reserved and ignored.
const (
	WantsFrames  Flags = 1 << 0
	WantsPackets Flags = 1 << 1
)

// effective resolves the default and drops reserved bits.
func (f Flags) effective() Flags {
	if f &= WantsFrames | WantsPackets; f != 0 {
		return f
	}
	return WantsFrames
}

// Mode is the subscriber's reading mode (cuframes_subscriber_mode_t).
type Mode uint32

// The numbers are part of the wire contract; the specification leaves them open.
const (
	NewestOnly  Mode = 0
	StrictOrder Mode = 1
)

// helloRequest is HELLO_REQ (§3.3, §10.9).
//
//	4   proto_version       the consumer's
//	4   consumer_name_len   N
//	N   consumer_name       UTF-8, no terminator
//	4   cuda_device         i32
//	4   mode                Mode
//	4   subscribe_flags     Flags; at offset 16+N, the first of 12 reserved bytes
//	8   reserved            0
type helloRequest struct {
	Version    uint32
	Name       string
	CUDADevice int32
	Mode       Mode
	Flags      Flags // as sent; effective gives the meaning
}

func (helloRequest) msgType() MsgType { return msgHelloReq }

func (m helloRequest) appendPayload(b []byte, d *dialect) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, m.Version)
	b = appendText(b, m.Name)
	b = le.AppendUint32(b, uint32(m.CUDADevice))
	b = le.AppendUint32(b, uint32(m.Mode))
	b = appendReserved(b)
	if d.subscribeFlags {
		le.PutUint32(b[len(b)-reservedSize:], uint32(m.Flags))
	}
	return b
}

func parseHelloRequest(p []byte, d *dialect) (helloRequest, error) {
	c := cursor{b: p}
	m := helloRequest{Version: c.u32(), Name: c.text(), CUDADevice: int32(c.u32()), Mode: Mode(c.u32())}
	reserved := cursor{b: c.take(reservedSize)}
	if err := c.end(msgHelloReq); err != nil {
		return helloRequest{}, err
	}
	if d.subscribeFlags {
		m.Flags = Flags(reserved.u32())
	}
	if !utf8.ValidString(m.Name) {
		return helloRequest{}, malformed(msgHelloReq, "consumer_name is not UTF-8")
	}
	return m, nil
}

// helloResponse is HELLO_RESP (§3.4, §10.9).
//
//	4   result                i32; when negative, 12 zero bytes follow and nothing else
//	4   proto_version_actual  the publisher's
//	4   ring_size             0 = packet-only publisher
//	4   ownership_mode        0 (LIBRARY)
//	64  frame_meta            FrameMeta
//	4   shm_path_len          N
//	N   shm_path              written absolute
//
// and then, with a packet ring,
//
//	4   packet_shm_path_len   M > 0
//	M   packet_shm_path       written relative to /dev/shm
//	4   codec_id              FFmpeg's
//	8   initial_packet_seq    last_keyframe_seq now
//
// or 12 zero bytes. A payload that ends behind shm_path means "no packets" as well.
type helloResponse struct {
	Result           Code
	Version          uint32
	RingSize         uint32
	Ownership        uint32
	Meta             FrameMeta
	ShmPath          string
	PacketPath       string // "" = no packet ring
	CodecID          uint32
	InitialPacketSeq uint64
}

func (helloResponse) msgType() MsgType { return msgHelloResp }

func (m helloResponse) appendPayload(b []byte, d *dialect) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(m.Result))
	if m.Result < 0 {
		return appendReserved(b)
	}
	b = le.AppendUint32(b, m.Version)
	b = le.AppendUint32(b, m.RingSize)
	b = le.AppendUint32(b, m.Ownership)
	b = m.Meta.append(b)
	b = appendText(b, m.ShmPath)
	if m.PacketPath == "" || !d.subscribeFlags {
		return appendReserved(b)
	}
	b = appendText(b, m.PacketPath)
	b = le.AppendUint32(b, m.CodecID)
	return le.AppendUint64(b, m.InitialPacketSeq)
}

func parseHelloResponse(p []byte, d *dialect) (helloResponse, error) {
	c := cursor{b: p}
	m := helloResponse{Result: Code(c.u32())}
	if err := c.end(msgHelloResp); err != nil || m.Result < 0 {
		return m, err
	}
	if m.Result > 0 {
		return helloResponse{}, malformed(msgHelloResp, "result %d", m.Result)
	}
	m.Version, m.RingSize, m.Ownership = c.u32(), c.u32(), c.u32()
	if meta := c.take(metaSize); meta != nil {
		m.Meta = parseFrameMeta((*[metaSize]byte)(meta))
	}
	m.ShmPath = c.text()
	if err := c.end(msgHelloResp); err != nil {
		return helloResponse{}, err
	}
	if m.RingSize > MaxRingSize {
		return helloResponse{}, malformed(msgHelloResp, "ring_size %d, the limit is %d", m.RingSize, MaxRingSize)
	}
	if !d.subscribeFlags || len(c.b) == 0 {
		return m, nil
	}
	if m.PacketPath = c.text(); m.PacketPath != "" {
		m.CodecID, m.InitialPacketSeq = c.u32(), c.u64()
	}
	if err := c.end(msgHelloResp); err != nil {
		return helloResponse{}, err
	}
	return m, nil
}
