package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/mux"
)

// PushOptions describe the sending of keys to other servers.
type PushOptions struct {
	RuntimeDir string
	Keys       []string // at least one
	// URL is where to: rtsp:// by ANNOUNCE and RECORD, or any output of FFmpeg: rtmp:// as FLV, all else as an MPEG transport
	// stream. "%{key}" stands for the key and is needed when there are several.
	URL string
	// Username and Password are for RTSP servers, in place of what stands in the URL.
	Username, Password string

	WaitForKey             time.Duration // for each key at the start; 0 = not at all, negative = as long as ctx lets it
	MinBackoff, MaxBackoff time.Duration // between two attempts; 0 = 1 s and 60 s. 30 times the first at least after a refused login
	Counter                *PushCounter  // gets the counts, for others to read; may be nil
	Logger                 *slog.Logger  // nil = slog.Default()
}

const (
	defaultMinBackoff = time.Second
	defaultMaxBackoff = time.Minute
	// goodPush is how long a connection must have lasted for the next wait to be the shortest one again.
	goodPush = 10 * time.Second
	// pushTimeout bounds connecting and every write.
	pushTimeout = 10 * time.Second
)

// Check returns what is wrong with the options, for people.
func (o PushOptions) Check() error {
	switch {
	case len(o.Keys) == 0:
		return errors.New("push: name the key to send")
	case len(o.Keys) > 1 && !strings.Contains(o.URL, keyPlaceholder):
		return errors.New("push: several keys to one URL: put %{key} into it")
	case !strings.Contains(o.URL, "://") && !strings.HasPrefix(o.URL, "/"):
		return errors.New("push: the URL has no scheme, for example rtsp://host/path")
	}
	scheme, _, found := strings.Cut(o.URL, "://")
	if outputs := append([]string{"rtsp", "rtsps"}, av.OutputProtocols()...); found && !slices.Contains(outputs, scheme) {
		slices.Sort(outputs)
		return fmt.Errorf("push: nothing here sends to %.40q: want one of %s", scheme+"://", strings.Join(outputs, ", "))
	}
	return nil
}

const keyPlaceholder = "%{key}"

// Push sends keys until ctx ends. A connection that fails is made again, after a wait that grows to MaxBackoff. A key that does
// not exist at the start is an error that Is os.ErrNotExist; one that goes away later is waited for.
func Push(ctx context.Context, o PushOptions) error {
	if err := o.Check(); err != nil {
		return err
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MinBackoff <= 0 {
		o.MinBackoff = defaultMinBackoff
	}
	if o.MaxBackoff <= 0 {
		o.MaxBackoff = defaultMaxBackoff
	}
	if o.Counter == nil {
		o.Counter = &PushCounter{}
	}
	catalog := &relayCatalog{o: RelayOptions{RuntimeDir: o.RuntimeDir, Keys: o.Keys, Logger: o.Logger}}
	for _, key := range o.Keys {
		if o.WaitForKey != 0 {
			if err := awaitPublisher(ctx, o, key); ctx.Err() != nil {
				return nil
			} else if err != nil {
				return fmt.Errorf("push: %w", err)
			}
		}
		if _, err := catalog.Tracks(key); err != nil {
			return fmt.Errorf("push: %w", err)
		}
	}
	var done sync.WaitGroup
	for _, key := range o.Keys {
		done.Go(func() { pushKey(ctx, o, catalog, key) })
	}
	done.Wait()
	return nil
}

// awaitPublisher waits until a key is published, and for its audio as long as ingest needs to publish that too.
func awaitPublisher(ctx context.Context, o PushOptions, key string) error {
	sub, err := Subscribe(ctx, SubscribeOptions{RuntimeDir: o.RuntimeDir, Key: key, Name: "push", WaitForKey: o.WaitForKey, Logger: o.Logger})
	if err != nil {
		return err
	}
	pause(ctx, audioGrace)
	return sub.Close()
}

// pushKey keeps one key connected.
func pushKey(ctx context.Context, o PushOptions, catalog *relayCatalog, key string) {
	target := strings.ReplaceAll(o.URL, keyPlaceholder, key)
	log := o.Logger.With("key", key, "to", rtsp.Redact(target))
	wait := o.MinBackoff
	for {
		begin := time.Now()
		o.Counter.trying()
		stood, err := pushOnce(ctx, o, catalog, key, target, log)
		o.Counter.failed(err)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) >= goodPush {
			wait = o.MinBackoff
		}
		what := "connection lost"
		if !stood {
			what = notPushed(err)
		}
		next := wait
		if errors.Is(err, media.ErrLogin) {
			next = max(next, loginBackoff*o.MinBackoff)
		}
		log.Warn("push: "+what, "error", av.Mask(err.Error()), "again_in", next)
		if sleep(ctx, next) != nil {
			return
		}
		wait = min(2*wait, o.MaxBackoff)
	}
}

