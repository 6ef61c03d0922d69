package rtsp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
)

// Bounds on what a server sends in one message: far above what any sends.
const (
	maxHeaderLine  = 8 << 10
	maxHeaderLines = 128
	maxBody        = 256 << 10
)

// readBuffer holds the largest interleaved frame, so that frames are handed on in place.
const readBuffer = 4 + 65535 + 1

var errMalformed = errors.New("malformed RTSP message")

// reply is a server's response.
type reply struct {
	status int
	reason string
	header map[string][]string // names in lower case
	body   []byte
}

func (r *reply) get(name string) string {
	if v := r.header[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// statusError is a response that is not 200.
type statusError struct {
	method string
	status int
	reason string
	hint   string // what may be wrong with the request; "" = not known
}

// refused is the error of a response to a request of c.
func (c *clientConn) refused(method string, status int, reason string) error {
	e := &statusError{method: method, status: status, reason: reason}
	switch status {
	case 401, 403:
		c.mu.Lock()
		e.hint = c.auth.doubt()
		c.mu.Unlock()
	case 404:
		e.hint = "no such path"
	}
	return e
}

func (e *statusError) Error() string {
	text := fmt.Sprintf("%s: the server answered %d %s", e.method, e.status, strings.TrimSpace(e.reason))
	if e.hint != "" {
		text += " (" + e.hint + ")"
	}
	return text
}

// Is lets errors.Is(err, media.ErrLogin) hold for a refused login.
func (e *statusError) Is(target error) bool {
	return target == media.ErrLogin && (e.status == 401 || e.status == 403)
}

// Refused says whether a server has answered a request with anything but 200, in an error of Push or of a Source.
func Refused(err error) bool {
	var answer *statusError
	return errors.As(err, &answer)
}

// clientConn is one RTSP connection: requests go out from any goroutine, all is read by one.
type clientConn struct {
	nc          net.Conn
	br          *bufio.Reader
	url         address
	description []byte // of a publisher: the body of ANNOUNCE

	mu      sync.Mutex // everything below
	cseq    int
	auth    authorizer
	session string
	agent   string
	timeout time.Duration
	pending map[int]sent // requests whose answer may come during play
}

type sent struct {
	method, uri string
	retried     bool
}

// frameFunc takes an interleaved frame; the payload is valid during the call.
type frameFunc func(channel int, payload []byte) error

func (c *clientConn) send(method, uri string, header ...string) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sendLocked(method, uri, header...)
}

func (c *clientConn) sendLocked(method, uri string, header ...string) (int, error) {
	c.cseq++
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s RTSP/1.0\r\nCSeq: %d\r\nUser-Agent: %s\r\n", method, uri, c.cseq, c.agent)
	if c.session != "" {
		fmt.Fprintf(&b, "Session: %s\r\n", c.session)
	}
	if a := c.auth.header(method, uri); a != "" {
		fmt.Fprintf(&b, "Authorization: %s\r\n", a)
	}
	for i := 0; i+1 < len(header); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", header[i], header[i+1])
	}
	if method == "ANNOUNCE" {
		fmt.Fprintf(&b, "Content-Type: application/sdp\r\nContent-Length: %d\r\n\r\n%s", len(c.description), c.description)
	} else {
		b.WriteString("\r\n")
	}
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.timeout))
	if _, err := c.nc.Write(b.Bytes()); err != nil {
		return 0, fmt.Errorf("send %s: %w", method, err)
	}
	return c.cseq, nil
}

// writeFrame sends an interleaved frame (receiver reports).
func (c *clientConn) writeFrame(channel int, payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := append([]byte{'$', byte(channel), byte(len(payload) >> 8), byte(len(payload))}, payload...)
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.timeout))
	_, err := c.nc.Write(b)
	return err
}

// do sends a request and reads until its answer, answering a challenge on the way. Interleaved frames that come before it are
// given to frame (nil: dropped).
func (c *clientConn) do(frame frameFunc, method, uri string, header ...string) (*reply, error) {
	for range 3 { // the request, with credentials, with a nonce that is not stale
		cseq, err := c.send(method, uri, header...)
		if err != nil {
			return nil, err
		}
		_ = c.nc.SetReadDeadline(time.Now().Add(c.timeout))
		var r *reply
		for {
			if r, err = c.read(frame); err != nil {
				return nil, fmt.Errorf("%s: %w", method, err)
			}
			if n, err := strconv.Atoi(r.get("cseq")); r != nil && (err != nil || n == cseq) {
				break
			}
		}
		if r.status != 401 {
			return r, nil
		}
		c.mu.Lock()
		again := c.auth.user != "" || c.auth.password != ""
		again = again && c.auth.challenge(r.header["www-authenticate"])
		c.mu.Unlock()
		if !again {
			return r, nil
		}
	}
	return nil, c.refused(method, 401, "Unauthorized")
}

