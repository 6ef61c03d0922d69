package onnx

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	ort "github.com/yalue/onnxruntime_go"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/nnrp/session"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// needLibrary skips (fails in scripts/test) where $CFPIPE_ONNXRUNTIME does not name the library; scripts/onnxruntime fetches it.
func needLibrary(t *testing.T) {
	t.Helper()
	if os.Getenv("CFPIPE_ONNXRUNTIME") == "" {
		const what = "CFPIPE_ONNXRUNTIME is not set: export CFPIPE_ONNXRUNTIME=$(scripts/onnxruntime)"
		if testenv.Strict() {
			t.Fatal(what)
		}
		t.Skip(what)
	}
	testenv.Watchdog(t, 60*time.Second)
}

func TestNoLibrary(t *testing.T) {
	_, err := Open(Options{Model: filepath.Join(t.TempDir(), "absent.onnx")})
	require.ErrorIs(t, err, os.ErrNotExist)
	if environment.up {
		t.Skip("another test has loaded the library")
	}
	_, err = Open(Options{Model: convModel(t), Library: "/absent/libonnxruntime.so"})
	require.ErrorIs(t, err, ErrNoLibrary)
	require.ErrorContains(t, err, "/absent/libonnxruntime.so")
	require.ErrorContains(t, err, "--onnxruntime")
	junk := filepath.Join(t.TempDir(), "libonnxruntime.so")
	require.NoError(t, os.WriteFile(junk, []byte("junk"), 0o600))
	_, err = Open(Options{Model: convModel(t), Library: junk})
	require.ErrorIs(t, err, ErrNoLibrary)
	require.ErrorContains(t, err, "CFPIPE_ONNXRUNTIME")
}

func TestDescribe(t *testing.T) {
	needLibrary(t)
	e, err := Open(Options{Model: convModel(t), MaxBatch: 4})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	require.Equal(t, inference.Spec{Name: "conv", Width: 8, Height: 8, Channels: 3, DTypes: []nnrp.DType{nnrp.FP32},
		Layouts: []nnrp.Layout{nnrp.NCHW}, MaxBatch: 4,
		Outputs: []inference.Output{{Role: 1, Name: "features", DType: nnrp.FP32, Shape: []int64{2, 8, 8}},
			{Role: 2, Name: "mean", DType: nnrp.FP32, Shape: []int64{2, 1, 1}},
			{Role: 3, Name: "best", DType: nnrp.FP32, Shape: []int64{1, 8, 8}}}}, e.Spec())
	b, err := Open(Options{Model: byteModel(t), Device: "cpu"})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	require.Equal(t, inference.Spec{Name: "bytes", Channels: 3, DTypes: []nnrp.DType{nnrp.Uint8}, Layouts: []nnrp.Layout{nnrp.NHWC}, MaxBatch: 1,
		Outputs: []inference.Output{{Role: 1, Name: "colour", DType: nnrp.FP32, Shape: []int64{3}}}}, b.Spec())

	_, err = Open(Options{Model: twoInputs(t)})
	require.ErrorContains(t, err, "2 inputs")
	_, err = Open(Options{Model: vectorModel(t)})
	require.ErrorContains(t, err, "must be a picture")
	_, err = Open(Options{Model: convModel(t), Device: "tpu"})
	require.ErrorContains(t, err, "tpu")
	junk := filepath.Join(t.TempDir(), "junk.onnx")
	require.NoError(t, os.WriteFile(junk, []byte("junk"), 0o600))
	_, err = Open(Options{Model: junk})
	require.Error(t, err)
}

// direct runs the model through the library's own binding.
func direct(t *testing.T, model string, picture []float32) (features, mean []float32, best []int64) {
	in, err := ort.NewTensor(ort.NewShape(1, 3, 8, 8), picture)
	require.NoError(t, err)
	defer func() { _ = in.Destroy() }()
	s, err := ort.NewDynamicAdvancedSession(model, []string{"images"}, []string{"features", "mean", "best"}, nil)
	require.NoError(t, err)
	defer func() { _ = s.Destroy() }()
	outs := make([]ort.Value, 3)
	require.NoError(t, s.Run([]ort.Value{in}, outs))
	features = append(features, outs[0].(*ort.Tensor[float32]).GetData()...)
	mean = append(mean, outs[1].(*ort.Tensor[float32]).GetData()...)
	best = append(best, outs[2].(*ort.Tensor[int64]).GetData()...)
	for _, o := range outs {
		_ = o.Destroy()
	}
	return features, mean, best
}

