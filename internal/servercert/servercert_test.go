package servercert

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pemOf returns the two files of a certificate.
func pemOf(t *testing.T, c *tls.Certificate) (cert, key []byte) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// A renewed certificate is taken once both of its files are there; until then the old one stays, and the log says so once.
func TestRenewal(t *testing.T) {
	first, err := SelfSigned("camera.example")
	require.NoError(t, err)
	second, err := SelfSigned()
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	write := func(name string, b []byte) {
		require.NoError(t, os.WriteFile(name+".new", b, 0o600))
		require.NoError(t, os.Rename(name+".new", name))
	}
	cert, key := pemOf(t, first)
	write(certFile, cert)
	_, err = OpenFiles(certFile, keyFile, slog.New(slog.DiscardHandler))
	require.ErrorIs(t, err, os.ErrNotExist)
	write(keyFile, key)
	var log bytes.Buffer
	f, err := OpenFiles(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	now := func() string {
		f.looked = time.Time{}
		return Fingerprint(f.Certificate())
	}
	require.Equal(t, Fingerprint(first), now())

	cert, key = pemOf(t, second)
	write(certFile, cert)
	require.Equal(t, Fingerprint(first), now(), "a certificate without its key")
	require.Equal(t, Fingerprint(first), now())
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("cannot be read")), log.String())
	write(keyFile, key)
	require.Equal(t, Fingerprint(second), now())
	require.Contains(t, log.String(), "the certificate was renewed")
	require.NotContains(t, log.String(), "PRIVATE")

	require.NoError(t, os.Remove(keyFile))
	require.Equal(t, Fingerprint(second), now(), "files that are gone for a moment")

	kept := Fingerprint(f.Certificate())
	write(keyFile, []byte("no key"))
	require.Equal(t, kept, Fingerprint(f.Certificate()), "looked at a moment ago")
}
