// Package site runs many cameras from one file: the stages of package pipeline, connected by rings only, under one supervisor.
package site

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/cfpipe/cfpipe/pipeline"
)

// Config is a site file. The tags are the one home of its schema: yaml names a field, doc explains it, default is its value where the
// file says nothing, enum and min bound it, secret marks what must not stand in the file in clear. The decoder, the JSON Schema and the
// reference in docs/site.md come from here.
type Config struct {
	RuntimeDir string             `yaml:"runtime_dir" shown:"true" doc:"Folder of the control sockets; --runtime-dir wins. Read once, when the site starts."`
	Group      string             `yaml:"group" shown:"true" doc:"Unix group that may open sockets and rings; none = the owner alone. --group wins. Read once."`
	Stagger    Duration           `yaml:"stagger" doc:"Span over which the cameras' first connections are spread. Default: 50ms a camera, 10s at most."`
	Defaults   Camera             `yaml:"defaults" doc:"What every camera takes over where it says nothing itself."`
	Cameras    map[string]*Camera `yaml:"cameras" doc:"The cameras by key: the name their rings are published under."`
	Relay      *Relay             `yaml:"relay" doc:"RTSP server for the keys of this host."`
	HTTP       *HTTP              `yaml:"http" doc:"Health, metrics, snapshots, recordings. Without it no port is opened."`
	Index      string             `yaml:"index" shown:"true" doc:"File of the index of what is recorded, on a local disk. Default: recordings.db in the folder of the recordings that defaults name, else in that of the first camera; off = none."`
	Retention  *Retention         `yaml:"retention" doc:"Bounds over the recordings of all cameras together; the oldest file of all goes first."`

	name     string // of the file
	private  private
	warnings []string // what is no error and hardly meant
}

// Camera is a camera and what is done with it.
type Camera struct {
	Stream `yaml:",inline"`
	Sub    *Stream `yaml:"sub" doc:"The camera's second resolution, published as KEY-sub. It takes user name and password from the camera where it names none. In defaults it is what every sub takes over; a camera without sub has none."`
}

// Stream is one stream of a camera.
type Stream struct {
	Enabled      bool     `yaml:"enabled" doc:"false leaves it out." default:"true"`
	Source       string   `yaml:"source" doc:"rtsp:// or rtsps:// URL, a file, or anything else that FFmpeg opens. A password in it must come from ${VARIABLE}."`
	Username     string   `yaml:"username" shown:"true" doc:"RTSP: user name."`
	Password     string   `yaml:"password" secret:"true" doc:"RTSP: password, as ${VARIABLE} only."`
	PasswordFile string   `yaml:"password_file" shown:"true" doc:"RTSP: file that holds the password. Relative names are those beside the site file."`
	Transport    string   `yaml:"transport" enum:"auto|tcp|udp|multicast" default:"auto" doc:"RTSP: how packets come."`
	Timeout      Duration `yaml:"timeout" default:"10s" doc:"RTSP: for answers, and until silence ends a connection."`
	CA           string   `yaml:"ca" shown:"true" doc:"rtsps: file of certificates to trust."`
	Fingerprint  string   `yaml:"fingerprint" doc:"rtsps: SHA-256 of the camera's own certificate."`
	Insecure     bool     `yaml:"insecure" doc:"rtsps: accept any certificate." default:"false"`
	Loop         bool     `yaml:"loop" doc:"Files: begin again at the end." default:"false"`
	Realtime     bool     `yaml:"realtime" doc:"Files: play at their own speed." default:"false"`
	Audio        bool     `yaml:"audio" doc:"Publish the sound as KEY-audio. Default: true, of a sub false." default:"true"`
	PacketSlots  int      `yaml:"packet_slots" min:"1" max:"1024" default:"1024" doc:"Access units that the packet ring holds."`
	PacketBytes  Size     `yaml:"packet_bytes" min:"65536" max:"4294967295" default:"16MiB" doc:"Bytes that the packet ring holds: 16MiB are 33 s of 4 Mbit/s. record.pre reaches back that far."`
	Protocol     int      `yaml:"protocol" enum:"4|2|1" default:"4" doc:"Dialect of the control socket."`
	Decode       string   `yaml:"decode" enum:"off|auto|cuda|cpu" default:"off" doc:"Pictures under the same key: auto takes the GPU where it can, else the CPU."`
	Device       int      `yaml:"device" min:"0" max:"255" default:"0" doc:"GPU to decode on."`
	FrameSlots   int      `yaml:"frame_slots" min:"1" max:"16" default:"4" doc:"Pictures that the frame ring holds."`
	Policy       string   `yaml:"policy" enum:"drop-oldest|strict-wait" default:"drop-oldest" doc:"Towards slow readers of frames."`
	Isolation    string   `yaml:"isolation" enum:"none|process" default:"none" doc:"process gives ingest (and decode) a process of its own."`
	Record       *Record  `yaml:"record" doc:"Record it into files; off leaves out what defaults say."`
	Events       *Record  `yaml:"events" doc:"Record events as well, into files of their own: the fields of record, with on_event."`
	Infer        *Infer   `yaml:"infer" doc:"Send its pictures to an inference runtime; it needs decode."`
	Push         *Push    `yaml:"push" doc:"Send it to another server."`
}

