package pipeline

import (
	"encoding/json"
	"math"
	"strconv"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/session"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// inferLine is the JSON line of a result.
type inferLine struct {
	Seq           uint64                 `json:"seq"`
	PTS           int64                  `json:"pts"` // Unix ns
	Time          time.Time              `json:"time"`
	FrameID       uint32                 `json:"frame_id"`
	StatusCode    uint16                 `json:"status_code"`
	ResultFlags   uint16                 `json:"result_flags"`
	QueueMs       uint16                 `json:"queue_ms"`
	InferenceMs   uint16                 `json:"inference_ms"`
	ServerTotalMs uint16                 `json:"server_total_ms"`
	RoundTripMs   float64                `json:"round_trip_ms"`
	TileIDs       []uint32               `json:"tile_ids,omitempty"` // where the tensors are by tile
	Tensors       map[string]inferTensor `json:"tensors"`            // by role_id
}

type inferTensor struct {
	Name  string          `json:"name,omitempty"`
	DType string          `json:"dtype"`
	Shape []int64         `json:"shape,omitempty"` // of one tile, as the runtime declares it
	Tiles int             `json:"tiles"`
	Data  json.RawMessage `json:"data"`
}

// maxResultBytes bounds what the tensors of one result may unfold to.
const maxResultBytes = 64 << 20

// appendResult adds the line of a delivered frame.
func appendResult(b []byte, o *session.Outcome, model inference.Spec, codecs []nnrp.Codec, io *InferOptions) ([]byte, error) {
	tag, _ := o.Tag.(picture)
	r := o.Result
	line := inferLine{
		Seq: tag.seq, PTS: tag.pts, Time: time.Unix(0, tag.pts).UTC(), FrameID: o.FrameID, StatusCode: r.StatusCode, ResultFlags: r.ResultFlags,
		QueueMs: r.QueueMs, InferenceMs: r.InferenceMs, ServerTotalMs: r.ServerTotalMs, RoundTripMs: math.Round(o.Took.Seconds()*1e5) / 100,
		Tensors: map[string]inferTensor{},
	}
	if io.Tile > 0 && r.TileIndex.Count != 1 || r.TileIndex.Mode != nnrp.DenseRange || r.TileIndex.Base != 0 {
		line.TileIDs = r.TileIndex.AppendIDs(nil)
	}
	for i := range r.Sections {
		s := &r.Sections[i]
		elements, err := inference.Elements(s, codecs, maxResultBytes)
		if err != nil {
			return b, err
		}
		t := inferTensor{DType: s.DType.String(), Tiles: int(r.TileIndex.Count)}
		for _, out := range model.Outputs {
			if out.Role == s.RoleID {
				t.Name, t.Shape = out.Name, out.Shape
			}
		}
		if w := io.Watch; w != nil && (w.Output == t.Name || w.Output == strconv.Itoa(int(s.RoleID))) {
			if v := inference.Largest(s.DType, elements); v > w.Above {
				w.Seen(v)
			}
		}
		if io.Base64 {
			t.Data = inference.AppendBase64(nil, elements)
		} else {
			t.Data = append(inference.AppendNumbers([]byte{'['}, s.DType, elements), ']')
		}
		line.Tensors[strconv.Itoa(int(s.RoleID))] = t
	}
	j, err := json.Marshal(line)
	return append(append(b, j...), '\n'), err
}
