package nnrp

// Limits bound what a parser accepts. The zero value means the defaults below; a session lowers or raises them to what was agreed.
type Limits struct {
	MaxBody     uint32 // bytes of a FRAME_SUBMIT, RESULT_PUSH or CACHE_PUT body; 0 = DefaultMaxBody
	MaxSections uint16 // tensor sections a frame; 0 = DefaultMaxSections
	MaxTiles    uint16 // tiles a frame; 0 = 65535, all that the wire can say
	SDK         bool   // read and write CLIENT_HELLO's body in the public SDKs' order: extensions, then auth, no padding
}

// Defaults and fixed bounds.
const (
	// DefaultMaxBody holds a 1920×1080×3 fp32 tensor with room to spare.
	DefaultMaxBody = 32 << 20
	// DefaultMaxSections is above what models take or give; each costs a reader about 100 bytes.
	DefaultMaxSections = 64
	// MaxControlBody bounds control messages: tokens and extensions are small, and everyone may send a CLIENT_HELLO.
	MaxControlBody = 64 << 10
	// maxUnknownMeta bounds the metadata of types that a later stage may add.
	maxUnknownMeta = 4096
	// maxBitset is a bit for every id that the u16 modes can name.
	maxBitset = 65536 / 8
)

func (l *Limits) bodyLimit(t MsgType) uint32 {
	switch t {
	case MsgFrameSubmit, MsgResultPush, MsgCachePut:
		if l.MaxBody == 0 {
			return DefaultMaxBody
		}
		return l.MaxBody
	}
	return MaxControlBody
}

func (l *Limits) sections() uint16 {
	if l.MaxSections == 0 {
		return DefaultMaxSections
	}
	return l.MaxSections
}

func (l *Limits) tiles() uint16 {
	if l.MaxTiles == 0 {
		return 65535
	}
	return l.MaxTiles
}