// Infer is the way of a stream's pictures to an inference runtime.
type Infer struct {
	To          string   `yaml:"to" doc:"The runtime, nnrps://host:port."`
	Token       string   `yaml:"token" secret:"true" doc:"Token for the runtime, as ${VARIABLE} only."`
	TokenFile   string   `yaml:"token_file" shown:"true" doc:"File that holds the token."`
	CA          string   `yaml:"ca" shown:"true" doc:"PEM file with the CA of the runtime's certificate, or the certificate itself."`
	Fingerprint string   `yaml:"fingerprint" doc:"SHA-256 of the runtime's certificate."`
	ServerName  string   `yaml:"server_name" doc:"Name to expect in the certificate; the host of to where it is not set."`
	Model       string   `yaml:"model" doc:"The model that the runtime must have."`
	Size        string   `yaml:"size" doc:"WxH of the tensor; what the model takes where it is not set, else the camera's."`
	DType       string   `yaml:"dtype" doc:"uint8, int8, uint16, fp16 or fp32; what the model takes where it is not set."`
	Layout      string   `yaml:"layout" doc:"nhwc or nchw; what the model takes where it is not set."`
	Channels    int      `yaml:"channels" enum:"0|1|3" default:"0" doc:"1 for luma, 3 for RGB; 0 = what the model takes."`
	FPS         float64  `yaml:"fps" min:"0" max:"1000" default:"0" doc:"At most so many pictures a second; 0 = as fast as results come."`
	InFlight    int      `yaml:"in_flight" min:"1" max:"256" default:"2" doc:"Pictures under way at a time."`
	Latency     Duration `yaml:"latency" default:"1s" doc:"Budget of a picture; a later result is not waited for."`
	Tile        int      `yaml:"tile" min:"0" max:"65535" default:"0" doc:"Send only what has changed, in tiles of so many pixels a side; 0 = whole pictures."`
	Threshold   int      `yaml:"threshold" min:"0" max:"255" default:"2" doc:"tile: mean difference from which a tile counts as changed."`
	Raw         bool     `yaml:"raw" default:"false" doc:"Do not compress."`
	SDKHello    bool     `yaml:"sdk_hello" default:"false" doc:"Send CLIENT_HELLO in the public SDKs' order."`
	Device      int      `yaml:"device" min:"0" max:"255" default:"0" doc:"GPU on which frames in GPU memory are read."`
	Tensors     string   `yaml:"tensors" enum:"numbers|base64" default:"numbers" doc:"How tensors are written: base64 is of little-endian elements."`

	Results     string     `yaml:"results" shown:"true" doc:"Name of the files for the results, a JSON line each: strftime conversions and %{key}. A new file begins when the name changes. Without it no result is kept."`
	ResultsSize Size       `yaml:"results_size" min:"65536" max:"1099511627776" default:"100MiB" doc:"A new file begins at this size as well."`
	Retention   *Retention `yaml:"retention" doc:"Bounds of the results' files."`
	Trigger     *Rule      `yaml:"trigger" doc:"Results that trigger the recording of an event."`
	Isolation   string     `yaml:"isolation" enum:"none|process" default:"none" doc:"process gives it a process of its own."`
}

// Rule says which results are events.
type Rule struct {
	Output string   `yaml:"output" doc:"Output of the model, by name or role_id, such as luma_difference of the engine motion."`
	Above  float64  `yaml:"above" default:"0" doc:"A result triggers when one of the output's numbers is above."`
	For    Duration `yaml:"for" default:"0s" doc:"How long each trigger lasts; the recording's post comes on top. More results prolong it."`
}

