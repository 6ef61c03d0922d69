package quictransport

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/lossylink"
	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/session"
)

// digester answers every frame with the SHA-256 of its first section.
type digester struct {
	sessions atomic.Int32
	delay    atomic.Int64 // nanoseconds of work
}

func (d *digester) Opened(*session.Session) error { d.sessions.Add(1); return nil }
func (d *digester) Ended(*session.Session)        { d.sessions.Add(-1) }
func (d *digester) Submitted(f *session.Frame) {
	go func() {
		time.Sleep(time.Duration(d.delay.Load())) // the engine's work
		if !f.Start() {
			f.Drop()
			return
		}
		sum := sha256.Sum256(f.Submit.Sections[0].Payload)
		f.Reply(&nnrp.ResultPush{ActiveProfileID: 1, TileIndex: nnrp.TileIndex{Count: 1}, Sections: []nnrp.Section{
			{RoleID: 1, DType: nnrp.Uint8, ElementCountPerTile: 32, LengthTable: nnrp.AppendLength(nil, 32), Payload: sum[:]}}})
	}()
}

type runtimeServer struct {
	l    *Listener
	h    *digester
	cert *tls.Certificate
	stop func()
}

func startServer(t *testing.T, addr string, cert *tls.Certificate, p session.Policy) *runtimeServer {
	t.Helper()
	if cert == nil {
		var err error
		cert, err = servercert.SelfSigned()
		require.NoError(t, err)
	}
	l, err := Listen(addr, servercert.Always(cert))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	s := &runtimeServer{l: l, h: &digester{}, cert: cert}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() { _ = session.Serve(ctx, c, s.h, session.ServerOptions{Policy: p}) })
		}
	})
	var once sync.Once
	s.stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
			_ = l.Close()
		})
	}
	t.Cleanup(s.stop)
	return s
}

func (s *runtimeServer) url() string { return "nnrps://" + s.l.Addr().String() }

func (s *runtimeServer) open(t *testing.T, url string) (*session.Client, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := Dial(ctx, url, Trust{Fingerprint: servercert.Fingerprint(s.cert)})
	if err != nil {
		return nil, err
	}
	return session.Open(ctx, c, session.ClientOptions{})
}

func (s *runtimeServer) mustOpen(t *testing.T, url string) *session.Client {
	t.Helper()
	c, err := s.open(t, url)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func tensor(payload []byte) *nnrp.FrameSubmit {
	return &nnrp.FrameSubmit{ProfileID: 1, Tensor: nnrp.TensorSubmit{SrcWidth: 640, SrcHeight: 640, TileWidth: 640, TileHeight: 640},
		TileIndex: nnrp.TileIndex{Count: 1},
		Sections: []nnrp.Section{{RoleID: 1, DType: nnrp.Uint8, ElementCountPerTile: uint32(len(payload)),
			LengthTable: nnrp.AppendLength(nil, len(payload)), Payload: payload}}}
}

func noise(n int) []byte {
	b := make([]byte, n)
	x := uint32(n)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// exchange sends one frame and checks its result.
func exchange(t *testing.T, c *session.Client, payload []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := c.Submit(ctx, tensor(payload), session.SubmitOptions{})
	require.NoError(t, err)
	o, err := c.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, session.Delivered, o.State, "%v", o.Err)
	sum := sha256.Sum256(payload)
	require.Equal(t, sum[:], o.Result.Sections[0].Payload)
	o.Release()
}

func TestTensorsOverQUIC(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	s := startServer(t, "127.0.0.1:0", nil, session.Policy{})
	c := s.mustOpen(t, s.url())
	for _, n := range []int{1, 100, 4096, 640 * 640 * 3} {
		exchange(t, c, noise(n))
	}
	_, err := c.Ping(t.Context())
	require.NoError(t, err)

	// Cancel goes by datagram; the place comes back.
	s.h.delay.Store(int64(50 * time.Millisecond))
	for range 20 {
		id, err := c.Submit(t.Context(), tensor(noise(10)), session.SubmitOptions{})
		require.NoError(t, err)
		c.Cancel(0, id)
		o, err := c.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, session.Cancelled, o.State)
	}
	exchange(t, c, noise(10))
	require.NoError(t, c.Close(t.Context()))
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := s.h.sessions.Load(); n != 0 {
			return errors.New("sessions are left")
		}
		return nil
	})
}

