// Package servercert holds the certificates that servers show: read from files and read again when they are renewed, or made on the spot.
package servercert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"
)

// Fingerprint returns the SHA-256 of a certificate in hex, for clients that pin it.
func Fingerprint(c *tls.Certificate) string { return FingerprintOf(c.Certificate[0]) }

// FingerprintOf is Fingerprint for a certificate in DER form.
func FingerprintOf(der []byte) string {
	sum := sha256.Sum256(der)
	return hex.EncodeToString(sum[:])
}

// Load reads a PEM certificate chain and its key.
func Load(certFile, keyFile string) (*tls.Certificate, error) {
	return load(os.ReadFile, certFile, keyFile)
}

func load(read func(name string) ([]byte, error), certFile, keyFile string) (*tls.Certificate, error) {
	cert, err := read(certFile)
	var key []byte
	if err == nil {
		key, err = read(keyFile)
	}
	var c tls.Certificate
	if err == nil {
		c, err = tls.X509KeyPair(cert, key)
	}
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	return &c, nil
}

// selfSignedLife keeps a made certificate valid for as long as a server is likely to run; who pins it ignores the dates anyway.
const selfSignedLife = 365 * 24 * time.Hour

// For makes a certificate for the host of a listen address, host:port, and returns it as servers ask for one.
func For(listen string) (func() *tls.Certificate, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("listen address: %w", err)
	}
	made, err := SelfSigned(host)
	return Always(made), err
}

// Always returns a certificate as servers ask for one.
func Always(c *tls.Certificate) func() *tls.Certificate { return func() *tls.Certificate { return c } }

// SelfSigned makes a certificate for the host's names and the given ones. Clients pin its Fingerprint.
func SelfSigned(hosts ...string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make certificate: %w", err)
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
		return nil, fmt.Errorf("make certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
