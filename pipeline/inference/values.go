package inference

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Elements decodes the tiles of a section into its elements' little-endian bytes, one tile after the other.
func Elements(s *nnrp.Section, codecs []nnrp.Codec, limit int64) ([]byte, error) {
	if s.DType.Size() == 0 {
		return nil, fmt.Errorf("infer: section %d has %s", s.RoleID, s.DType)
	}
	n := s.TileBytes() * int64(len(s.LengthTable)/4)
	if n > limit {
		return nil, fmt.Errorf("infer: section %d of %d bytes is above %d", s.RoleID, n, limit)
	}
	out := make([]byte, 0, n)
	_, err := forTiles(s, codecs, nil, func(_ int, tile []byte) { out = append(out, tile...) })
	return out, err
}

// AppendNumbers adds the elements to a JSON array's inside: "1,2.5,3". What JSON has no number for (NaN, infinities) is null.
func AppendNumbers(b []byte, d nnrp.DType, elements []byte) []byte {
	e := d.Size()
	for i := 0; i+e <= len(elements); i += e {
		if i > 0 {
			b = append(b, ',')
		}
		v, bits := number(d, elements[i:])
		if math.IsNaN(v) || math.IsInf(v, 0) {
			b = append(b, "null"...)
			continue
		}
		b = strconv.AppendFloat(b, v, 'g', -1, bits)
	}
	return b
}

// Largest returns the largest of the elements that is a number, minus infinity when there is none.
func Largest(d nnrp.DType, elements []byte) float64 {
	most, e := math.Inf(-1), d.Size()
	for i := 0; i+e <= len(elements); i += e {
		if v, _ := number(d, elements[i:]); v > most {
			most = v
		}
	}
	return most
}

// AppendBase64 adds the elements' bytes as a JSON string.
func AppendBase64(b, elements []byte) []byte {
	b = append(b, '"')
	b = base64.StdEncoding.AppendEncode(b, elements)
	return append(b, '"')
}

// number reads one element, and says how many bits its shortest form needs.
func number(d nnrp.DType, p []byte) (float64, int) {
	switch d {
	case nnrp.FP32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(p))), 32
	case nnrp.FP16:
		return small(uint32(binary.LittleEndian.Uint16(p)), 5, 10, true), 32
	case nnrp.FP8E5M2:
		return small(uint32(p[0]), 5, 2, true), 32
	case nnrp.FP8E4M3:
		return small(uint32(p[0]), 4, 3, false), 32
	case nnrp.Int8:
		return float64(int8(p[0])), 64
	case nnrp.Uint8:
		return float64(p[0]), 64
	case nnrp.Int16:
		return float64(int16(binary.LittleEndian.Uint16(p))), 64
	default:
		return float64(binary.LittleEndian.Uint16(p)), 64
	}
}

// small reads a float of 1 sign bit, exp and mant bits. With ieee the highest exponent means infinity and NaN; without, as in
// fp8_e4m3, only all ones is NaN.
func small(v uint32, exp, mant uint, ieee bool) float64 {
	sign := 1.0
	if v>>(exp+mant)&1 != 0 {
		sign = -1
	}
	e, m := int(v>>mant&(1<<exp-1)), float64(v&(1<<mant-1))
	bias := 1<<(exp-1) - 1
	switch {
	case ieee && e == 1<<exp-1:
		if m == 0 {
			return sign * math.Inf(1)
		}
		return math.NaN()
	case !ieee && e == 1<<exp-1 && m == float64(uint(1)<<mant-1):
		return math.NaN()
	case e == 0:
		return sign * math.Ldexp(m, 1-bias-int(mant))
	}
	return sign * math.Ldexp(m+float64(uint(1)<<mant), e-bias-int(mant))
}

// ErrNoFormat: the runtime's model takes no tensor that a picture can be turned into.
var ErrNoFormat = errors.New("infer: no tensor format in common with the runtime")

// Choose picks the tensor for pictures of srcW × srcH: what the caller wants where that is set, else what the model takes, else the
// picture's own size as uint8, NHWC, RGB.
func Choose(want Format, wantDType, wantLayout bool, model Spec, srcW, srcH int) (Format, error) {
	f := want
	pick := func(v *int, m, d int) {
		if *v == 0 {
			*v = m
		}
		if *v == 0 {
			*v = d
		}
	}
	pick(&f.Width, model.Width, srcW)
	pick(&f.Height, model.Height, srcH)
	pick(&f.Channels, model.Channels, 3)
	if !wantDType {
		f.DType = nnrp.Uint8
		for i, d := range model.DTypes {
			if c := (Format{Width: 1, Height: 1, Channels: 1, DType: d}); c.check() == nil && (i == 0 || d == nnrp.Uint8) {
				f.DType = d
			}
		}
	}
	if !wantLayout && len(model.Layouts) > 0 {
		f.Layout = model.Layouts[0]
	}
	if err := f.check(); err != nil {
		return f, fmt.Errorf("%w: %w", ErrNoFormat, err)
	}
	return f, nil
}
