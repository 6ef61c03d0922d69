package rtsp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/clock"
	"github.com/cfpipe/cfpipe/internal/media"
)

// rtsps: a camera's own certificate is refused with a message that tells how to accept it, and taken by its fingerprint, by an
// authority of its own, or unseen when asked.
func TestTLS(t *testing.T) {
	begin(t, 30*time.Second)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	sum := sha256.Sum256(der)
	fingerprint := hex.EncodeToString(sum[:])
	pool := x509.NewCertPool()
	pool.AddCert(cert)

	cam := newFakeCam(t, sdpH264(sprop()))
	cam.ln = tls.NewListener(cam.ln, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	cam.play = steady
	cam.start()
	url := strings.Replace(cam.url("/x"), "rtsp:", "rtsps:", 1)
	for name, c := range map[string]struct {
		o     SourceOptions
		fails string
	}{
		"nothing said":      {SourceOptions{}, fingerprint},
		"fingerprint":       {SourceOptions{Fingerprint: strings.ToUpper(fingerprint[:2] + ":" + fingerprint[2:])}, ""},
		"other fingerprint": {SourceOptions{Fingerprint: strings.Repeat("0", 64)}, "not the expected one"},
		"authority":         {SourceOptions{RootCAs: pool}, ""},
		"insecure":          {SourceOptions{Insecure: true}, ""},
	} {
		c.o.URL = url
		r := runSource(t, c.o)
		if c.fails != "" {
			require.ErrorContains(t, r.ended(t), c.fails, name)
			continue
		}
		r.wait(t, 5)
		require.ErrorIs(t, r.stop(t), context.Canceled, name)
	}
}

type discard struct{}

func (discard) Tracks([]media.Track) error     { return nil }
func (discard) Packet(int, media.Packet) error { return nil }
func clockAt(mono int64) clock.Instant         { return clock.Instant{Mono: mono, Wall: 1.8e18 + mono} }

// The way of a packet from the connection to the sink allocates nothing.
func TestReceivingDoesNotAllocate(t *testing.T) {
	s, err := NewSource(SourceOptions{URL: "rtsp://x/"})
	require.NoError(t, err)
	_, list, err := parseSDP([]byte(sdpH264(sprop())))
	require.NoError(t, err)
	format, err := list[0].format()
	require.NoError(t, err)
	f := newFeed(discard{}, []*rtpFormat{format}, &s.o, true, &s.stats)
	st := &stream{kind: 96, seq: 1, ssrc: 7}
	var list2 [][]byte
	for i := range uint32(2000) {
		for _, fu := range fragments(h264Slice(i%50 == 0, true, byte(i), 8000), false, 1400) {
			list2 = append(list2, st.packet(i*3600, fu[1]&0x40 != 0, fu))
		}
	}
	i := 0
	at := clockAt(0)
	feed := func(n int) {
		for range n {
			at.Mono += 6e6
			at.Wall += 6e6
			if err := f.tracks[0].rtp(list2[i], at); err != nil {
				t.Fatal(err)
			}
			i++
		}
	}
	feed(1000)
	require.Zero(t, testing.AllocsPerRun(10, func() { feed(1000) }))
}

// A port that speaks no TLS is told from a camera that closes the connection.
func TestTLSWithPlainPort(t *testing.T) {
	begin(t, 30*time.Second)
	for name, answer := range map[string]func(net.Conn){
		"closes": func(c net.Conn) { _, _ = c.Read(make([]byte, 4096)) },
		"waits":  func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"answers": func(c net.Conn) {
			_, _ = c.Read(make([]byte, 4096))
			_, _ = io.WriteString(c, "RTSP/1.0 400 Bad Request\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if c, err := l.Accept(); err == nil {
					answer(c)
					_ = c.Close()
				}
			}()
			s, err := NewSource(SourceOptions{URL: "rtsps://" + l.Addr().String() + "/cam", Timeout: 300 * time.Millisecond})
			require.NoError(t, err)
			require.ErrorContains(t, s.Run(t.Context(), nil), "if this port speaks plain RTSP, the URL begins with rtsp://")
			require.NoError(t, l.Close())
			<-done
		})
	}
}