// notPushed says what kept a connection from coming about.
func notPushed(err error) string {
	switch {
	case errors.Is(err, ErrNoKey):
		return "the key is not published now"
	case errors.Is(err, media.ErrUnsupported):
		return "the stream cannot be sent"
	case errors.Is(err, media.ErrLogin):
		return "the server refuses the login; tried again slowly, since servers lock accounts"
	case rtsp.Refused(err):
		return "the server refuses the stream"
	}
	return "cannot connect"
}

// pushOnce makes one connection and returns why it has ended; stood says whether the server took packets on it.
func pushOnce(ctx context.Context, o PushOptions, catalog *relayCatalog, key, target string, log *slog.Logger) (stood bool, err error) {
	tracks, err := catalog.Tracks(key)
	if err != nil {
		return false, err
	}
	started := func(more ...any) {
		stood = true
		o.Counter.connected(1)
		log.Info("push: connected", more...)
	}
	defer func() {
		if stood {
			o.Counter.connected(-1)
		}
	}()
	if scheme, _, _ := strings.Cut(target, "://"); scheme == "rtsp" || scheme == "rtsps" {
		err = rtsp.Push(ctx, rtsp.PushOptions{
			URL: target, Username: o.Username, Password: o.Password, Tracks: tracks, Timeout: pushTimeout,
			OnStart: func() { started() },
		}, func() (rtsp.StreamReader, error) { return o.open(catalog, key, tracks) })
		return stood, err
	}
	err = pushURL(ctx, o, catalog, key, target, tracks, log, started)
	return stood, err
}

// open reads all tracks, and counts.
func (o PushOptions) open(catalog *relayCatalog, key string, tracks []media.Track) (rtsp.StreamReader, error) {
	r, err := catalog.open(key, tracks)
	if err != nil {
		return nil, err
	}
	return &countedReader{StreamReader: r, c: o.Counter}, nil
}

// open reads all tracks.
func (c *relayCatalog) open(key string, tracks []media.Track) (rtsp.StreamReader, error) {
	indices := make([]int, len(tracks))
	for i := range indices {
		indices[i] = i
	}
	return c.Open(key, tracks, indices)
}

// containerFor is what a URL takes.
func containerFor(target string) mux.Format {
	scheme, _, _ := strings.Cut(target, "://")
	if strings.HasPrefix(strings.ToLower(scheme), "rtmp") {
		return mux.FLV
	}
	return mux.TS
}

// pushURL sends one connection's worth through FFmpeg.
func pushURL(ctx context.Context, o PushOptions, catalog *relayCatalog, key, target string, tracks []media.Track, log *slog.Logger, started func(...any)) error {
	if tracks[0].Kind != media.Video {
		return fmt.Errorf("%w: a key without video can be pushed to an RTSP server alone", media.ErrUnsupported)
	}
	format := containerFor(target)
	if len(tracks) > 1 {
		if err := mux.HoldsAudio(format, tracks[1].CodecID); err != nil {
			log.Warn("push: without audio", "error", err)
			tracks = tracks[:1]
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out, err := av.OpenURL(ctx, withPacketSize(target), pushTimeout)
	if err != nil {
		return err
	}
	defer out.Close()
	reader, err := o.open(catalog, key, tracks)
	if err != nil {
		return err
	}
	defer reader.Close()
	started("format", format)

	first, err := reader.Next(ctx, mux.VideoTrack)
	if err != nil {
		return err
	}
	options := mux.WriterOptions{Format: format, Video: tracks[0], Key: first.Data, Out: out, Start: first.DTS, Live: true}
	if len(tracks) > 1 {
		options.Audio = &tracks[1]
	}
	w, err := mux.NewWriter(options)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Write(mux.VideoTrack, first); err != nil {
		return err
	}
	// Each track has its own reader; the writer takes one packet at a time.
	var mu sync.Mutex
	failed := make(chan error, len(tracks))
	var done sync.WaitGroup
	defer done.Wait()
	defer cancel()
	for t := range tracks {
		done.Go(func() {
			for {
				p, err := reader.Next(ctx, t)
				if err == nil {
					mu.Lock()
					err = w.Write(t, p)
					mu.Unlock()
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	return <-failed
}

// withPacketSize lets UDP datagrams hold whole transport stream packets (7 × 188 bytes), which receivers expect.
func withPacketSize(target string) string {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "udp" || u.Query().Has("pkt_size") {
		return target
	}
	q := u.Query()
	q.Set("pkt_size", "1316")
	u.RawQuery = q.Encode()
	return u.String()
}
