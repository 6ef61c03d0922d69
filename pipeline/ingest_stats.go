package pipeline

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/packetring"
)

// IngestStats are an Ingest's running totals.
type IngestStats struct {
	Connected  bool             `json:"connected"`            // packets come
	Connects   uint64           `json:"connects"`             // attempts
	Reconnects uint64           `json:"reconnects"`           // connections that delivered after another one had
	LastError  string           `json:"last_error,omitempty"` // why the last connection ended; without credentials
	Video      IngestTrackStats `json:"video"`
	Audio      IngestTrackStats `json:"audio"`
	Network    *NetworkStats    `json:"network,omitempty"` // nil: the source is no RTSP camera
}

// NetworkStats are what an RTSP camera's packets went through on their way, over all its connections.
type NetworkStats struct {
	Packets uint64  `json:"rtp_packets"`         // that came
	Lost    uint64  `json:"rtp_lost"`            // missing between them
	Clocked bool    `json:"clocked"`             // the camera tells its own time (RTCP sender reports)
	Ahead   Seconds `json:"clock_ahead_seconds"` // of its clock against this host's; the delay of the network counts as behind
}

// IngestTrackStats are the totals of one key.
type IngestTrackStats struct {
	Codec      string    `json:"codec"` // its name; "" = not published yet
	Packets    uint64    `json:"packets"`
	Bytes      uint64    `json:"bytes"`
	Keyframes  uint64    `json:"keyframes"`
	Gaps       uint64    `json:"gaps"` // packets marked DISCONTINUITY
	Corrupt    uint64    `json:"corrupt"`
	Oversized  uint64    `json:"oversized"`            // larger than the ring takes, left out
	LastPacket time.Time `json:"last_packet,omitzero"` // by the clock as it is now, with a monotonic reading; zero: none yet
}

// Age is how long ago the newest packet came; 0 before the first.
func (s IngestTrackStats) Age() time.Duration {
	if s.LastPacket.IsZero() {
		return 0
	}
	return time.Since(s.LastPacket)
}

// Stats may be called at any time from any goroutine.
func (in *Ingest) Stats() IngestStats {
	in.state.mu.Lock()
	defer in.state.mu.Unlock()
	s := in.state.s
	s.Video = in.sink.outputs[0].seen.snapshot()
	s.Audio = in.sink.outputs[1].seen.snapshot()
	if camera, ok := in.o.Source.(*rtsp.Source); ok {
		n := camera.Stats()
		s.Network = &NetworkStats{Packets: n.RTPPackets, Lost: n.RTPLost, Clocked: n.Clocked, Ahead: Seconds(n.Ahead)}
	}
	return s
}

type ingestState struct {
	mu sync.Mutex
	s  IngestStats
	// delivered: some connection did
	delivered bool
}

func (st *ingestState) connecting() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.s.Connects++
}

func (st *ingestState) connected() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.s.Connected = true
	if st.delivered {
		st.s.Reconnects++
	}
	st.delivered = true
}

func (st *ingestState) ended(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.s.Connected = false
	if err != nil {
		st.s.LastError = err.Error()
	}
}

// monotonicStart is what ages are counted from on the monotonic clock: a camera is not older or younger because the system's clock was set.
var monotonicStart = time.Now()

// trackState is written by the source's goroutine and read by any.
type trackState struct {
	codec                                                       atomic.Uint32
	packets, bytes, keyframes, gaps, corrupt, oversized, lastAt atomic.Int64
}

func (t *trackState) packet(f packetring.Flags, n int, now time.Time) {
	t.packets.Add(1)
	t.bytes.Add(int64(n))
	t.lastAt.Store(max(int64(now.Sub(monotonicStart)), 1))
	if f&packetring.FlagKey != 0 {
		t.keyframes.Add(1)
	}
	if f&packetring.FlagDiscontinuity != 0 {
		t.gaps.Add(1)
	}
	if f&packetring.FlagCorrupt != 0 {
		t.corrupt.Add(1)
	}
}

func (t *trackState) snapshot() IngestTrackStats {
	s := IngestTrackStats{
		Packets: uint64(t.packets.Load()), Bytes: uint64(t.bytes.Load()), Keyframes: uint64(t.keyframes.Load()),
		Gaps: uint64(t.gaps.Load()), Corrupt: uint64(t.corrupt.Load()), Oversized: uint64(t.oversized.Load()),
	}
	if id := t.codec.Load(); id != 0 {
		s.Codec = media.CodecName(id)
	}
	if at := t.lastAt.Load(); at != 0 {
		now := time.Now()
		s.LastPacket = now.Add(time.Duration(at) - now.Sub(monotonicStart))
	}
	return s
}
