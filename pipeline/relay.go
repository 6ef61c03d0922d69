package pipeline

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/packetring"
)

// RelayOptions describe an RTSP server for the keys of this host.
type RelayOptions struct {
	RuntimeDir string
	Keys       []string // served; none = every key of the host, as publishers come and go

	Listen string // ":8554"; "" or "off" = no port without TLS

	// ListenTLS is the address for rtsps, such as ":8322"; "" = none. CertFile and KeyFile hold its PEM certificate and key, which may be
	// renewed while it runs; without them one is made.
	ListenTLS, CertFile, KeyFile string

	RTPPort       int    // first of two UDP ports, even; 0 takes a free pair, -1 refuses UDP
	Multicast     string // range such as "239.255.42.0/24"; "" refuses multicast
	MulticastPort int    // first of two UDP ports, even; 0 takes a free pair

	Username, Password string // both empty: no authentication

	Logger *slog.Logger // nil = slog.Default()

	grace time.Duration // see relayGrace; 0 = that; for tests

	OnListen func(RelayAddress) // called once the server listens; may be nil
	OnStream func(key string)   // called when a key can be read that could not be before; may be nil
}

// RelayAddress is where a relay listens.
type RelayAddress struct {
	Plain, TLS  *net.TCPAddr // nil: not served
	Fingerprint string       // SHA-256 in hex of the certificate that TLS shows
}

// relayOff stands for no port.
const relayOff = "off"

// Check says what of the addresses and the certificate does not go together.
func (o *RelayOptions) Check() error {
	switch {
	case o.plain() == "" && o.ListenTLS == "":
		return errors.New("neither an address for RTSP (--listen, in a site listen:) nor one for RTSP over TLS (--listen-tls, listen_tls:)")
	case (o.CertFile == "") != (o.KeyFile == ""):
		return errors.New("a certificate and its key go together (--cert and --key-file, in a site cert: and key_file:)")
	case o.CertFile != "" && o.ListenTLS == "":
		return errors.New("a certificate without an address to serve TLS on (--listen-tls, in a site listen_tls:)")
	case o.plain() == "" && o.Multicast != "":
		return errors.New("multicast goes with RTSP without TLS: it is not encrypted")
	}
	return nil
}

func (o *RelayOptions) plain() string {
	if o.Listen == relayOff {
		return ""
	}
	return o.Listen
}

// certificate returns where the server finds its certificate; nil without TLS.
func (o *RelayOptions) certificate() (func() *tls.Certificate, error) {
	if o.ListenTLS == "" {
		return nil, nil
	}
	if o.CertFile != "" {
		files, err := servercert.OpenFiles(o.CertFile, o.KeyFile, o.Logger)
		if err != nil {
			return nil, err
		}
		return files.Certificate, nil
	}
	return servercert.For(o.ListenTLS)
}

