package nnrp

import "fmt"

// Extension is one entry of a control_extension_block (section 10.3).
//
//	Offset Size Field
//	0      2    ext_type
//	2      2    ext_flags   0x0001 CRITICAL
//	4      4    ext_len
//	8      …    payload, zero-padded to a multiple of 8
type Extension struct {
	Type  uint16
	Flags uint16
	Data  []byte
}

// ExtCritical: the receiver must refuse the message when it does not know the type.
const ExtCritical = 0x0001

// Ranges of ext_type; 0 is not used.
const (
	ExtStandardFirst   = 0x0001
	ExtPreviewFirst    = 0x4000
	ExtVendorFirst     = 0x8000
	ExtLocalDebugFirst = 0xC000
)

const extensionHeaderLen = 8

// AppendExtension adds an entry with its padding to a control_extension_block.
func AppendExtension(b []byte, e Extension) []byte {
	b = le.AppendUint16(b, e.Type)
	b = le.AppendUint16(b, e.Flags)
	b = le.AppendUint32(b, uint32(len(e.Data)))
	b = append(b, e.Data...)
	return append(b, zeros8[:int(align8(uint64(len(e.Data))))-len(e.Data)]...)
}

// NextExtension returns the first entry of a block and the rest of it. The block is one that a Parse method has accepted.
func NextExtension(block []byte) (e Extension, rest []byte, ok bool) {
	if len(block) < extensionHeaderLen {
		return e, nil, false
	}
	n := uint64(le.Uint32(block[4:]))
	size := extensionHeaderLen + align8(n)
	if size > uint64(len(block)) {
		return e, nil, false
	}
	e.Type, e.Flags = le.Uint16(block), le.Uint16(block[2:])
	e.Data = block[extensionHeaderLen : extensionHeaderLen+n : extensionHeaderLen+n]
	return e, block[size:], true
}

// CheckCritical answers unsupported_capability when the block holds a CRITICAL entry whose type known does not accept (nil: none).
func CheckCritical(block []byte, known func(extType uint16) bool) error {
	for {
		e, rest, ok := NextExtension(block)
		if !ok {
			return nil
		}
		if e.Flags&ExtCritical != 0 && (known == nil || !known(e.Type)) {
			return NewError(CodeUnsupportedCapability, "critical extension 0x%04x is not known here", e.Type)
		}
		block = rest
	}
}

// checkExtensions walks a block that begins base bytes into its message.
func checkExtensions(t MsgType, block []byte, base int) error {
	for off := 0; off < len(block); {
		left := len(block) - off
		if left < extensionHeaderLen {
			return malformedBody(t, base+off, "extension header of 8 bytes does not fit in the %d that are left", left)
		}
		if le.Uint16(block[off:]) == 0 {
			return malformedBody(t, base+off, "ext_type 0 is not used")
		}
		n := uint64(le.Uint32(block[off+4:]))
		if size := extensionHeaderLen + align8(n); size > uint64(left) {
			return malformedBody(t, base+off+4, "ext_len %d with its padding does not fit in the %d bytes that are left", n, left-extensionHeaderLen)
		}
		data := off + extensionHeaderLen + int(n)
		off = off + extensionHeaderLen + int(align8(n))
		for i := data; i < off; i++ {
			if block[i] != 0 {
				return malformedBody(t, base+i, "padding is not zero")
			}
		}
	}
	return nil
}

// validExtensions is checkExtensions for an encoder.
func validExtensions(t MsgType, block []byte) error {
	if err := checkExtensions(t, block, 0); err != nil {
		return fmt.Errorf("nnrp: encode %s: control_extension_block: %w", t, err)
	}
	return nil
}