// byHand computes one feature of the convolution.
func byHand(picture []float32, ch, y, x int) float32 {
	w, sum := weights(), float32(0)
	for c := range 3 {
		for dy := range 3 {
			for dx := range 3 {
				if yy, xx := y+dy-1, x+dx-1; yy >= 0 && yy < 8 && xx >= 0 && xx < 8 {
					sum += picture[c*64+yy*8+xx] * w[((ch*3+c)*3+dy)*3+dx]
				}
			}
		}
	}
	return max(sum, 0)
}

func floatsOf(s *nnrp.Section) []float32 {
	var f []float32
	for i := 0; i < len(s.Payload); i += 4 {
		f = append(f, math.Float32frombits(binary.LittleEndian.Uint32(s.Payload[i:])))
	}
	return f
}

// TestSameNumbers: over the network, from several sessions at a time and therefore in batches, a model gives what it gives when the
// library is called directly.
func TestSameNumbers(t *testing.T) {
	needLibrary(t)
	model := convModel(t)
	e, err := Open(Options{Model: model})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	s, err := inference.NewServer(inference.ServerOptions{Engine: e, Scheduler: inference.SchedulerOptions{BatchWait: 2 * time.Millisecond}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			conn, err := quictransport.Dial(ctx, "nnrps://"+s.Addr().String(), quictransport.Trust{Fingerprint: s.Fingerprint()})
			if err != nil {
				t.Error(err)
				return
			}
			c, err := session.Open(ctx, conn, session.ClientOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close(ctx) }()
			for i := range 20 {
				picture := make([]float32, 3*8*8)
				raw := make([]byte, 0, 4*len(picture))
				for k := range picture {
					picture[k] = float32((k*31+i*7+worker*13)%255) / 255
					raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(picture[k]))
				}
				m := &nnrp.FrameSubmit{ProfileID: 1, Tensor: nnrp.TensorSubmit{SrcWidth: 8, SrcHeight: 8, TileWidth: 8, TileHeight: 8},
					TileIndex: nnrp.TileIndex{Count: 1},
					Sections: []nnrp.Section{{RoleID: 1, DType: nnrp.FP32, Layout: nnrp.NCHW, ElementCountPerTile: 3 * 64,
						LengthTable: nnrp.AppendLength(nil, len(raw)), Payload: raw}}}
				if _, err := c.Submit(ctx, m, session.SubmitOptions{}); err != nil {
					t.Error(err)
					return
				}
				o, err := c.Next(ctx)
				if err != nil || o.State != session.Delivered {
					t.Errorf("%v %+v", err, o)
					return
				}
				features, mean, best := direct(t, model, picture)
				got := o.Result.Sections
				if len(got) != 3 {
					t.Errorf("%d sections", len(got))
					return
				}
				require.Equal(t, features, floatsOf(&got[0]))
				require.Equal(t, mean, floatsOf(&got[1]))
				for k, b := range floatsOf(&got[2]) {
					require.Equal(t, float32(best[k]), b)
				}
				require.InDelta(t, byHand(picture, 1, 3, 0), features[64+3*8], 1e-4)
				o.Release()
			}
		})
	}
	wg.Wait()
	cancel()
	require.NoError(t, <-done)
}

func TestPictureWithoutBatchAxis(t *testing.T) {
	needLibrary(t)
	e, err := Open(Options{Model: byteModel(t)})
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	it := &inference.Item{Submit: &nnrp.FrameSubmit{Tensor: nnrp.TensorSubmit{SrcWidth: 2, SrcHeight: 3}}, Picture: make([]byte, 18)}
	for i := range it.Picture {
		it.Picture[i] = byte(10 * (i % 3))
	}
	require.NoError(t, e.Infer([]*inference.Item{it}))
	require.Equal(t, []float32{0, 10, 20}, floatsOf(&it.Result.Sections[0]))
}