// Push is the sending of a stream to another server.
type Push struct {
	To           string `yaml:"to" doc:"rtsp:// URL, or another output of FFmpeg; %{key} stands for the key. A secret in it must come from ${VARIABLE}."`
	ToFile       string `yaml:"to_file" shown:"true" doc:"File that holds the URL, where all of it is a secret."`
	Username     string `yaml:"username" shown:"true" doc:"RTSP: user name."`
	Password     string `yaml:"password" secret:"true" doc:"RTSP: password, as ${VARIABLE} only."`
	PasswordFile string `yaml:"password_file" shown:"true" doc:"RTSP: file that holds the password."`
	Isolation    string `yaml:"isolation" enum:"none|process" default:"none" doc:"process gives it a process of its own."`
}

// Record is the recording of a stream.
type Record struct {
	Out       string     `yaml:"out" shown:"true" doc:"Name of the files: strftime conversions and %{key}. Relative names are those beside the site file."`
	Format    string     `yaml:"format" enum:"fmp4|mkv|ts|mp4" doc:"Container. Default: what the extension of out says; .mp4 is fmp4."`
	Segment   Duration   `yaml:"segment" default:"60s" doc:"Length of a file; 0s = one file."`
	Pre       Duration   `yaml:"pre" default:"0s" doc:"Begin so far in the past, as far as the ring still holds it. With on_event so far before the trigger; 10s then where it is not set."`
	OnEvent   bool       `yaml:"on_event" default:"false" doc:"Record around events alone: cfpipe trigger KEY, or POST /trigger/KEY."`
	Post      Duration   `yaml:"post" default:"10s" doc:"on_event: go on for so long after the trigger, or its end."`
	Longest   Duration   `yaml:"longest" default:"10m" doc:"on_event: bound of an event, pre and post included; 0s = none."`
	Fsync     string     `yaml:"fsync" enum:"fragment|segment|never" default:"never" doc:"When data is forced to the disk."`
	Audio     bool       `yaml:"audio" default:"true" doc:"Record KEY-audio along."`
	Isolation string     `yaml:"isolation" enum:"none|process" default:"none" doc:"process gives the recorder a process of its own."`
	Retention *Retention `yaml:"retention" doc:"Bounds of this camera's recordings."`
}

// Retention bounds recordings; what is not set does not bound.
type Retention struct {
	Age  Duration `yaml:"age" doc:"Files older than this are removed, such as 30d."`
	Size Size     `yaml:"size" doc:"All files together, such as 500GiB."`
	Free Size     `yaml:"free" doc:"Space to keep free on the file system, such as 20GiB."`
}

// Relay is the RTSP server.
type Relay struct {
	Listen       string   `yaml:"listen" shown:"true" default:":8554" doc:"Address to serve RTSP on; off = none, which leaves listen_tls."`
	ListenTLS    string   `yaml:"listen_tls" shown:"true" doc:"Address to serve RTSP over TLS (rtsps) on, such as :8322."`
	Cert         string   `yaml:"cert" shown:"true" doc:"PEM certificate chain for listen_tls; a renewed one is noticed. Default: one is made."`
	KeyFile      string   `yaml:"key_file" shown:"true" doc:"PEM key of cert."`
	Keys         []string `yaml:"keys" shown:"true" doc:"Keys to serve; none = every key of this host."`
	RTPPort      int      `yaml:"rtp_port" min:"-1" max:"65534" default:"0" doc:"First of the two UDP ports for RTP and RTCP; 0 takes free ones, -1 refuses UDP."`
	Multicast    string   `yaml:"multicast" doc:"Serve multicast from this range too, such as 239.255.42.0/24."`
	Username     string   `yaml:"username" shown:"true" doc:"Ask readers for this user name."`
	Password     string   `yaml:"password" secret:"true" doc:"Ask readers for this password, as ${VARIABLE} only."`
	PasswordFile string   `yaml:"password_file" shown:"true" doc:"File that holds that password."`
	Isolation    string   `yaml:"isolation" enum:"none|process" default:"none" doc:"process gives the relay a process of its own."`
}

// HTTP is the API.
type HTTP struct {
	Listen    string `yaml:"listen" shown:"true" default:"127.0.0.1:9464" doc:"Address to serve on. Anything but loopback should stand behind TLS."`
	Token     string `yaml:"token" secret:"true" doc:"Bearer token that every request must carry, as ${VARIABLE} only."`
	TokenFile string `yaml:"token_file" shown:"true" doc:"File that holds the token."`
}

