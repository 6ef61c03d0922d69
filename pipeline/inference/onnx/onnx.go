// Package onnx is the engine for ONNX models, on the ONNX Runtime library that is found when the program runs.
package onnx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// Options configure Open.
type Options struct {
	Model    string // path of the .onnx file
	Library  string // path of libonnxruntime.so; "" = $CFPIPE_ONNXRUNTIME, else where the system's loader finds it
	Device   string // "auto" (or ""): CUDA where it is there, else CPU; "cpu", "cuda"
	MaxBatch int    // for models whose batch axis is free; 0 = 8
	Threads  int    // of the CPU; 0 = the library's choice
}

// ErrNoLibrary: ONNX Runtime was not found.
var ErrNoLibrary = errors.New("ONNX Runtime library not found")

const remedy = "get libonnxruntime.so 1.23 or later (the archive onnxruntime-linux-x64 of the ONNX Runtime releases, " +
	"or the npm package onnxruntime-node) and name it with --onnxruntime FILE or $CFPIPE_ONNXRUNTIME"

// environment is the library, which can be loaded once a process.
var environment struct {
	sync.Mutex
	path string
	up   bool
}

func load(path string) error {
	environment.Lock()
	defer environment.Unlock()
	if path == "" {
		path = os.Getenv("CFPIPE_ONNXRUNTIME")
	}
	if environment.up {
		if path != "" && path != environment.path {
			return fmt.Errorf("onnx: %s is loaded already, %s cannot be beside it", environment.path, path)
		}
		return nil
	}
	candidates := []string{"libonnxruntime.so.1", "libonnxruntime.so"}
	if path != "" {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("onnx: %w: %w; %s", ErrNoLibrary, err, remedy)
		}
		candidates = []string{path}
	} else if exe, err := os.Executable(); err == nil {
		candidates = append(candidates, filepath.Join(filepath.Dir(exe), "libonnxruntime.so.1"), filepath.Join(filepath.Dir(exe), "libonnxruntime.so"))
	}
	var errs []string
	for _, c := range candidates {
		ort.SetSharedLibraryPath(c)
		err := ort.InitializeEnvironment(ort.WithLogLevelFatal())
		if err == nil {
			environment.path, environment.up = c, true
			return nil
		}
		errs = append(errs, fmt.Sprintf("%s: %v", c, err))
	}
	return fmt.Errorf("onnx: %w (%s); %s", ErrNoLibrary, strings.Join(errs, "; "), remedy)
}

// elements maps ONNX element types to dtypes; those that the wire has no dtype for are given as fp32.
var elements = map[ort.TensorElementDataType]struct {
	dtype nnrp.DType
	as    bool // the bytes are sent as they are
}{
	ort.TensorElementDataTypeFloat16: {nnrp.FP16, true}, ort.TensorElementDataTypeFloat: {nnrp.FP32, true},
	ort.TensorElementDataTypeFloat8E4M3FN: {nnrp.FP8E4M3, true}, ort.TensorElementDataTypeFloat8E5M2: {nnrp.FP8E5M2, true},
	ort.TensorElementDataTypeInt8: {nnrp.Int8, true}, ort.TensorElementDataTypeUint8: {nnrp.Uint8, true},
	ort.TensorElementDataTypeInt16: {nnrp.Int16, true}, ort.TensorElementDataTypeUint16: {nnrp.Uint16, true},
	ort.TensorElementDataTypeInt32: {nnrp.FP32, false}, ort.TensorElementDataTypeInt64: {nnrp.FP32, false},
	ort.TensorElementDataTypeDouble: {nnrp.FP32, false}, ort.TensorElementDataTypeBool: {nnrp.FP32, false},
}

// Engine runs one model.
type Engine struct {
	spec   inference.Spec
	model  *ort.DynamicAdvancedSession
	in     ort.InputOutputInfo
	out    []ort.InputOutputInfo
	shape  []int64 // of the input, batch axis included where there is one
	batch  bool    // the first axis is the batch
	fixed  int     // size of the batch axis, 0 = free
	Device string  // "cpu" or "cuda"
}

