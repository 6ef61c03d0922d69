package onnx

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The test writes its models itself: the few fields of onnx.proto that they need.

type message []byte

func (m message) varint(field int, v int64) message {
	m = binary.AppendUvarint(m, uint64(field)<<3)
	return binary.AppendUvarint(m, uint64(v))
}

func (m message) bytes(field int, b []byte) message {
	m = binary.AppendUvarint(m, uint64(field)<<3|2)
	m = binary.AppendUvarint(m, uint64(len(b)))
	return append(m, b...)
}

func (m message) text(field int, s string) message { return m.bytes(field, []byte(s)) }

// value is a ValueInfoProto; a dimension of -1 is a free one.
func value(name string, elem int64, dims ...int64) message {
	var shape message
	for _, d := range dims {
		if d < 0 {
			shape = shape.bytes(1, message{}.text(2, "N"))
		} else {
			shape = shape.bytes(1, message{}.varint(1, d))
		}
	}
	tensor := message{}.varint(1, elem).bytes(2, shape)
	return message{}.text(1, name).bytes(2, message{}.bytes(1, tensor))
}

func ints(name string, v ...int64) message {
	a := message{}.text(1, name)
	for _, x := range v {
		a = a.varint(8, x)
	}
	return a.varint(20, 7)
}

func integer(name string, v int64) message { return message{}.text(1, name).varint(3, v).varint(20, 2) }

func node(op string, in []string, out string, attributes ...message) message {
	var n message
	for _, i := range in {
		n = n.text(1, i)
	}
	n = n.text(2, out).text(4, op)
	for _, a := range attributes {
		n = n.bytes(5, a)
	}
	return n
}

func floatTensor(name string, dims []int64, data []float32) message {
	var t message
	for _, d := range dims {
		t = t.varint(1, d)
	}
	var raw []byte
	for _, x := range data {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return t.varint(2, 1).text(8, name).bytes(9, raw)
}

func save(t *testing.T, name string, nodes, initializers, inputs, outputs []message) string {
	g := message{}
	for _, n := range nodes {
		g = g.bytes(1, n)
	}
	g = g.text(2, name)
	for _, x := range initializers {
		g = g.bytes(5, x)
	}
	for _, x := range inputs {
		g = g.bytes(11, x)
	}
	for _, x := range outputs {
		g = g.bytes(12, x)
	}
	m := message{}.varint(1, 8).bytes(7, g).bytes(8, message{}.varint(2, 13))
	p := filepath.Join(t.TempDir(), name+".onnx")
	require.NoError(t, os.WriteFile(p, m, 0o600))
	return p
}

const (
	elemFloat = 1
	elemUint8 = 2
	elemInt64 = 7
)

// weights of a 3×3 convolution from 3 to 2 channels.
func weights() []float32 {
	w := make([]float32, 2*3*3*3)
	for i := range w {
		w[i] = float32(i%7)/8 - 0.25
	}
	return w
}

// convModel: images [N,3,8,8] → features [N,2,8,8] = relu(conv), mean [N,2,1,1], best [N,1,8,8] int64 = the larger channel.
func convModel(t *testing.T) string {
	return save(t, "conv", []message{
		node("Conv", []string{"images", "w"}, "c", ints("kernel_shape", 3, 3), ints("pads", 1, 1, 1, 1)),
		node("Relu", []string{"c"}, "features"),
		node("GlobalAveragePool", []string{"features"}, "mean"),
		node("ArgMax", []string{"features"}, "best", integer("axis", 1)),
	}, []message{floatTensor("w", []int64{2, 3, 3, 3}, weights())},
		[]message{value("images", elemFloat, -1, 3, 8, 8)},
		[]message{value("features", elemFloat, -1, 2, 8, 8), value("mean", elemFloat, -1, 2, 1, 1), value("best", elemInt64, -1, 1, 8, 8)})
}

// byteModel: a picture [H,W,3] of bytes, without batch axis → its mean colour.
func byteModel(t *testing.T) string {
	return save(t, "bytes", []message{
		node("Cast", []string{"picture"}, "f", integer("to", 1)),
		node("ReduceMean", []string{"f"}, "colour", ints("axes", 0, 1), integer("keepdims", 0)),
	}, nil, []message{value("picture", elemUint8, -1, -1, 3)}, []message{value("colour", elemFloat, 3)})
}

// twoInputs is a model that cannot be served.
func twoInputs(t *testing.T) string {
	return save(t, "two", []message{node("Add", []string{"a", "b"}, "c")}, nil,
		[]message{value("a", elemFloat, 1, 3, 2, 2), value("b", elemFloat, 1, 3, 2, 2)}, []message{value("c", elemFloat, 1, 3, 2, 2)})
}

func vectorModel(t *testing.T) string {
	return save(t, "vector", []message{node("Relu", []string{"a"}, "c")}, nil, []message{value("a", elemFloat, 1, 10)},
		[]message{value("c", elemFloat, 1, 10)})
}
