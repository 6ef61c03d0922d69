package nnrp

import "fmt"

// MsgType is the msg_type of the common header (section 9).
type MsgType uint8

// Message types.
const (
	MsgClientHello     MsgType = 0x01
	MsgServerHelloAck  MsgType = 0x02
	MsgSessionPatch    MsgType = 0x03
	MsgSessionPatchAck MsgType = 0x04
	MsgClose           MsgType = 0x05
	MsgError           MsgType = 0x06
	MsgFrameSubmit     MsgType = 0x10
	MsgFrameCancel     MsgType = 0x11
	MsgResultPush      MsgType = 0x12
	MsgResultDrop      MsgType = 0x13
	MsgCachePut        MsgType = 0x14
	MsgCacheAck        MsgType = 0x15
	MsgCacheInvalidate MsgType = 0x16
	MsgPing            MsgType = 0x20
	MsgPong            MsgType = 0x21
)

// messages holds, for each type, its name and the size of its fixed metadata.
var messages = [256]struct {
	name    string
	metaLen uint32
}{
	MsgClientHello: {"CLIENT_HELLO", ClientHelloLen}, MsgServerHelloAck: {"SERVER_HELLO_ACK", ServerHelloAckLen},
	MsgSessionPatch: {"SESSION_PATCH", SessionPatchLen}, MsgSessionPatchAck: {"SESSION_PATCH_ACK", SessionPatchAckLen},
	MsgClose: {"CLOSE", 0}, MsgError: {"ERROR", ErrorMessageLen},
	MsgFrameSubmit: {"FRAME_SUBMIT", FrameSubmitLen}, MsgFrameCancel: {"FRAME_CANCEL", 0},
	MsgResultPush: {"RESULT_PUSH", ResultPushLen}, MsgResultDrop: {"RESULT_DROP", 0},
	MsgCachePut: {"CACHE_PUT", CachePutLen}, MsgCacheAck: {"CACHE_ACK", CacheAckLen},
	MsgCacheInvalidate: {"CACHE_INVALIDATE", CacheInvalidateLen}, MsgPing: {"PING", 0}, MsgPong: {"PONG", 0},
}

// Known tells whether section 9 names the type.
func (t MsgType) Known() bool { return messages[t].name != "" }

// MetaLen returns the size of the type's fixed metadata in bytes.
func (t MsgType) MetaLen() int { return int(messages[t].metaLen) }

// IsFrame tells whether the message concerns one frame.
func (t MsgType) IsFrame() bool { return t >= MsgFrameSubmit && t <= MsgResultDrop }

func (t MsgType) String() string {
	if n := messages[t].name; n != "" {
		return n
	}
	return fmt.Sprintf("MSG_0x%02x", uint8(t))
}

// Flags are the common header's flags (section 8).
type Flags uint32

// Header flags; the other bits are reserved and ignored.
const (
	FlagAckRequired Flags = 1 << iota
	FlagCanDrop
	FlagStale
	FlagEOS
	FlagRetransmit
	FlagKeyframe
)

// Identity on the wire (section 8) and in negotiation.
const (
	VersionMajor = 1
	WireFormat   = 0
	ALPN         = "nnrp/1"

	StagePreview1 = 1 << 0 // bit of supported_stage_bitmap
)

// ProfileTensor is the profile_id of the tensor profile; its bit in profile bitmaps is ProfileTensorBit.
const (
	ProfileTensor    = 1
	ProfileTensorBit = 1 << 0
)

// PayloadTensor is the payload_kind of tensors, PayloadTensorSDK what public SDKs send for it; readers accept both.
const (
	PayloadTensor    = 0
	PayloadTensorSDK = 1

	PayloadTensorBit = 1 << 0 // of payload kind bitmaps
)

// FrameClass says what may depend on a frame and what may happen to it (section 7.3).
type FrameClass uint8

// Frame classes.
const (
	ClassKeyframe    FrameClass = 0
	ClassDelta       FrameClass = 1
	ClassRetransmit  FrameClass = 2
	ClassDiscardable FrameClass = 3
)

// Codec and compression ids; bitmaps are 1 << id.
const (
	CodecRaw = 0
	CodecLZ4 = 1 // one LZ4 block a tile
)

// DType is a dtype_id (section 12.2); bitmaps are 1 << id.
type DType uint8

// Numeric formats.
const (
	FP16 DType = iota
	FP32
	FP8E4M3
	FP8E5M2
	Int8
	Uint8
	Int16
	Uint16
	dtypeCount
)

var dtypes = [dtypeCount]struct {
	name string
	size int
}{{"fp16", 2}, {"fp32", 4}, {"fp8_e4m3", 1}, {"fp8_e5m2", 1}, {"int8", 1}, {"uint8", 1}, {"int16", 2}, {"uint16", 2}}

// Size returns the bytes of one element, 0 for an unknown type.
func (d DType) Size() int {
	if d < dtypeCount {
		return dtypes[d].size
	}
	return 0
}

func (d DType) String() string {
	if d < dtypeCount {
		return dtypes[d].name
	}
	return fmt.Sprintf("dtype_%d", uint8(d))
}

// ParseDType returns the type with that name of section 12.2.
func ParseDType(name string) (DType, error) {
	for d := range dtypes {
		if dtypes[d].name == name {
			return DType(d), nil
		}
	}
	return 0, fmt.Errorf("nnrp: dtype %q is not one of fp16, fp32, fp8_e4m3, fp8_e5m2, int8, uint8, int16, uint16", name)
}

// Layout is a layout_id; bitmaps are 1 << id.
type Layout uint8

// Memory layouts.
const (
	NHWC Layout = 0
	NCHW Layout = 1
)

func (l Layout) String() string {
	switch l {
	case NHWC:
		return "nhwc"
	case NCHW:
		return "nchw"
	}
	return fmt.Sprintf("layout_%d", uint8(l))
}

// ParseLayout returns the layout called nhwc or nchw.
func ParseLayout(name string) (Layout, error) {
	switch name {
	case "nhwc":
		return NHWC, nil
	case "nchw":
		return NCHW, nil
	}
	return 0, fmt.Errorf("nnrp: layout %q is not one of nhwc, nchw", name)
}

// Scale policies of a section.
const (
	ScaleNone       = 0
	ScalePerTensor  = 1
	ScalePerTile    = 2
	ScalePerChannel = 3
)

// Status codes of RESULT_PUSH.
const (
	StatusSuccess  = 0
	StatusDegraded = 1
	StatusRejected = 2
	StatusFailed   = 3
)

// result_flags of RESULT_PUSH.
const (
	ResultStale    = 1
	ResultFallback = 2
	ResultPartial  = 4
)

// auth_status of SERVER_HELLO_ACK.
const (
	AuthAccepted  = 0
	AuthAnonymous = 1
	AuthRejected  = 2
	AuthExpired   = 3
)

// degrade_policy (section 6.5).
const (
	DegradeServerDefault           = 0
	DegradePreferQuality           = 1
	DegradePreferLatency           = 2
	DegradeAllowAggressiveFallback = 3
)
