package pipeline

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// writeCertificate makes a certificate and writes it and its key; it returns the fingerprint.
func writeCertificate(t *testing.T, certFile, keyFile string) string {
	t.Helper()
	c, err := servercert.SelfSigned()
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(t, os.WriteFile(name+".new", pem.EncodeToMemory(block), 0o600))
		require.NoError(t, os.Rename(name+".new", name))
	}
	return servercert.Fingerprint(c)
}

// firstUnits is a sink that counts access units, and those that say something was lost in front of them.
type firstUnits struct {
	want    int
	n, gaps int
	done    chan struct{}
}

func (f *firstUnits) Tracks([]media.Track) error { return nil }

func (f *firstUnits) Packet(track int, p media.Packet) error {
	if track > 0 {
		return nil
	}
	if f.n++; f.n > 1 && p.Flags&media.FlagDiscontinuity != 0 {
		f.gaps++
	}
	if f.n == f.want {
		close(f.done)
	}
	return nil
}

// Over TLS ffmpeg, GStreamer and our own client read what is in the ring, with credentials, and over plain RTSP beside it.
func TestRelayTLSReaders(t *testing.T) {
	t.Parallel() // runs when the tests that look for leaks are done
	testenv.Watchdog(t, 3*time.Minute)
	l := newLive(t, embedded(t), time.Second)
	certFile, keyFile := filepath.Join(l.dir, "cert.pem"), filepath.Join(l.dir, "key.pem")
	fingerprint := writeCertificate(t, certFile, keyFile)
	at := l.relayTLS(RelayOptions{ListenTLS: "127.0.0.1:0", CertFile: certFile, KeyFile: keyFile, Username: "viewer", Password: "s:e@cret"})
	require.Equal(t, fingerprint, at.Fingerprint)
	require.NotNil(t, at.Plain)
	target := at.TLS.String() + "/" + l.key

	t.Run("ffmpeg", func(t *testing.T) {
		t.Parallel()
		for _, url := range []string{"rtsps://viewer:s%3Ae%40cret@" + target, "rtsp://viewer:s%3Ae%40cret@" + at.Plain.String() + "/" + l.key} {
			got := received(t, url, 2, "-rtsp_transport", "tcp")
			require.Greater(t, len(got["0"]), 40)
			requireGapless(t, l.clip, 0, got["0"])
			requireGapless(t, l.clip, 1, got["1"])
		}
	})
	t.Run("gstreamer", func(t *testing.T) {
		t.Parallel()
		url, user := "rtsps://"+target, []string{"user-id=viewer", "user-pw=s:e@cret"}
		for _, protocols := range []string{"tcp", "tcp+udp+udp-mcast"} { // the latter asks for UDP first
			got := received264(t, url, append(user, "protocols="+protocols, "tls-validation-flags=0")...)
			require.Greater(t, len(got), 30) // of 80 NAL units
			requireRepeats(t, slicesOf(l.clip), got)
		}
		b, err := exec.Command("gst-launch-1.0", "-q", "rtspsrc", "location="+url, user[0], user[1], "!", "fakesink").CombinedOutput()
		require.Error(t, err, "GStreamer takes a certificate that nobody vouches for: %s", b)
	})
	t.Run("ingest", func(t *testing.T) {
		t.Parallel()
		for name, c := range map[string]struct {
			o     SourceOptions
			fails string
		}{
			"fingerprint": {SourceOptions{Fingerprint: fingerprint}, ""},
			"certificate": {SourceOptions{CAFile: certFile}, ""},
			"nothing":     {SourceOptions{}, fingerprint},
		} {
			c.o.URL, c.o.Username, c.o.Password, c.o.Logger = "rtsps://"+target, "viewer", "s:e@cret", slog.New(slog.DiscardHandler)
			source, err := OpenSource(c.o)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			units := &firstUnits{want: 50, done: make(chan struct{})}
			ended := make(chan error, 1)
			go func() { ended <- source.Run(ctx, units) }()
			if c.fails != "" {
				require.ErrorContains(t, <-ended, c.fails, name)
				cancel()
				continue
			}
			select {
			case <-units.done:
			case err := <-ended:
				t.Fatal(name, err)
			}
			cancel()
			<-ended
			require.Zero(t, units.gaps, name)
		}
	})
	t.Run("password", func(t *testing.T) {
		t.Parallel()
		c := testenv.DialRTSPS(t, at.TLS.String(), l.key)
		status, _, _ := c.Do("DESCRIBE", c.URL)
		require.Equal(t, 401, status)
	})
}