func TestTrust(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	s := startServer(t, "127.0.0.1:0", nil, session.Policy{})
	dir := t.TempDir()
	own := filepath.Join(dir, "own.pem")
	require.NoError(t, os.WriteFile(own, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.cert.Certificate[0]}), 0o600))
	stranger, err := servercert.SelfSigned()
	require.NoError(t, err)
	other := filepath.Join(dir, "other.pem")
	require.NoError(t, os.WriteFile(other, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: stranger.Certificate[0]}), 0o600))
	junk := filepath.Join(dir, "junk.pem")
	require.NoError(t, os.WriteFile(junk, []byte("junk"), 0o600))
	fp := servercert.Fingerprint(s.cert)
	var colons []string
	for i := 0; i < len(fp); i += 2 {
		colons = append(colons, strings.ToUpper(fp[i:i+2]))
	}
	for name, c := range map[string]struct {
		trust Trust
		want  string
		shown bool // the server's certificate was
	}{
		"fingerprint":             {Trust{Fingerprint: fp}, "", false},
		"fingerprint with colons": {Trust{Fingerprint: strings.Join(colons, ":")}, "", false},
		"certificate file":        {Trust{CAFile: own}, "", false},
		"system CAs":              {Trust{}, "--fingerprint", true},
		"other fingerprint":       {Trust{Fingerprint: servercert.Fingerprint(stranger)}, "not the pinned one", true},
		"other certificate":       {Trust{CAFile: other}, "certificate", true},
		"other name":              {Trust{CAFile: own, ServerName: "elsewhere.example"}, "elsewhere.example", true},
		"not a fingerprint":       {Trust{Fingerprint: "abcd"}, "64 digits", false},
		"no PEM":                  {Trust{CAFile: junk}, "no PEM", false},
		"no file":                 {Trust{CAFile: filepath.Join(dir, "absent")}, "read CA file", false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		conn, err := Dial(ctx, s.url(), c.trust)
		if c.want == "" {
			require.NoError(t, err, name)
			cl, err := session.Open(ctx, conn, session.ClientOptions{})
			require.NoError(t, err, name)
			require.NoError(t, cl.Close(ctx))
		} else {
			require.ErrorContains(t, err, c.want, name)
			var untrusted *CertificateError
			require.Equal(t, c.shown, errors.As(err, &untrusted), "%s: %v", name, err)
			if c.shown {
				require.Equal(t, fp, untrusted.Fingerprint, name)
				require.ErrorContains(t, err, fp, name)
				require.NotContains(t, err.Error(), "CRYPTO_ERROR", name)
			}
		}
		cancel()
	}
}

func TestOtherProtocolIsRefused(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	s := startServer(t, "127.0.0.1:0", nil, session.Policy{})
	_, err := quic.DialAddr(t.Context(), s.l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}, nil)
	require.ErrorContains(t, err, "no application protocol")
	exchange(t, s.mustOpen(t, s.url()), noise(10))
}

func TestTokens(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(" s3cret\n"), 0o600))
	token, err := LoadToken(file)
	require.NoError(t, err)
	require.Equal(t, "s3cret", string(token))
	require.NoError(t, os.WriteFile(file, []byte("\n"), 0o600))
	_, err = LoadToken(file)
	require.ErrorContains(t, err, "empty")
	require.NoError(t, os.WriteFile(file, make([]byte, maxToken+1), 0o600))
	_, err = LoadToken(file)
	require.ErrorContains(t, err, "longer")
	_, err = LoadToken(file + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = LoadToken(t.TempDir()) // an error of reading is not an empty file
	require.ErrorContains(t, err, "is a directory")

	check, err := CheckToken(token, []byte("second"))
	require.NoError(t, err)
	s := startServer(t, "127.0.0.1:0", nil, session.Policy{Authenticate: check})
	for auth, ok := range map[string]bool{"s3cret": true, "second": true, "s3cre": false, "": false, "s3cretx": false} {
		conn, err := Dial(t.Context(), s.url(), Trust{Fingerprint: servercert.Fingerprint(s.cert)})
		require.NoError(t, err)
		c, err := session.Open(t.Context(), conn, session.ClientOptions{Hello: nnrp.ClientHello{Auth: []byte(auth)}})
		if !ok {
			require.ErrorIs(t, err, nnrp.ErrAuthFailed, "%q", auth)
			continue
		}
		require.NoError(t, err)
		require.EqualValues(t, nnrp.AuthAccepted, c.Agreement().AuthStatus)
		require.NoError(t, c.Close(t.Context()))
	}
}

