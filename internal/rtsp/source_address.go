package rtsp

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/cfpipe/cfpipe/internal/media"
)

// address is an RTSP URL taken apart. What stands behind the host is kept as it was written: cameras compare the URI of a
// request with the one in its digest as bytes, and some do not decode what a URL library would have escaped.
type address struct {
	scheme         string // rtsp or rtsps
	user, password string
	host           string // with port when one was given
	path           string // path and query, from the slash on
}

// parseAddress accepts any characters in user name and password, escaped or not. The password ends at the first @ that has a
// host behind it.
func parseAddress(raw string) (address, error) {
	scheme, rest, found := strings.Cut(raw, "://")
	a := address{scheme: strings.ToLower(scheme)}
	if !found || a.scheme != "rtsp" && a.scheme != "rtsps" {
		return a, fmt.Errorf("parse source URL: scheme is not rtsp or rtsps: %w", media.ErrUnsupported)
	}
	for i := 0; i <= len(rest); i++ {
		if i > 0 && rest[i-1] != '@' {
			continue
		}
		host := rest[i:]
		path := ""
		if j := strings.IndexAny(host, "/?#"); j >= 0 {
			host, path = host[:j], host[j:]
		}
		if !validHost(host) {
			continue
		}
		if path == "" || path[0] != '/' {
			path = "/" + path
		}
		path, _, _ = strings.Cut(path, "#")
		a.host, a.path = host, strings.ReplaceAll(path, " ", "%20")
		if i > 0 {
			user, password, _ := strings.Cut(rest[:i-1], ":")
			a.user, a.password = unescape(user), unescape(password)
		}
		return a, nil
	}
	return a, fmt.Errorf("parse source URL: no valid host: %w", media.ErrUnsupported)
}

// unescape resolves %XX when all of s is well formed; a password with a bare % stands for itself.
func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	return s
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$`)

func validHost(s string) bool {
	host := s
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return false
		}
		if ip, err := netip.ParseAddr(s[1:end]); err != nil || !ip.Is6() {
			return false
		}
		if s[end+1:] == "" {
			return true
		}
		return s[end+1] == ':' && validPort(s[end+2:])
	}
	if i := strings.LastIndexByte(s, ':'); i >= 0 {
		if !validPort(s[i+1:]) {
			return false
		}
		host = s[:i]
	}
	return len(host) <= 253 && hostName.MatchString(host)
}

func validPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// uri is the address as requests carry it: without credentials.
func (a address) uri() string { return a.scheme + "://" + a.host + a.path }

// dial is host and port to connect to.
func (a address) dial() string {
	host, port, err := net.SplitHostPort(a.host)
	if err != nil {
		host, port = strings.Trim(a.host, "[]"), "554"
		if a.scheme == "rtsps" {
			port = "322"
		}
	}
	return net.JoinHostPort(host, port)
}

func (a address) hostname() string {
	host, _, _ := net.SplitHostPort(a.dial())
	return host
}

// secrets in a query or, as with some vendors, in the path: user=admin_password=secret_channel=1.
var secrets = regexp.MustCompile(`(?i)\b((?:[a-z_]*(?:pass|passw|passwd|password|passphrase|pwd|auth|token|key|secret))=)[^&/?]*`)

// Redact returns a source's name without user name and password, for logs and messages. What it cannot take apart it does not show.
func Redact(raw string) string {
	if !strings.Contains(raw, "://") {
		if strings.Contains(raw, "@") { // a URL that is misspelt
			return "…"
		}
		return raw
	}
	a, err := parseAddress(raw)
	if err != nil {
		scheme, _, _ := strings.Cut(raw, "://")
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			return scheme + "://…"
		}
		path := u.EscapedPath()
		if strings.HasPrefix(u.Scheme, "rtmp") { // what follows the application is the key to publish with
			if parts := strings.SplitN(path, "/", 3); len(parts) == 3 {
				path = "/" + parts[1] + "/…"
			}
		}
		return secrets.ReplaceAllString(scheme+"://"+u.Host+path, "${1}…")
	}
	return secrets.ReplaceAllString(a.uri(), "${1}…")
}

// join resolves a control attribute against the base URI of the session. A relative one is appended, behind a query too: that is
// what servers expect (and what they put into the digest).
func joinControl(base, control string) string {
	switch {
	case control == "" || control == "*":
		return base
	case strings.HasPrefix(strings.ToLower(control), "rtsp://"), strings.HasPrefix(strings.ToLower(control), "rtsps://"):
		return control
	case control[0] == '?' || strings.HasSuffix(base, "/"):
		return base + strings.TrimPrefix(control, "/")
	case control[0] == '/':
		return base + control
	}
	return base + "/" + control
}
