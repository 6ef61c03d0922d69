package bitstream

// JPEGSize reads the picture size from a JPEG's frame header.
func JPEGSize(b []byte) (width, height int, ok bool) {
	if len(b) < 4 || b[0] != 0xFF || b[1] != 0xD8 {
		return 0, 0, false
	}
	for i := 2; i+4 <= len(b); {
		if b[i] != 0xFF {
			return 0, 0, false
		}
		m := b[i+1]
		if m == 0xFF { // fill byte
			i++
			continue
		}
		if m == 0x01 || m >= 0xD0 && m <= 0xD8 {
			i += 2
			continue
		}
		n := int(b[i+2])<<8 | int(b[i+3])
		if m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xC8 && m != 0xCC {
			if i+9 > len(b) {
				return 0, 0, false
			}
			return int(b[i+7])<<8 | int(b[i+8]), int(b[i+5])<<8 | int(b[i+6]), true
		}
		if m == 0xDA || m == 0xD9 || n < 2 {
			return 0, 0, false
		}
		i += 2 + n
	}
	return 0, 0, false
}