// ok is do for requests that have to succeed.
func (c *clientConn) ok(frame frameFunc, method, uri string, header ...string) (*reply, error) {
	r, err := c.do(frame, method, uri, header...)
	if err == nil && r.status != 200 {
		err = c.refused(method, r.status, r.reason)
	}
	return r, err
}

// read returns the next response. Interleaved frames go to frame, requests of the server are answered, bytes that belong to
// neither are passed over.
func (c *clientConn) read(frame frameFunc) (*reply, error) {
	for {
		head, err := c.br.Peek(1)
		if err != nil {
			return nil, err
		}
		switch b := head[0]; {
		case b == '$':
			if err := c.readFrame(frame); err != nil {
				return nil, err
			}
		case b >= 'A' && b <= 'Z':
			r, err := c.readMessage()
			if err != nil {
				return nil, err
			}
			if r != nil {
				return r, nil
			}
		default:
			_, _ = c.br.Discard(1)
		}
	}
}

func (c *clientConn) readFrame(frame frameFunc) error {
	head, err := c.br.Peek(4)
	if err != nil {
		return err
	}
	channel, n := int(head[1]), int(head[2])<<8|int(head[3])
	whole, err := c.br.Peek(4 + n)
	if err != nil {
		return err
	}
	if frame != nil {
		err = frame(channel, whole[4:])
	}
	_, _ = c.br.Discard(4 + n)
	return err
}

func (c *clientConn) line() (string, error) {
	var line []byte
	for {
		part, err := c.br.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return string(bytes.TrimRight(line, "\r\n")), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
		if len(line) > maxHeaderLine {
			return "", fmt.Errorf("header too long: %w", errMalformed)
		}
	}
}

// readMessage reads a response, or a request of the server, which is answered (nil is returned then).
func (c *clientConn) readMessage() (*reply, error) {
	first, err := c.line()
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(first, "RTSP/") && !strings.HasSuffix(first, " RTSP/1.0") {
		return nil, nil // text that is no message; what follows is looked at afresh
	}
	r := &reply{header: map[string][]string{}}
	for n := 0; ; n++ {
		line, err := c.line()
		if err != nil {
			return nil, err
		}
		if line == "" {
			break
		}
		if len(line) > maxHeaderLine || n > maxHeaderLines {
			return nil, fmt.Errorf("header too long: %w", errMalformed)
		}
		name, value, found := strings.Cut(line, ":")
		if found {
			name = strings.ToLower(strings.TrimSpace(name))
			r.header[name] = append(r.header[name], strings.TrimSpace(value))
		}
	}
	if v := r.get("content-length"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 || n > maxBody {
			return nil, fmt.Errorf("content length %.20q: %w", v, errMalformed)
		}
		r.body = make([]byte, n)
		if _, err := io.ReadFull(c.br, r.body); err != nil {
			return nil, err
		}
	}
	if version, rest, _ := strings.Cut(first, " "); strings.HasPrefix(version, "RTSP/") {
		code, reason, _ := strings.Cut(strings.TrimSpace(rest), " ")
		r.reason = reason
		if r.status, err = strconv.Atoi(code); err != nil {
			return nil, fmt.Errorf("status line %.60q: %w", first, errMalformed)
		}
		return r, nil
	}
	method, _, _ := strings.Cut(first, " ")
	answer := "501 Not Implemented"
	switch method {
	case "OPTIONS", "GET_PARAMETER", "SET_PARAMETER":
		answer = "200 OK"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.timeout))
	_, err = fmt.Fprintf(c.nc, "RTSP/1.0 %s\r\nCSeq: %s\r\n\r\n", answer, r.get("cseq"))
	return nil, err
}

// sendAsync sends a request whose answer the reader of the connection will meet.
func (c *clientConn) sendAsync(method, uri string, header ...string) error {
	return c.sendTracked(sent{method: method, uri: uri}, header...)
}

func (c *clientConn) sendTracked(s sent, header ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	cseq, err := c.sendLocked(s.method, s.uri, header...)
	if err != nil {
		return err
	}
	if c.pending == nil || len(c.pending) > 16 { // a server that answers none
		c.pending = map[int]sent{}
	}
	c.pending[cseq] = s
	return nil
}

// answered returns the request that r belongs to. A 401 whose challenge can be answered is sent again.
func (c *clientConn) answered(r *reply) (sent, bool) {
	n, _ := strconv.Atoi(r.get("cseq"))
	c.mu.Lock()
	s, found := c.pending[n]
	delete(c.pending, n)
	again := found && r.status == 401 && !s.retried && c.auth.challenge(r.header["www-authenticate"])
	c.mu.Unlock()
	if again {
		s.retried = true
		_ = c.sendTracked(s)
		return s, false
	}
	return s, found
}