// Open loads a model: one input with the shape of a picture ([N,]C,H,W or [N,]H,W,C), any outputs.
func Open(o Options) (*Engine, error) {
	if _, err := os.Stat(o.Model); err != nil {
		return nil, fmt.Errorf("onnx: model: %w", err)
	}
	if err := load(o.Library); err != nil {
		return nil, err
	}
	options, device, err := sessionOptions(&o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = options.Destroy() }()
	in, out, err := ort.GetInputOutputInfoWithOptions(o.Model, options)
	if err != nil {
		return nil, fmt.Errorf("onnx: read %s: %w", o.Model, err)
	}
	if len(in) != 1 {
		return nil, fmt.Errorf("onnx: %s has %d inputs; a model with one picture as its input can be served", o.Model, len(in))
	}
	e := &Engine{in: in[0], out: out, Device: device}
	if err := e.describe(&o); err != nil {
		return nil, err
	}
	var names []string
	for _, x := range out {
		names = append(names, x.Name)
	}
	if e.model, err = ort.NewDynamicAdvancedSession(o.Model, []string{in[0].Name}, names, options); err != nil {
		return nil, fmt.Errorf("onnx: load %s: %w", o.Model, err)
	}
	return e, nil
}

func sessionOptions(o *Options) (*ort.SessionOptions, string, error) {
	s, err := ort.NewSessionOptions()
	if err != nil {
		return nil, "", fmt.Errorf("onnx: options: %w", err)
	}
	if o.Threads > 0 {
		if err := s.SetIntraOpNumThreads(o.Threads); err != nil {
			return nil, "", errors.Join(err, s.Destroy())
		}
	}
	switch o.Device {
	case "cpu":
		return s, "cpu", nil
	case "", "auto", "cuda":
	default:
		return nil, "", errors.Join(fmt.Errorf("onnx: device %q is none of auto, cpu, cuda", o.Device), s.Destroy())
	}
	cuda, err := ort.NewCUDAProviderOptions()
	if err == nil {
		err = s.AppendExecutionProviderCUDA(cuda)
		err = errors.Join(err, cuda.Destroy())
	}
	if err == nil {
		return s, "cuda", nil
	}
	if o.Device == "cuda" {
		return nil, "", errors.Join(fmt.Errorf("onnx: no CUDA in %s: %w", environment.path, err), s.Destroy())
	}
	return s, "cpu", nil
}

// describe turns the model's declaration into a Spec.
func (e *Engine) describe(o *Options) error {
	name := strings.TrimSuffix(filepath.Base(o.Model), ".onnx")
	bad := func(why string) error {
		return fmt.Errorf("onnx: input %q of %s has shape %v and type %v: %s", e.in.Name, o.Model, e.in.Dimensions, e.in.DataType, why)
	}
	x, ok := elements[e.in.DataType]
	if !ok || !x.as || e.in.OrtValueType != ort.ONNXTypeTensor {
		return bad("it must be a tensor of fp16, fp32, fp8, int8, uint8, int16 or uint16")
	}
	e.shape = append([]int64(nil), e.in.Dimensions...)
	picture := e.shape
	e.spec = inference.Spec{Name: name, DTypes: []nnrp.DType{x.dtype}, MaxBatch: 1}
	switch len(e.shape) {
	case 4:
		e.batch, picture = true, e.shape[1:]
		if n := e.shape[0]; n > 0 {
			e.fixed, e.spec.MaxBatch = int(n), int(n)
		} else if e.spec.MaxBatch = o.MaxBatch; o.MaxBatch == 0 {
			e.spec.MaxBatch = 8
		}
	case 3:
	default:
		return bad("it must be a picture, [N,]C,H,W or [N,]H,W,C")
	}
	channels := func(n int64) bool { return n == 1 || n == 3 || n == 4 }
	switch {
	case channels(picture[0]):
		e.spec.Layouts, e.spec.Channels, e.spec.Height, e.spec.Width = []nnrp.Layout{nnrp.NCHW}, int(picture[0]), size(picture[1]), size(picture[2])
	case channels(picture[2]):
		e.spec.Layouts, e.spec.Channels, e.spec.Height, e.spec.Width = []nnrp.Layout{nnrp.NHWC}, int(picture[2]), size(picture[0]), size(picture[1])
	default:
		return bad("neither its first nor its last axis has 1, 3 or 4 channels")
	}
	for i, y := range e.out {
		x, ok := elements[y.DataType]
		if !ok || y.OrtValueType != ort.ONNXTypeTensor {
			return fmt.Errorf("onnx: output %q of %s is no tensor of numbers", y.Name, o.Model)
		}
		shape := append([]int64(nil), y.Dimensions...)
		if e.batch && len(shape) > 0 {
			shape = shape[1:]
		}
		e.spec.Outputs = append(e.spec.Outputs, inference.Output{Role: uint16(i + 1), Name: y.Name, DType: x.dtype, Shape: shape})
	}
	return nil
}

