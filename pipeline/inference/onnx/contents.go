package onnx

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	ort "github.com/yalue/onnxruntime_go"
)

// contents copies a tensor out of the library: little-endian bytes as they are where the wire has the dtype, else as fp32. It also
// returns the number of elements.
func contents(v ort.Value) (b []byte, n int, err error) {
	switch t := v.(type) {
	case *ort.CustomDataTensor: // fp16, fp8, bool
		b = append([]byte(nil), t.GetData()...)
		n = int(t.GetShape().FlattenedSize())
		if len(b) == n && t.DataType() == ort.TensorElementDataTypeBool {
			wide := make([]byte, 0, 4*n)
			for _, x := range b {
				wide = appendFloat(wide, float32(x&1))
			}
			b = wide
		}
		return b, n, nil
	case *ort.Tensor[float32]:
		return raw(t.GetData()), len(t.GetData()), nil
	case *ort.Tensor[uint8]:
		return raw(t.GetData()), len(t.GetData()), nil
	case *ort.Tensor[int8]:
		return raw(t.GetData()), len(t.GetData()), nil
	case *ort.Tensor[uint16]:
		return raw(t.GetData()), len(t.GetData()), nil
	case *ort.Tensor[int16]:
		return raw(t.GetData()), len(t.GetData()), nil
	case *ort.Tensor[int32]:
		return floats(t.GetData()), len(t.GetData()), nil
	case *ort.Tensor[int64]:
		return floats(t.GetData()), len(t.GetData()), nil
	case *ort.Tensor[float64]:
		return floats(t.GetData()), len(t.GetData()), nil
	case *ort.Tensor[bool]:
		for _, x := range t.GetData() {
			var f float32
			if x {
				f = 1
			}
			b = appendFloat(b, f)
		}
		return b, len(t.GetData()), nil
	}
	return nil, 0, fmt.Errorf("values of %T cannot be sent", v)
}

// raw copies numbers as bytes; the machines that cfpipe is built for are little-endian, like the wire.
func raw[T float32 | uint8 | int8 | uint16 | int16](data []T) []byte {
	if len(data) == 0 {
		return nil
	}
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&data[0])), len(data)*int(unsafe.Sizeof(data[0])))...)
}

func floats[T int32 | int64 | float64](data []T) []byte {
	b := make([]byte, 0, 4*len(data))
	for _, x := range data {
		b = appendFloat(b, float32(x))
	}
	return b
}

func appendFloat(b []byte, f float32) []byte {
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
}