const (
	staggerStep, staggerMost = 50 * time.Millisecond, 10 * time.Second
	// maxCameras bounds what one process is asked to run.
	maxCameras = 1000
)

// withDefaults is a block of which the file says nothing.
func withDefaults[T any]() *T {
	v := new(T)
	setDefaults(reflect.ValueOf(v).Elem())
	return v
}

func defaultConfig() *Config {
	return &Config{Defaults: *withDefaults[Camera](), Cameras: map[string]*Camera{}}
}

func defaultSub() *Stream {
	s := withDefaults[Stream]()
	s.Audio = false
	return s
}

// fresh is a pointer to what a block that appears in the file for the first time begins with, by type.
func fresh(block reflect.Type) reflect.Value {
	if block == reflect.TypeFor[Stream]() {
		return reflect.ValueOf(defaultSub())
	}
	v := reflect.New(block)
	setDefaults(v.Elem())
	return v
}

// clone copies a stream so that nothing is shared.
func (s Stream) clone() Stream {
	s.Record, s.Events, s.Push, s.Infer = s.Record.clone(), s.Events.clone(), copied(s.Push), copied(s.Infer)
	if s.Infer != nil {
		s.Infer.Retention, s.Infer.Trigger = copied(s.Infer.Retention), copied(s.Infer.Trigger)
	}
	return s
}

func (r *Record) clone() *Record {
	c := copied(r)
	if c != nil {
		c.Retention = copied(c.Retention)
	}
	return c
}

// copied is a copy of what p points to.
func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

func (c Camera) clone() *Camera {
	c.Stream = c.Stream.clone()
	if c.Sub != nil {
		s := c.Sub.clone()
		c.Sub = &s
	}
	return &c
}

// Keys returns the cameras' keys, sorted.
func (c *Config) Keys() []string { return slices.Sorted(maps.Keys(c.Cameras)) }

// namedStream is a stream with its key and where it stands in the file.
type namedStream struct {
	key, path string
	*Stream
}

// streams returns all enabled streams in order of their keys.
func (c *Config) streams() []namedStream {
	var all []namedStream
	for key, cam := range c.Cameras {
		if !cam.Enabled {
			continue
		}
		all = append(all, namedStream{key, "cameras." + key, &cam.Stream})
		if cam.Sub != nil && cam.Sub.Enabled {
			all = append(all, namedStream{key + pipeline.SubSuffix, "cameras." + key + ".sub", cam.Sub})
		}
	}
	slices.SortFunc(all, func(a, b namedStream) int { return cmp.Compare(a.key, b.key) })
	return all
}

// recording is a set of files that one stage writes.
type recording struct {
	kind, key, path string // path is where it stands in the file
	*Record
}

// recordings returns those of all enabled streams in order of their keys.
func (c *Config) recordings() (all []recording) {
	for _, s := range c.streams() {
		for name, r := range map[string]*Record{"record": s.Record, "events": s.Events} {
			if r == nil {
				continue
			}
			kind := kindRecord
			if r.OnEvent {
				kind = kindEvents
			}
			all = append(all, recording{kind, s.key, s.path + "." + name, r})
		}
	}
	slices.SortFunc(all, func(a, b recording) int { return cmp.Or(cmp.Compare(a.key, b.key), -cmp.Compare(a.kind, b.kind)) })
	return all
}

// fileSet is what a stage writes files by: a recording, or the results of an inference.
type fileSet struct {
	kind, key, path, out string // path is where the pattern out stands in the file
	keep                 Retention
}

// fileSets returns those of all enabled streams.
func (c *Config) fileSets() (all []fileSet) {
	add := func(f fileSet, keep *Retention) {
		if keep != nil {
			f.keep = *keep
		}
		all = append(all, f)
	}
	for _, r := range c.recordings() {
		add(fileSet{kind: r.kind, key: r.key, path: r.path + ".out", out: r.Out}, r.Retention)
	}
	for _, s := range c.streams() {
		if s.Infer != nil && s.Infer.Results != "" {
			add(fileSet{kind: kindInfer, key: s.key, path: s.path + ".infer.results", out: s.Infer.Results}, s.Infer.Retention)
		}
	}
	return all
}

// staggerOver is the span over which n ingests are spread.
func (c *Config) staggerOver(n int) time.Duration {
	if c.Stagger > 0 {
		return time.Duration(c.Stagger)
	}
	return min(time.Duration(n-1)*staggerStep, staggerMost)
}
