package quictransport

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Trust says how a client knows its server. The zero value trusts the system's CAs.
type Trust struct {
	CAFile      string // PEM: CAs, or the server's own certificate
	Fingerprint string // SHA-256 of the server's certificate in hex, colons allowed; it alone decides then, whatever name and dates say
	ServerName  string // to check in the certificate instead of the URL's host
}

// ErrFingerprint is the cause of a Trust's error when its Fingerprint can be none.
var ErrFingerprint = errors.New("it is not a SHA-256 in hex (64 digits)")

// CertificateError is the cause of a Dial's error when the server has shown a certificate that is not trusted. Another attempt will
// not mend it unless the server changes.
type CertificateError struct {
	Fingerprint string // of the certificate that was shown
	Err         error  // why it is not trusted; nil = its fingerprint is not the pinned one
}

// Error says what to give for the certificate to be trusted.
func (e *CertificateError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("the server's certificate has the fingerprint %s, not the pinned one: give it when it is the one that the runtime prints", e.Fingerprint)
	}
	return fmt.Sprintf("%v; the server has shown the fingerprint %s: give it (--fingerprint, in a site fingerprint:) when it is the one that the runtime prints, or the CA (--ca, ca:)",
		e.Err, e.Fingerprint)
}

func (e *CertificateError) Unwrap() error { return e.Err }

// certificateError finds the certificate's error in that of a handshake, without the numbers of QUIC around it.
func certificateError(err error) error {
	var refused *CertificateError
	if errors.As(err, &refused) {
		return refused
	}
	var unverified *tls.CertificateVerificationError
	if errors.As(err, &unverified) && len(unverified.UnverifiedCertificates) > 0 {
		return &CertificateError{Fingerprint: fingerprint(unverified.UnverifiedCertificates[0].Raw), Err: unverified}
	}
	return err
}

// Check says whether the certificates can be read and the fingerprint can be one.
func (t *Trust) Check() error {
	_, err := t.tls("")
	return err
}

func (t *Trust) tls(host string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{nnrp.ALPN}, ServerName: host}
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	if t.Fingerprint != "" {
		want, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(t.Fingerprint), ":", ""))
		if err != nil || len(want) != sha256.Size {
			return nil, fmt.Errorf("nnrp: fingerprint %.80q: %w", t.Fingerprint, ErrFingerprint)
		}
		c.InsecureSkipVerify = true // VerifyConnection checks instead
		c.VerifyConnection = func(s tls.ConnectionState) error {
			got := sha256.Sum256(s.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(got[:], want) != 1 {
				return &CertificateError{Fingerprint: hex.EncodeToString(got[:])}
			}
			return nil
		}
		return c, nil
	}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("nnrp: read CA file: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("nnrp: CA file %s holds no PEM certificate", t.CAFile)
		}
	}
	return c, nil
}

// Fingerprint returns the SHA-256 of a certificate in the form that Trust takes.
func Fingerprint(c *tls.Certificate) string {
	return fingerprint(c.Certificate[0])
}

func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// LoadCertificate reads a server's PEM certificate chain and key.
func LoadCertificate(certFile, keyFile string) (*tls.Certificate, error) {
	c, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("nnrp: load certificate: %w", err)
	}
	return &c, nil
}

// selfSignedLife keeps a made certificate valid for as long as a server is likely to run; who pins it ignores the dates anyway.
const selfSignedLife = 365 * 24 * time.Hour

// SelfSigned makes a certificate for the host's names and the given ones. Clients pin its Fingerprint.
func SelfSigned(hosts ...string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("nnrp: make certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("nnrp: make certificate: %w", err)
	}
	name := "localhost"
	if h, err := os.Hostname(); err == nil {
		name = h
	}
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), // clocks differ
		NotAfter:     time.Now().Add(selfSignedLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{name, "localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if h != "" {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("nnrp: make certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// maxToken bounds a token file; a token also has to fit in a CLIENT_HELLO.
const maxToken = 16 << 10

// LoadToken reads a token from a file; white space at its ends does not count.
func LoadToken(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("nnrp: read token: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return nil, fmt.Errorf("nnrp: read token: %w", err)
	}
	token := strings.TrimSpace(string(b))
	switch {
	case len(b) > maxToken:
		return nil, fmt.Errorf("nnrp: token file %s is longer than %d bytes", file, maxToken)
	case token == "":
		return nil, fmt.Errorf("nnrp: token file %s is empty", file)
	}
	return []byte(token), nil
}

// CheckToken returns an Authenticate function for session.Policy that accepts one of the tokens. It takes the same time for every
// auth_block of a length, and compares digests, so that the time does not tell a token's length either.
func CheckToken(tokens ...[]byte) (func(auth []byte) (uint8, time.Duration), error) {
	if len(tokens) == 0 {
		return nil, errors.New("nnrp: no token")
	}
	var want [][sha256.Size]byte
	for _, t := range tokens {
		want = append(want, sha256.Sum256(t))
	}
	return func(auth []byte) (uint8, time.Duration) {
		got, ok := sha256.Sum256(auth), 0
		for i := range want {
			ok |= subtle.ConstantTimeCompare(got[:], want[i][:])
		}
		if ok == 1 {
			return nnrp.AuthAccepted, 0
		}
		return nnrp.AuthRejected, 0
	}, nil
}
