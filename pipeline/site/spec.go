package site

import (
	"encoding/json"
	"log/slog"
	"time"

	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/pipeline"
)

// The kinds of stages.
const (
	kindIngest = "ingest"
	kindRecord = "record"
	kindEvents = "events" // a recorder on events
	kindRelay  = "relay"
	kindInfer  = "infer"
	kindPush   = "push"
)

// spec is all that a stage needs to run, in this process or in one of its own. It holds passwords: it is never logged, and goes to a
// process through a pipe.
type spec struct {
	Kind       string
	Key        string
	RuntimeDir string
	Group      string
	Isolated   bool
	Stream     *Stream `json:",omitempty"`
	Record     *Record `json:",omitempty"`
	Relay      *Relay  `json:",omitempty"`
	Infer      *Infer  `json:",omitempty"`
	Push       *Push   `json:",omitempty"`
}

// id names the stage within a site.
func (s spec) id() string { return stageID(s.Kind, s.Key) }

func stageID(kind, key string) string {
	if key == "" {
		return kind
	}
	return kind + " " + key
}

// fingerprint tells whether two specs ask for the same.
func (s spec) fingerprint() string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // plain fields
	}
	return string(b)
}

// specs are the stages that a configuration asks for: ingests first.
func (c *Config) specs(runtimeDir, group string) []spec {
	var ingests, readers []spec
	for _, s := range c.streams() {
		base := spec{Key: s.key, RuntimeDir: runtimeDir, Group: group}
		in := base
		stream := *s.Stream
		stream.Record, stream.Events, stream.Infer, stream.Push = nil, nil, nil, nil // other stages'
		in.Kind, in.Stream, in.Isolated = kindIngest, &stream, s.Isolation == "process"
		ingests = append(ingests, in)
	}
	for _, s := range c.streams() {
		base := spec{Key: s.key, RuntimeDir: runtimeDir, Group: group}
		if s.Infer != nil {
			x, infer := base, copied(s.Infer)
			infer.Retention = nil // the keeper's
			x.Kind, x.Infer, x.Isolated = kindInfer, infer, infer.Isolation == "process"
			readers = append(readers, x)
		}
		if s.Push != nil {
			x := base
			x.Kind, x.Push, x.Isolated = kindPush, s.Push, s.Push.Isolation == "process"
			readers = append(readers, x)
		}
	}
	for _, x := range c.recordings() {
		record := *x.Record
		record.Retention = nil // the keeper's
		readers = append(readers, spec{Kind: x.kind, Key: x.key, RuntimeDir: runtimeDir, Group: group, Record: &record,
			Isolated: record.Isolation == "process"})
	}
	if c.Relay != nil {
		readers = append(readers, spec{Kind: kindRelay, RuntimeDir: runtimeDir, Group: group, Relay: c.Relay, Isolated: c.Relay.Isolation == "process"})
	}
	return append(ingests, readers...)
}

func sourceOptions(s Stream, log *slog.Logger) pipeline.SourceOptions {
	return pipeline.SourceOptions{
		URL: s.Source, Username: s.Username, Password: s.Password, NoAudio: !s.Audio, Transport: s.Transport, Timeout: time.Duration(s.Timeout),
		CAFile: s.CA, Fingerprint: s.Fingerprint, Insecure: s.Insecure, Loop: s.Loop, Realtime: s.Realtime, Logger: log,
	}
}

// shmBytes is how much of /dev/shm a stream takes.
func (s *Stream) shmBytes() int64 {
	o := pipeline.IngestOptions{PacketSlots: s.PacketSlots, PacketBytes: int(s.PacketBytes), NoAudio: !s.Audio}
	if s.Decode != "off" {
		o.Decode = &pipeline.DecodeOptions{}
	}
	return o.ShmBytes()
}

// ingestOptions are those of a stream. The source is not connected yet.
func (s spec) ingestOptions(log *slog.Logger) (pipeline.IngestOptions, error) {
	o := pipeline.IngestOptions{
		RuntimeDir: s.RuntimeDir, Key: s.Key, Group: s.Group, Protocol: uint32(s.Stream.Protocol), NoAudio: !s.Stream.Audio,
		PacketSlots: s.Stream.PacketSlots, PacketBytes: int(s.Stream.PacketBytes), Logger: log,
	}
	if s.Stream.Decode != "off" {
		mode, err := decode.ParseMode(s.Stream.Decode)
		if err != nil {
			return o, err
		}
		o.Decode = &pipeline.DecodeOptions{Mode: mode, Device: s.Stream.Device, Slots: s.Stream.FrameSlots}
		if s.Stream.Policy == "strict-wait" {
			o.Decode.Policy = framering.StrictWait
			o.Decode.AckTimeout = framering.DefaultAckTimeout
		}
		o.Decoded = &pipeline.DecodeCounter{}
	}
	so := sourceOptions(*s.Stream, log)
	so.MaxUnit = o.MaxUnit()
	opened, err := pipeline.OpenSource(so)
	if err != nil {
		return o, err
	}
	o.Source, o.Name, o.Live = opened.Source, opened.Name, opened.Live
	return o, nil
}

func (s spec) recordOptions(log *slog.Logger) pipeline.RecordOptions {
	r := s.Record
	o := pipeline.RecordOptions{
		RuntimeDir: s.RuntimeDir, Key: s.Key, Out: r.Out, Format: mux.Format(r.Format), Segment: time.Duration(r.Segment), Pre: time.Duration(r.Pre),
		Fsync: mux.Fsync(r.Fsync), NoAudio: !r.Audio, WaitForKey: -1, Logger: log,
	}
	if r.OnEvent {
		o.OnEvent = r.eventOptions(s.Group)
	}
	return o
}

func (r *Record) eventOptions(group string) *pipeline.EventOptions {
	return &pipeline.EventOptions{Post: time.Duration(r.Post), Longest: time.Duration(r.Longest), Group: group}
}

func (s spec) relayOptions(log *slog.Logger) pipeline.RelayOptions {
	r := s.Relay
	return pipeline.RelayOptions{
		RuntimeDir: s.RuntimeDir, Keys: r.Keys, Listen: r.Listen, ListenTLS: r.ListenTLS, CertFile: r.Cert, KeyFile: r.KeyFile,
		RTPPort: r.RTPPort, Multicast: r.Multicast, Username: r.Username, Password: r.Password, Logger: log,
	}
}

// inferOptions are those of an inference, without its tensor's form and without an output.
func (s spec) inferOptions(log *slog.Logger) pipeline.InferOptions {
	i := s.Infer
	o := pipeline.InferOptions{
		RuntimeDir: s.RuntimeDir, Key: s.Key, To: i.To, Token: []byte(i.Token), Model: i.Model, FPS: i.FPS, InFlight: i.InFlight,
		Trust:   quictransport.Trust{CAFile: i.CA, Fingerprint: i.Fingerprint, ServerName: i.ServerName},
		Latency: time.Duration(i.Latency), Tile: i.Tile, Threshold: i.Threshold, Raw: i.Raw, SDK: i.SDKHello, Device: i.Device,
		Base64: i.Tensors == "base64", WaitForKey: -1, Logger: log,
	}
	o.Format.Channels = i.Channels
	return o
}

func (s spec) pushOptions(log *slog.Logger) pipeline.PushOptions {
	p := s.Push
	return pipeline.PushOptions{
		RuntimeDir: s.RuntimeDir, Keys: []string{s.Key}, URL: p.To, Username: p.Username, Password: p.Password, WaitForKey: -1, Logger: log,
	}
}