// Relay serves until ctx ends. A taken port is an error that says so. Reading is on demand: a key that nobody plays is not read.
//
// rtsp://host/KEY carries KEY, and KEY-audio as its second track when there is one; KEY-audio and KEY-sub are paths of
// their own too. A new reader starts at the last keyframe in the ring, with a cursor of its own.
func Relay(ctx context.Context, o RelayOptions) error {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if err := o.Check(); err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	certificate, err := o.certificate()
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	server, err := rtsp.NewServer(rtsp.ServerOptions{
		Listen: o.plain(), ListenTLS: o.ListenTLS, Certificate: certificate, Catalog: &relayCatalog{o: o},
		RTPPort: o.RTPPort, Multicast: o.Multicast, MulticastPort: o.MulticastPort, Username: o.Username, Password: o.Password, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	defer server.Close()
	at := RelayAddress{Plain: server.Addr(), TLS: server.TLSAddr()}
	if at.TLS != nil {
		at.Fingerprint = servercert.Fingerprint(certificate())
		o.Logger.Info("relay: RTSP over TLS", "address", at.TLS.String(), "fingerprint", at.Fingerprint)
	}
	if o.OnListen != nil {
		o.OnListen(at)
	}
	watchKeys(ctx, o)
	return nil
}

// watchInterval is how often the runtime directory is looked at: it only tells the user what has come; readers ask for themselves.
const watchInterval = 2 * time.Second

// watchKeys reports keys as they come and go, until ctx ends.
func watchKeys(ctx context.Context, o RelayOptions) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	known, denied, unfit := map[string]bool{}, map[string]bool{}, map[string]string{}
	for first := true; ; first = false {
		list, err := framering.List(o.RuntimeDir)
		if err != nil {
			o.Logger.Warn("relay: cannot list the keys of this host", "error", err)
		}
		alive := map[string]bool{}
		for _, p := range list {
			if !serves(o.Keys, p.Key) {
				continue
			}
			if errors.Is(p.Err, os.ErrPermission) && !denied[p.Key] {
				denied[p.Key] = true
				o.Logger.Warn("relay: this user may not read a key: start its publisher with --group, or run as its user", "key", p.Key, "uid", os.Getuid())
			}
			if !relayed(p) {
				continue
			}
			alive[p.Key] = true
			if known[p.Key] && unfit[p.Key] == "" {
				continue
			}
			if err := unservable(p.Key); err != nil {
				if unfit[p.Key] != err.Error() {
					unfit[p.Key] = err.Error()
					o.Logger.Warn("relay: a stream cannot be served", "key", p.Key, "error", err)
				}
			} else {
				delete(unfit, p.Key)
				o.Logger.Info("relay: stream", "key", p.Key)
				if o.OnStream != nil && !strings.HasSuffix(p.Key, AudioSuffix) {
					o.OnStream(p.Key)
				}
			}
		}
		for key := range known {
			if !alive[key] {
				delete(unfit, key)
				o.Logger.Info("relay: stream gone", "key", key)
			}
		}
		if first {
			tellAbsent(o, alive, denied)
		}
		known = alive
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// tellAbsent says what is waited for when the relay starts.
func tellAbsent(o RelayOptions, alive, denied map[string]bool) {
	for _, key := range o.Keys {
		if !alive[key] && !denied[key] {
			o.Logger.Info("relay: waiting for the key to be published", "key", key)
		}
	}
	if len(o.Keys) == 0 && len(alive)+len(denied) == 0 {
		o.Logger.Info("relay: nothing is published yet; keys are served as they come", "runtime_dir", framering.RuntimeDir(o.RuntimeDir))
	}
}

// serves tells whether a path is among the keys: a named key stands for its audio and its second resolution too.
func serves(keys []string, path string) bool {
	return len(keys) == 0 || slices.ContainsFunc(keys, func(key string) bool {
		rest, ok := strings.CutPrefix(path, key)
		return ok && (rest == "" || rest == AudioSuffix || rest == SubSuffix || rest == SubSuffix+AudioSuffix)
	})
}

// relayed tells whether a publication has packets, which RTSP carries: the pictures of a decoder are frames alone.
func relayed(p framering.Publication) bool {
	if !p.Alive {
		return false
	}
	_, err := os.Stat(filepath.Join(shm.Dir, framering.PacketShmName(p.Key)))
	return err == nil
}

// unservable says why RTSP cannot carry a key's packets; nil where it can, and where that is not known.
func unservable(key string) error {
	ring, err := packetring.Inspect(framering.PacketShmName(key))
	if err != nil {
		return nil
	}
	if err := rtsp.CanCarry(trackOf(ring.Info)); errors.Is(err, rtsp.ErrUnsupportedCodec) {
		return err
	}
	return nil
}

// relayCatalog offers keys as RTSP paths.
type relayCatalog struct {
	o    RelayOptions
	hubs relayHubs
}

// track describes the key's track as its publisher has it now.
func (c *relayCatalog) track(key string) (media.Track, error) {
	h, err := c.hubs.acquire(c.o, key)
	if err != nil {
		return media.Track{}, err
	}
	defer c.hubs.release(h)
	return trackOf(h.sub.Info()), nil
}

// Paths implements rtsp.Catalog.
func (c *relayCatalog) Paths() (keys []string) {
	list, err := framering.List(c.o.RuntimeDir)
	if err != nil {
		c.o.Logger.Warn("relay: cannot list the keys of this host", "error", err)
	}
	for _, p := range list {
		if relayed(p) && serves(c.o.Keys, p.Key) && unservable(p.Key) == nil {
			keys = append(keys, p.Key)
		}
	}
	return keys
}

// Tracks implements rtsp.Catalog.
func (c *relayCatalog) Tracks(path string) ([]media.Track, error) {
	if framering.CheckKey(path) != nil || !serves(c.o.Keys, path) {
		return nil, fmt.Errorf("path %.80q: %w", path, os.ErrNotExist)
	}
	first, err := c.track(path)
	if err != nil {
		return nil, err
	}
	tracks := []media.Track{first}
	if first.Kind == media.Video && framering.CheckKey(path+AudioSuffix) == nil {
		switch audio, err := c.track(path + AudioSuffix); {
		case err == nil && audio.Kind == media.Audio && rtsp.CanCarry(audio) == nil:
			tracks = append(tracks, audio)
		case err == nil:
			c.o.Logger.Warn("relay: audio is not served", "key", path+AudioSuffix, "error", rtsp.CanCarry(audio))
		case !errors.Is(err, os.ErrNotExist):
			c.o.Logger.Warn("relay: audio is not served", "key", path+AudioSuffix, "error", err)
		}
	}
	return tracks, nil
}

// trackOf is what a ring says about its packets.
func trackOf(i packetring.Info) media.Track {
	t := media.Track{Kind: media.KindOf(i.CodecID), CodecID: i.CodecID, Extradata: bytes.Clone(i.Extradata), ClockRate: 90000}
	t.Name = t.Kind.String()
	return t
}

// sameDescription tells whether sessions that were given a can go on with b. Parameter sets that were not known yet are no
// change: they come with the keyframes.
func sameDescription(a, b media.Track) bool {
	return a.CodecID == b.CodecID && (len(a.Extradata) == 0 || len(b.Extradata) == 0 || bytes.Equal(a.Extradata, b.Extradata))
}