func size(n int64) int { return int(max(n, 0)) }

// Spec describes the model.
func (e *Engine) Spec() inference.Spec { return e.spec }

// Close unloads the model; the library stays.
func (e *Engine) Close() error { return e.model.Destroy() }

// Infer runs the model once over all items.
func (e *Engine) Infer(items []*inference.Item) error {
	n := len(items)
	if e.fixed > 0 {
		n = e.fixed // the rest of the batch is zeros
	}
	m := items[0].Submit
	shape := append(ort.Shape(nil), e.shape...)
	axes := shape
	if e.batch {
		shape[0] = int64(n)
		axes = shape[1:]
	}
	w, h := int64(m.Tensor.SrcWidth), int64(m.Tensor.SrcHeight)
	if e.spec.Layouts[0] == nnrp.NCHW {
		axes[1], axes[2] = h, w
	} else {
		axes[0], axes[1] = h, w
	}
	data := items[0].Picture
	if n > 1 {
		data = make([]byte, n*len(items[0].Picture))
		for i, it := range items {
			copy(data[i*len(it.Picture):], it.Picture)
		}
	}
	in, err := ort.NewCustomDataTensor(shape, data, e.in.DataType)
	if err != nil {
		return fmt.Errorf("onnx: input tensor: %w", err)
	}
	defer func() { _ = in.Destroy() }()
	outs := make([]ort.Value, len(e.out))
	err = e.model.Run([]ort.Value{in}, outs)
	defer func() {
		for _, v := range outs {
			if v != nil {
				_ = v.Destroy()
			}
		}
	}()
	if err != nil {
		return fmt.Errorf("onnx: run: %w", err)
	}
	for i := range outs {
		if err := e.spread(i, outs[i], items, n); err != nil {
			return err
		}
	}
	return nil
}

// spread gives each item its part of an output: the whole picture is one tile of the result.
func (e *Engine) spread(i int, v ort.Value, items []*inference.Item, n int) error {
	b, count, err := contents(v)
	if err != nil {
		return fmt.Errorf("onnx: output %q: %w", e.out[i].Name, err)
	}
	parts := 1
	if e.batch && n > 1 {
		if shape := v.GetShape(); len(shape) == 0 || shape[0] != int64(n) {
			return fmt.Errorf("onnx: output %q has shape %v for a batch of %d", e.out[i].Name, shape, n)
		}
		parts = n
	}
	each := len(b) / parts
	for k, it := range items {
		p := b[k*each : (k+1)*each : (k+1)*each]
		it.Result.TileIndex = nnrp.TileIndex{Count: 1}
		it.Result.Sections = append(it.Result.Sections, nnrp.Section{
			RoleID: e.spec.Outputs[i].Role, DType: e.spec.Outputs[i].DType, Layout: e.spec.Layouts[0],
			ElementCountPerTile: uint32(count / parts), LengthTable: nnrp.AppendLength(nil, len(p)), Payload: p,
		})
	}
	return nil
}
