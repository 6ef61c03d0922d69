package servercert

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
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

// Handshakes wait for nothing that is put in the place of a certificate, and go on when it is there again.
func TestRenewalByOtherFiles(t *testing.T) {
	testenv.Watchdog(t, 10*time.Second)
	c, err := SelfSigned()
	require.NoError(t, err)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	cert, key := pemOf(t, c)
	require.NoError(t, os.WriteFile(certFile, cert, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	var log bytes.Buffer
	f, err := OpenFiles(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	for name, put := range map[string]func() error{
		"not a plain file": func() error { return syscall.Mkfifo(certFile, 0o600) },
		"plain file":       func() error { return os.Mkdir(certFile, 0o700) },
		"1048577 bytes":    func() error { return os.WriteFile(certFile, make([]byte, maxRenewed+1), 0o600) },
		"too many levels":  func() error { return os.Symlink(certFile, certFile) },
		"PEM data":         func() error { return os.WriteFile(certFile, []byte("a note"), 0o600) },
		"no such file":     func() error { return nil },
	} {
		require.NoError(t, os.RemoveAll(certFile))
		require.NoError(t, put())
		f.looked, f.told = time.Time{}, ""
		log.Reset()
		require.Same(t, f.current, f.Certificate())
		require.Contains(t, log.String(), name)
	}
	second, err := SelfSigned()
	require.NoError(t, err)
	cert, key = pemOf(t, second)
	require.NoError(t, os.RemoveAll(certFile))
	require.NoError(t, os.WriteFile(certFile, cert, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	f.looked = time.Time{}
	require.Equal(t, Fingerprint(second), Fingerprint(f.Certificate()))
}

// While one handshake waits for the disk, the others have the certificate that there is.
func TestRenewalWaits(t *testing.T) {
	testenv.Watchdog(t, 10*time.Second)
	c, err := SelfSigned()
	require.NoError(t, err)
	f := &Files{current: c, looking: true}
	require.Same(t, c, f.Certificate())
}