// A relay may serve TLS alone. Nothing of a stream leaves it: other transports are passed over where TCP is offered too, else refused.
func TestRelayTLSAlone(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, silent(t), time.Second)
	for _, listen := range []string{"off", ""} { // "" is startRelay's: a port beside it
		at := l.relayTLS(RelayOptions{Listen: listen, ListenTLS: "127.0.0.1:0"})
		require.Equal(t, listen == "off", at.Plain == nil)
		c := testenv.DialRTSPS(t, at.TLS.String(), l.key)
		state := c.Conn.(*tls.Conn).ConnectionState()
		require.Equal(t, at.Fingerprint, servercert.FingerprintOf(state.PeerCertificates[0].Raw))
		status, _, _ := c.Do("SETUP", c.URL+"/trackID=0", "Transport: RTP/AVP;unicast;client_port=45020-45021")
		require.Equal(t, 461, status)
		status, header, _ := c.Do("SETUP", c.URL+"/trackID=0", "Transport: RTP/AVP;unicast;client_port=45020-45021,RTP/AVP/TCP;unicast;interleaved=2-3")
		require.Equal(t, 200, status)
		require.Contains(t, header["transport"], "interleaved=2-3")
		status, _, _ = c.Do("PLAY", c.URL)
		require.Equal(t, 200, status)
		c.Frame()

		_, err := tls.Dial("tcp", at.TLS.String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11})
		require.Error(t, err, "TLS 1.1 is out of date")
		old, err := tls.Dial("tcp", at.TLS.String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
		require.NoError(t, err)
		old.Close()
		plain, err := net.Dial("tcp", at.TLS.String())
		require.NoError(t, err)
		_ = plain.SetDeadline(time.Now().Add(5 * time.Second))
		_, err = plain.Write([]byte("OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n"))
		require.NoError(t, err)
		b := make([]byte, 100)
		n, _ := plain.Read(b)
		require.NotContains(t, string(b[:n]), "RTSP/1.0 200", "the port answers without TLS")
		plain.Close()
	}
	for name, o := range map[string]RelayOptions{
		"neither an address for RTSP": {Listen: "off"},
		"go together":                 {ListenTLS: ":0", CertFile: "x"},
		"address to serve TLS":        {Listen: ":0", CertFile: "x", KeyFile: "y"},
		"multicast goes with":         {Listen: "off", ListenTLS: ":0", Multicast: "239.255.42.0/24"},
		"no such file":                {ListenTLS: ":0", CertFile: "/nonexistent/c", KeyFile: "/nonexistent/k"},
		"failed to find any":          {ListenTLS: ":0", CertFile: os.Args[0], KeyFile: os.Args[0]},
		"missing port":                {ListenTLS: "localhost"},
		"is taken by another p":       {ListenTLS: l.taken()},
	} {
		o.Logger = slog.New(slog.DiscardHandler)
		require.ErrorContains(t, Relay(t.Context(), o), name)
	}
}

// taken is an address that is listened on until the test ends.
func (l *live) taken() string {
	port, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(l.t, err)
	l.t.Cleanup(func() { port.Close() })
	return port.Addr().String()
}