func TestURL(t *testing.T) {
	for in, want := range map[string]string{"nnrps://h:1": "h:1", "nnrps://h": "h:4433", "nnrps://[::1]:9/": "[::1]:9"} {
		_, addr, err := ParseURL(in)
		require.NoError(t, err)
		require.Equal(t, want, addr)
	}
	for _, in := range []string{"h:1", "nnrp://h", "https://h", "nnrps://", "nnrps://h/x", "nnrps://u:secret@h", "nnrps://h?x", "nnrps://h:secret"} {
		_, _, err := ParseURL(in)
		require.Error(t, err, in)
		require.NotContains(t, err.Error(), "secret")
	}
}

// TestRestart: the server goes away, without a word and in order, and comes back on its port; the client follows.
func TestRestart(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	s := startServer(t, "127.0.0.1:0", nil, session.Policy{})
	addr, url := s.l.Addr().String(), s.url()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rounds, errs := make(chan *session.Client), make(chan error, 100)
	done := make(chan error, 1)
	go func() {
		done <- session.Redial(ctx, session.Backoff{Min: 10 * time.Millisecond, Max: 50 * time.Millisecond},
			func(context.Context) (*session.Client, error) { return s.open(t, url) },
			func(ctx context.Context, c *session.Client) error {
				select {
				case rounds <- c:
				case <-ctx.Done():
				}
				<-c.Done()
				return c.Err()
			}, func(err error, _ time.Duration) { errs <- err })
	}()
	exchange(t, <-rounds, noise(100))
	s.stop()
	require.ErrorIs(t, <-errs, session.ErrClosed)
	again := startServer(t, addr, s.cert, session.Policy{})
	c := <-rounds
	exchange(t, c, noise(100))
	cancel()
	_ = c.Close(context.Background())
	require.NoError(t, <-done)
	_ = again

	require.ErrorIs(t, session.Redial(t.Context(), session.Backoff{}, func(context.Context) (*session.Client, error) {
		return nil, nnrp.NewError(nnrp.CodeAuthFailed, "no")
	}, nil, nil), nnrp.ErrAuthFailed)
}

// TestLossyPath: 50 ms round trip and 2 % loss. Results keep coming, what is late is dropped, memory stays flat.
func TestLossyPath(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	s := startServer(t, "127.0.0.1:0", nil, session.Policy{Concurrent: 4})
	p, err := lossylink.NewProxy(s.l.Addr(), lossylink.Options{OneWay: 25 * time.Millisecond, Loss: 0.02})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	c := s.mustOpen(t, "nnrps://"+p.Addr().String())
	payload := noise(8 << 10) // a tenth of the tiles of a static picture, compressed
	got := map[session.FrameState]int{}
	collected := make(chan struct{})
	const frames = 100
	go func() {
		defer close(collected)
		for range frames {
			o, err := c.Next(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			got[o.State]++
			o.Release()
		}
	}()
	var before, after runtime.MemStats
	for i := range frames {
		if i == frames/3 {
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
		m := tensor(payload)
		m.FrameClass, m.LatencyBudgetMs = nnrp.ClassDiscardable, 400
		_, err := c.Submit(t.Context(), m, session.SubmitOptions{})
		require.NoError(t, err)
	}
	<-collected
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("outcomes %v, heap %d KiB → %d KiB", got, before.HeapAlloc>>10, after.HeapAlloc>>10)
	require.Greater(t, got[session.Delivered], frames/4, "the rest was overtaken by newer pictures")
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(8<<20))
}

// A renewed certificate is shown to the client that comes next; a session that is open goes on.
func TestRenewedCertificate(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	var shown atomic.Pointer[tls.Certificate]
	renew := func() string {
		made, err := servercert.SelfSigned()
		require.NoError(t, err)
		shown.Store(made)
		return servercert.Fingerprint(made)
	}
	first := renew()
	l, err := Listen("127.0.0.1:0", shown.Load)
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	dial := func(pinned string) (session.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return Dial(ctx, "nnrps://"+l.Addr().String(), Trust{Fingerprint: pinned})
	}
	open, err := dial(first)
	require.NoError(t, err)
	defer func() { _ = open.CloseWithError(0, "") }()
	second := renew()
	_, err = dial(first)
	var refused *CertificateError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, second, refused.Fingerprint)
	next, err := dial(second)
	require.NoError(t, err)
	require.NoError(t, next.CloseWithError(0, ""))
	select {
	case <-open.Done():
		t.Fatal("the connection of before has ended")
	default:
	}
}

// A port at which nobody answers.
func TestDialSilence(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	_, err = Dial(t.Context(), "nnrps://"+silent.LocalAddr().String(), Trust{})
	require.ErrorContains(t, err, "no answer within 5s")
}
