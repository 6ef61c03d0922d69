package pipeline

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
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

// hostAndPort is the beginning of an address whose scheme was forgotten.
var hostAndPort = regexp.MustCompile(`^([A-Za-z0-9._-]+@)?([A-Za-z0-9.-]+|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}(/|$)`)

// misspelt are schemes that no input has, and what is meant by them.
var misspelt = map[string]string{
	"rstp": "rtsp", "rtps": "rtsp", "rtspp": "rtsp", "rtst": "rtsp", "tsp": "rtsp", "rtspt": "rtsp", "rtspu": "rtsp", "rstps": "rtsps",
	"htpp": "http", "htp": "http", "htps": "https", "htpps": "https",
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
	if o.URL != "-" && o.Format == "" && !isURL {
		_, err := os.Stat(o.URL)
		switch {
		case err != nil && hostAndPort.MatchString(o.URL):
			return OpenedSource{}, fmt.Errorf("%s is no file and no URL; did you mean rtsp://%s?", av.Mask(o.URL), av.Mask(o.URL))
		case err != nil && !strings.Contains(o.URL, ":"): // a plain name: say at once when there is no such file
			return OpenedSource{}, fmt.Errorf("%w; the URL of a camera begins with rtsp:// or rtsps://", err)
		}
	}
	if near := misspelt[scheme]; isURL && near != "" {
		return OpenedSource{}, fmt.Errorf("%s:// is not known; did you mean %s://?", scheme, near)
	}
	return OpenedSource{Source: in, Name: av.Mask(o.URL), Live: live}, nil
}
