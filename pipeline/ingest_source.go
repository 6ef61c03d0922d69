package pipeline

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
)

// SourceOptions name an input of ingest. Only URL is needed.
type SourceOptions struct {
	URL      string // rtsp://, rtsps://, a file, any other FFmpeg input, or "-" for standard input
	Username string // RTSP: instead of the URL's, together with Password
	Password string // of Username, or of the user in the URL
	NoAudio  bool
	MaxUnit  int // bytes of an access unit, see IngestOptions.MaxUnit; 0 = 2 MiB

	// RTSP.
	Transport   string        // auto, tcp, udp or multicast; "" = auto
	Timeout     time.Duration // for answers, and until silence ends a connection; 0 = 10 s
	CAFile      string        // rtsps: certificates to trust instead of the system's
	Fingerprint string        // rtsps: SHA-256 of the only certificate to accept
	Insecure    bool          // rtsps: accept any certificate

	// Other inputs.
	Format   string    // name of FFmpeg's demuxer; "" = found by looking at the data
	Loop     bool      // begin again at the end
	Realtime bool      // deliver at the speed of the timestamps
	Stdin    io.Reader // what "-" reads; nil = os.Stdin

	Logger *slog.Logger
}

// OpenedSource is a source and what ingest has to know about it.
type OpenedSource struct {
	media.Source
	Name string // without credentials
	Live bool   // worth connecting to again when it ends
}

// OpenSource makes the source that URL names. It does not connect.
func OpenSource(o SourceOptions) (OpenedSource, error) {
	scheme, _, isURL := strings.Cut(o.URL, "://")
	scheme = strings.ToLower(scheme)
	if isURL && (scheme == "rtsp" || scheme == "rtsps") {
		if o.Loop || o.Realtime {
			return OpenedSource{}, errors.New("a camera is neither looped nor paced")
		}
		ro := rtsp.SourceOptions{
			URL: o.URL, Username: o.Username, Password: o.Password, Transport: rtsp.Transport(o.Transport), NoAudio: o.NoAudio, Timeout: o.Timeout,
			MaxUnit: o.MaxUnit, Fingerprint: o.Fingerprint, Insecure: o.Insecure, Logger: o.Logger,
		}
		if o.CAFile != "" {
			pem, err := os.ReadFile(o.CAFile)
			if err != nil {
				return OpenedSource{}, err
			}
			ro.RootCAs = x509.NewCertPool()
			if !ro.RootCAs.AppendCertsFromPEM(pem) {
				return OpenedSource{}, fmt.Errorf("%s holds no certificate", o.CAFile)
			}
		}
		s, err := rtsp.NewSource(ro)
		if err != nil {
			return OpenedSource{}, err
		}
		return OpenedSource{Source: s, Name: s.Name(), Live: true}, nil
	}
	if o.URL == "" {
		return OpenedSource{}, errors.New("the source is empty")
	}
	in := av.NewInput(av.InputOptions{
		URL: o.URL, Format: o.Format, Reader: o.Stdin, Loop: o.Loop, Realtime: o.Realtime, NoAudio: o.NoAudio, Logger: o.Logger,
	})
	live := isURL && scheme != "file"
	if o.URL != "-" && o.Format == "" && !strings.Contains(o.URL, ":") { // a plain name: say at once when there is no such file
		if _, err := os.Stat(o.URL); err != nil {
			return OpenedSource{}, err
		}
	}
	return OpenedSource{Source: in, Name: av.Mask(o.URL), Live: live}, nil
}
