package quictransport

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/cfpipe/cfpipe/internal/servercert"
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
		return fmt.Sprintf("the server's certificate has the fingerprint %s, not the pinned one: "+
			"give it when it is the one that the runtime prints", e.Fingerprint)
	}
	return fmt.Sprintf("%v; the server has shown the fingerprint %s: give it (--fingerprint, in a site fingerprint:) "+
		"when it is the one that the runtime prints, or the CA (--ca, ca:)", e.Err, e.Fingerprint)
}

func (e *CertificateError) Unwrap() error { return e.Err }

// handshakeError says what a handshake failed of, without the numbers of QUIC around it: the certificate, or that nobody answers.
func handshakeError(err error) error {
	var refused *CertificateError
	if errors.As(err, &refused) {
		return refused
	}
	var unverified *tls.CertificateVerificationError
	if errors.As(err, &unverified) && len(unverified.UnverifiedCertificates) > 0 {
		return &CertificateError{Fingerprint: servercert.FingerprintOf(unverified.UnverifiedCertificates[0].Raw), Err: unverified}
	}
	var idle *quic.IdleTimeoutError
	if errors.As(err, &idle) {
		return fmt.Errorf("no answer within %v: is a runtime listening there, and does UDP get through? %w", handshakeTimeout, err)
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
