package pipeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/packetring"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// KeyStatus is what an operator wants to know about a key. It is read from shared memory, without talking to the publisher.
// Rates are those of what the ring holds now, and zero where no packet comes.
type KeyStatus struct {
	Key      string `json:"key"`
	Alive    bool   `json:"alive"` // null in JSON where NoAccess
	PID      uint64 `json:"pid"`
	Protocol uint32 `json:"protocol"`
	Socket   string `json:"socket"`
	Error    string `json:"error,omitempty"` // what could not be read, and why
	NoAccess bool   `json:"-"`               // this user may not read the key: whether it is alive is not known

	Elsewhere bool `json:"-"` // its publisher answers, and its memory is not in this process's /dev/shm: nothing else is known

	Codec  string `json:"codec,omitempty"`
	Width  int    `json:"width,omitempty"` // pixels, if known
	Height int    `json:"height,omitempty"`

	PacketsPerSecond float64  `json:"packets_per_second"`
	KbitPerSecond    float64  `json:"kbit_per_second"`
	AgeSeconds       *float64 `json:"age_seconds"` // of the newest packet, by its time; null = none, or a time that is no wall clock
	GOPPackets       int      `json:"gop_packets,omitempty"`
	GOPSeconds       float64  `json:"gop_seconds,omitempty"`

	Readers []ReaderStatus `json:"readers"`
	Packets *RingStatus    `json:"packets,omitempty"` // nil = no packet ring
	Frames  *FrameStatus   `json:"frames,omitempty"`  // nil = no frame ring
}

// MarshalJSON says null for what a user without access cannot know.
func (s KeyStatus) MarshalJSON() ([]byte, error) {
	type plain KeyStatus
	if !s.NoAccess {
		return json.Marshal(plain(s))
	}
	return json.Marshal(struct {
		plain
		Alive *bool   `json:"alive"`
		PID   *uint64 `json:"pid"`
	}{plain: plain(s)})
}

// ReaderStatus is an entry of the subscriber table.
type ReaderStatus struct {
	Bit         int      `json:"bit"`
	Name        string   `json:"name"`
	Recording   string   `json:"recording,omitempty"` // of a recorder: continuous or event
	Event       string   `json:"event,omitempty"`     // that it records: its id
	PID         uint64   `json:"pid"`                 // 0 = in another PID namespace
	State       string   `json:"state"`
	Frames      bool     `json:"frames"` // owes ACKs in the frame ring
	LastSeq     uint64   `json:"last_seq"`
	Lag         *uint64  `json:"lag"`          // packets or frames behind the newest one; null = the reader does not say
	SeenSeconds *float64 `json:"seen_seconds"` // since it last said how far it is
}

// RingStatus is the header of a packet ring, and what is in it.
type RingStatus struct {
	Shm             string       `json:"shm"`
	Protocol        uint32       `json:"protocol"`
	PID             int          `json:"pid"`
	CodecID         uint32       `json:"codec_id"`
	ExtradataBytes  int          `json:"extradata_bytes"`
	SlotCount       int          `json:"slots"`
	DataBytes       int          `json:"data_bytes"`
	GlobalSeq       uint64       `json:"global_seq"`
	LastKeyframeSeq uint64       `json:"last_keyframe_seq"`
	WriteOffset     uint64       `json:"write_offset"`
	ShutDown        bool         `json:"shutdown"`
	BufferedPackets int          `json:"buffered_packets"` // whole in the ring
	BufferedBytes   int          `json:"buffered_bytes"`
	BufferedSeconds float64      `json:"buffered_seconds"`
	Packets         []SlotStatus `json:"packets,omitempty"` // oldest first
}

// SlotStatus is a packet in the ring.
type SlotStatus struct {
	Seq   uint64 `json:"seq"`
	Slot  int    `json:"slot"`
	PTS   int64  `json:"pts_ns"`
	DTS   int64  `json:"dts_ns"`
	Bytes int    `json:"bytes"`
	Flags string `json:"flags"`
}

// FrameStatus is the frame ring.
type FrameStatus struct {
	Shm       string            `json:"shm"`
	SlotCount int               `json:"slots"`
	Policy    string            `json:"policy"`
	Format    string            `json:"format"`
	Width     uint32            `json:"width"`
	Height    uint32            `json:"height"`
	PitchY    uint32            `json:"pitch_y"`
	PitchUV   uint32            `json:"pitch_uv"`
	FrameSize uint64            `json:"frame_size_bytes"`
	GlobalSeq uint64            `json:"global_seq"`
	Bitmap    uint64            `json:"subscriber_bitmap"`
	ShutDown  bool              `json:"shutdown"`
	Slots     []FrameSlotStatus `json:"descriptors"`
}