// A renewed certificate is shown to the next peer; who plays goes on.
func TestRelayTLSRenewal(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, silent(t), time.Second)
	certFile, keyFile := filepath.Join(l.dir, "cert.pem"), filepath.Join(l.dir, "key.pem")
	writeCertificate(t, certFile, keyFile)
	var log testenv.Log
	at := l.relayTLS(RelayOptions{ListenTLS: "127.0.0.1:0", CertFile: certFile, KeyFile: keyFile, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	playing := l.playTLS(at.TLS)
	renewed := writeCertificate(t, certFile, keyFile)
	require.NotEqual(t, at.Fingerprint, renewed)
	testenv.Eventually(t, 5*time.Second, func() error {
		playing.Frame()
		conn, err := tls.Dial("tcp", at.TLS.String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err
		}
		defer conn.Close()
		if got := servercert.FingerprintOf(conn.ConnectionState().PeerCertificates[0].Raw); got != renewed {
			return fmt.Errorf("fingerprint %s", got)
		}
		return nil
	})
	for range 50 {
		playing.Frame()
	}
	require.Contains(t, log.String(), renewed)
}

// Peers that stall in the handshake, send garbage or half a request over TLS keep nobody out, and leave nothing behind.
func TestRelayTLSHostilePeers(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, silent(t), time.Second)
	at := l.relayTLS(RelayOptions{Listen: "off", ListenTLS: "127.0.0.1:0"})
	good := l.playTLS(at.TLS)
	before := testenv.Holds(t)
	hello := clientHello(t)
	var peers []net.Conn
	for i := range 600 { // the kernel has room for as many to wait; the relay has not
		conn, err := net.Dial("tcp", at.TLS.String())
		require.NoError(t, err)
		peers = append(peers, conn)
		switch i % 5 {
		case 0: // says nothing
		case 1:
			_, _ = conn.Write(hello[:len(hello)/2])
		case 2:
			_, _ = conn.Write(hello) // and does not go on
		case 3:
			_, _ = conn.Write(bytes.Repeat([]byte{0x16, 3, 1, 0xFF, 0xFF}, 200))
		case 4:
			secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			if secure.Handshake() == nil {
				_, _ = secure.Write([]byte("DESCRIBE rts"))
			}
		}
		if i%100 == 99 {
			l.playTLS(at.TLS).Conn.Close()
		}
	}
	require.Less(t, runtime.NumGoroutine()-before.Goroutines, 256*3+50, "strangers are not bounded")
	for range 50 {
		good.Frame()
	}
	for _, conn := range peers {
		conn.Close()
	}
	testenv.Eventually(t, 10*time.Second, before.Back(t, testenv.Held{Goroutines: 2, Files: 2}))
}

// clientHello is the first flight of a TLS client.
func clientHello(t *testing.T) []byte {
	t.Helper()
	a, b := net.Pipe()
	go func() { _ = tls.Client(a, &tls.Config{InsecureSkipVerify: true}).Handshake() }()
	buf := make([]byte, 4096)
	n, err := b.Read(buf)
	require.NoError(t, err)
	a.Close()
	b.Close()
	return buf[:n]
}

// The command prints where it listens and the fingerprint to pin; a missing certificate has the exit status of a missing file.
func TestRelayTLSCommand(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	bin := testenv.Binary(t)
	l := newLive(t, silent(t), time.Second)
	p := testenv.Start(t, bin, "--runtime-dir", l.dir, "relay", "--listen", "off", "--listen-tls", "127.0.0.1:0")
	var lines []string
	testenv.Eventually(t, 10*time.Second, func() error {
		if lines = strings.Split(strings.TrimSpace(p.Stdout()), "\n"); len(lines) < 2 {
			return fmt.Errorf("stdout: %q", p.Stdout())
		}
		return nil
	})
	fingerprint, ok := strings.CutPrefix(lines[0], "fingerprint ")
	require.True(t, ok, lines)
	require.True(t, strings.HasPrefix(lines[1], "rtsps://127.0.0.1:") && strings.HasSuffix(lines[1], "/"+l.key), lines)
	address := strings.TrimSuffix(strings.TrimPrefix(lines[1], "rtsps://"), "/"+l.key)
	c := testenv.DialRTSPS(t, address, l.key)
	require.Equal(t, fingerprint, servercert.FingerprintOf(c.Conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Raw))

	for status, args := range map[int][]string{
		2: {"relay", "--listen", "off"},
		3: {"relay", "--listen-tls", "127.0.0.1:0", "--cert", "/nonexistent", "--key-file", "/nonexistent"},
	} {
		p := testenv.Start(t, bin, append([]string{"--runtime-dir", l.dir}, args...)...)
		require.Error(t, p.WaitFor(t, 10*time.Second))
		require.Equal(t, status, p.ProcessState.ExitCode(), p.Stderr())
	}
}