// FrameSlotStatus is a slot descriptor of the frame ring.
type FrameSlotStatus struct {
	Slot  int    `json:"slot"`
	Seq   uint64 `json:"seq"` // 0 with Valid false
	Valid bool   `json:"valid"`
	PTS   int64  `json:"pts_ns"`
	Acks  uint64 `json:"ack_bitmap"`
	Bytes uint64 `json:"written_bytes"`
}

// ListKeys returns the status of every publisher of this host whose control socket is in runtimeDir, sorted by key.
func ListKeys(runtimeDir string) ([]KeyStatus, error) {
	pubs, err := framering.List(runtimeDir)
	if err != nil {
		return nil, err
	}
	list := make([]KeyStatus, 0, len(pubs))
	for _, p := range pubs {
		list = append(list, statusOf(p, time.Now()))
	}
	keys := make([]*KeyStatus, len(list))
	for i := range list {
		keys[i] = &list[i]
	}
	looks.settle(keys)
	return list, nil
}

// InspectKey returns the status of one key. The error is a *NoKeyError when there is no living publisher, and a *MountError when
// its memory is not in this process's /dev/shm; what a dead one left is
// returned with it, if anything (Key is empty otherwise).
func InspectKey(runtimeDir, key string) (KeyStatus, error) {
	p, err := framering.Inspect(runtimeDir, key)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if keys, _ := framering.Elsewhere(runtimeDir); slices.Contains(keys, key) {
			return KeyStatus{}, mountError(key)
		}
		return KeyStatus{}, noKey(runtimeDir, key)
	case errors.Is(err, framering.ErrInvalidArg):
		return KeyStatus{}, err
	}
	p.Err = err
	s := statusOf(p, time.Now())
	looks.settle([]*KeyStatus{&s})
	if !p.Alive && err == nil {
		return s, noKey(runtimeDir, key)
	}
	return s, err
}

// noKey says that nobody publishes key, and what is published instead.
func noKey(runtimeDir, key string) *NoKeyError {
	e := &NoKeyError{Key: key, Path: framering.SocketPath(runtimeDir, key)}
	list, _ := framering.List(runtimeDir) // best effort: it only helps the message
	for _, p := range list {
		if p.Alive {
			e.Others = append(e.Others, p.Key)
		}
	}
	ring, err := packetring.Inspect(framering.PacketShmName(key)) // keys are the host's
	if err == nil && ring.Alive && !slices.Contains(e.Others, key) {
		e.PID = ring.ProducerPID
	}
	return e
}

func statusOf(p framering.Publication, now time.Time) KeyStatus {
	h := p.Header
	s := KeyStatus{
		Key: p.Key, Alive: p.Alive, PID: h.ProducerPID, Protocol: h.Version, Socket: p.SocketPath, Readers: []ReaderStatus{},
	}
	if p.Err != nil {
		s.Error, s.NoAccess = p.Err.Error(), errors.Is(p.Err, os.ErrPermission)
	}
	if h.RingSize > 0 {
		s.Frames = frameStatus(p)
		s.Width, s.Height = int(h.Meta.Width), int(h.Meta.Height)
	}
	ring, err := packetring.Inspect(framering.PacketShmName(p.Key))
	switch {
	case err == nil:
		s.addRing(ring, now)
	case !errors.Is(err, os.ErrNotExist) && s.Error == "":
		s.Error = err.Error()
	}
	for _, sub := range p.Subscribers {
		r := ReaderStatus{
			Bit: sub.Bit, PID: sub.PID, State: sub.State.String(), LastSeq: sub.LastSeenSeq,
			Frames: h.SubscriberBitmap&(1<<sub.Bit) != 0,
		}
		r.Name, r.Recording, r.Event = readerName(sub.Name)
		newest := ring.GlobalSeq
		if r.Frames {
			newest = h.GlobalSeq
		}
		if sub.LastAckNS > 0 {
			lag := newest - min(sub.LastSeenSeq, newest)
			seen := round(max(now.Sub(time.Unix(0, sub.LastAckNS)).Seconds(), 0))
			r.Lag, r.SeenSeconds = &lag, &seen
		}
		s.Readers = append(s.Readers, r)
	}
	return s
}

// readerName takes apart what a reader calls itself: recorders say what they record.
func readerName(s string) (name, recording, event string) {
	switch id, found := strings.CutPrefix(s, eventRecorderName("")); {
	case s == recorderName:
		return s, mux.CauseContinuous, ""
	case found && trigger.ValidID(id):
		return recorderName, mux.CauseEvent, id
	}
	return s, "", ""
}

// Title is the reader's name as people read it: record (event 20260504T100009Z-k3x2ab).
func (r ReaderStatus) Title() string {
	switch {
	case r.Event != "":
		return fmt.Sprintf("%s (%s %s)", r.Name, r.Recording, r.Event)
	case r.Recording != "":
		return fmt.Sprintf("%s (%s)", r.Name, r.Recording)
	case r.Name == "":
		return "-"
	}
	return r.Name
}

func frameStatus(p framering.Publication) *FrameStatus {
	h, m := p.Header, p.Header.Meta
	f := &FrameStatus{
		Shm: p.ShmName, SlotCount: h.RingSize, Policy: h.Policy.String(), Format: m.Format.String(), Width: m.Width, Height: m.Height,
		PitchY: m.PitchY, PitchUV: m.PitchUV, FrameSize: m.FrameSize, GlobalSeq: h.GlobalSeq, Bitmap: h.SubscriberBitmap, ShutDown: h.ShutDown,
	}
	for i, s := range p.Slots {
		d := FrameSlotStatus{Slot: i, Valid: s.Valid, PTS: s.PTS, Acks: s.AckBitmap, Bytes: s.WrittenBytes}
		if s.Valid {
			d.Seq = s.Seq
		}
		f.Slots = append(f.Slots, d)
	}
	return f
}

func (s *KeyStatus) addRing(r packetring.Snapshot, now time.Time) {
	s.Codec = media.CodecName(r.CodecID)
	if s.Width == 0 && len(r.Extradata) > 0 && (r.CodecID == media.H264 || r.CodecID == media.HEVC) {
		sets := bitstream.NewParameterSets(r.CodecID)
		if sets.AddExtradata(r.Extradata) == nil {
			if sps, ok := sets.SPS(); ok {
				s.Width, s.Height = sps.Width, sps.Height
			}
		}
	}
	st := &RingStatus{
		Shm: r.Name, Protocol: r.Protocol, PID: r.ProducerPID, CodecID: r.CodecID, ExtradataBytes: len(r.Extradata), SlotCount: r.Slots,
		DataBytes: r.DataSize, GlobalSeq: r.GlobalSeq, LastKeyframeSeq: r.LastKeyframeSeq, WriteOffset: r.WriteOffset, ShutDown: r.ShutDown,
		BufferedPackets: len(r.Packets), Packets: make([]SlotStatus, 0, len(r.Packets)),
	}
	s.Packets = st
	key := -1 // index of the newest keyframe so far
	for i, p := range r.Packets {
		st.BufferedBytes += p.Size
		st.Packets = append(st.Packets, SlotStatus{
			Seq: p.Seq, Slot: int(p.Seq % uint64(r.Slots)), PTS: p.PTS, DTS: p.DTS, Bytes: p.Size, Flags: p.Flags.String(),
		})
		if p.Flags&packetring.FlagKey != 0 {
			if key >= 0 {
				s.GOPPackets = int(p.Seq - r.Packets[key].Seq)
				s.GOPSeconds = secondsBetween(r.Packets[key].DTS, p.DTS)
			}
			key = i
		}
	}
	n := len(r.Packets)
	if n == 0 {
		return
	}
	newest := r.Packets[n-1]
	if age := now.Sub(time.Unix(0, newest.PTS)).Seconds(); math.Abs(age) < 366*24*3600 { // else it is no wall clock
		age = round(max(age, 0))
		s.AgeSeconds = &age
	}
	if st.BufferedSeconds = secondsBetween(r.Packets[0].DTS, newest.DTS); st.BufferedSeconds > 0 {
		s.PacketsPerSecond = round(float64(n-1) / st.BufferedSeconds)
		s.KbitPerSecond = round(float64(st.BufferedBytes-newest.Size) * 8 / 1000 / st.BufferedSeconds)
	}
}

// round keeps what a reading of shared memory is worth.
func round(x float64) float64 { return math.Round(x*1000) / 1000 }

// secondsBetween returns the time from a to b, 0 where it goes back or overflows.
func secondsBetween(a, b int64) float64 {
	return max(float64(b)-float64(a), 0) / float64(time.Second)
}

// Size returns the one-line form of a picture size, "" when it is not known.
func (s KeyStatus) Size() string {
	if s.Width == 0 || s.Height == 0 {
		return ""
	}
	return fmt.Sprintf("%dx%d", s.Width, s.Height)
}
