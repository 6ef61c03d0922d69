package rtsp

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
)

// authorizer answers a server's challenges: Basic, and Digest with MD5 or SHA-256, with and without qop and -sess (RFC 2617,
// RFC 7616). The RTSP library's client sends no qop and no opaque and does not take a second nonce, so it is not used for this.
type authorizer struct {
	user, password string

	digest  bool
	realm   string
	nonce   string
	opaque  string
	algo    string // as the server wrote it; "" = MD5 unsaid
	sha256  bool
	sess    bool
	qop     string // auth, auth-int or none
	count   uint32
	cnonce  string
	present bool
}

// challenge takes the WWW-Authenticate headers of a 401. It returns false when there is none to answer, or when the same
// credentials were refused already and the server did not just want a new nonce.
func (z *authorizer) challenge(headers []string) bool {
	best, rank := authorizer{}, 0
	for _, h := range headers {
		scheme, rest, _ := strings.Cut(strings.TrimSpace(h), " ")
		p := authParams(rest)
		switch strings.ToLower(scheme) {
		case "basic":
			if rank < 1 {
				best, rank = authorizer{realm: p["realm"], present: true}, 1
			}
		case "digest":
			c := authorizer{digest: true, present: true, realm: p["realm"], nonce: p["nonce"], opaque: p["opaque"], algo: p["algorithm"]}
			r := 2
			switch strings.ToLower(c.algo) {
			case "", "md5":
			case "md5-sess":
				c.sess = true
			case "sha-256", "sha256":
				c.sha256, r = true, 3
			case "sha-256-sess":
				c.sha256, c.sess, r = true, true, 3
			default:
				continue
			}
			for q := range strings.SplitSeq(p["qop"], ",") {
				switch q = strings.ToLower(strings.TrimSpace(q)); {
				case q == "auth", q == "auth-int" && c.qop == "":
					c.qop = q
				}
			}
			if r > rank {
				best, rank = c, r
			}
		}
	}
	if rank == 0 {
		return false
	}
	if z.present && best.nonce == z.nonce {
		return false
	}
	best.user, best.password = z.user, z.password
	*z = best
	return true
}

// doubt is what is probably wrong with a login that was refused. It shows nothing of it.
func (z *authorizer) doubt() string {
	switch {
	case z.user != "":
		return "user name or password"
	case z.password != "":
		return "the login has a password and no user name"
	}
	return "it asks for a login, and there is no user name and no password"
}

// nameless says whether an Authorization header is a login without a user name.
func nameless(header string) bool {
	scheme, rest, _ := strings.Cut(strings.TrimSpace(header), " ")
	switch strings.ToLower(scheme) {
	case "basic":
		b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
		return err == nil && (len(b) == 0 || b[0] == ':')
	case "digest":
		return authParams(rest)["username"] == ""
	}
	return false
}

// authParams reads name=value and name="value" lists.
func authParams(s string) map[string]string {
	p := map[string]string{}
	for {
		s = strings.TrimLeft(s, " ,\t")
		name, rest, found := strings.Cut(s, "=")
		if !found {
			return p
		}
		name = strings.ToLower(strings.TrimSpace(name))
		rest = strings.TrimLeft(rest, " ")
		var value strings.Builder
		if strings.HasPrefix(rest, `"`) {
			i := 1
			for ; i < len(rest) && rest[i] != '"'; i++ {
				if rest[i] == '\\' && i+1 < len(rest) {
					i++
				}
				value.WriteByte(rest[i])
			}
			s = rest[min(i+1, len(rest)):]
		} else {
			end := strings.IndexAny(rest, ", \t")
			if end < 0 {
				end = len(rest)
			}
			value.WriteString(rest[:end])
			s = rest[end:]
		}
		if _, twice := p[name]; !twice {
			p[name] = value.String()
		}
	}
}

func (z *authorizer) hash(s string) string {
	if z.sha256 {
		h := sha256.Sum256([]byte(s))
		return hex.EncodeToString(h[:])
	}
	h := md5.Sum([]byte(s))
	return hex.EncodeToString(h[:])
}

// header returns the value of the Authorization header for a request without a body, or "" when no challenge came yet.
func (z *authorizer) header(method, uri string) string {
	switch {
	case !z.present:
		return ""
	case !z.digest:
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(z.user+":"+z.password))
	}
	if z.cnonce == "" {
		var b [8]byte
		rand.Read(b[:]) // never fails
		z.cnonce = hex.EncodeToString(b[:])
	}
	a1 := z.hash(z.user + ":" + z.realm + ":" + z.password)
	if z.sess {
		a1 = z.hash(a1 + ":" + z.nonce + ":" + z.cnonce)
	}
	a2 := method + ":" + uri
	if z.qop == "auth-int" {
		a2 += ":" + z.hash("")
	}
	var b strings.Builder
	quoted := func(name, value string) {
		fmt.Fprintf(&b, `%s="%s"`, name, strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value))
	}
	b.WriteString("Digest ")
	quoted("username", z.user)
	for _, f := range [][2]string{{"realm", z.realm}, {"nonce", z.nonce}, {"uri", uri}} {
		b.WriteString(", ")
		quoted(f[0], f[1])
	}
	if z.qop == "" {
		b.WriteString(", ")
		quoted("response", z.hash(a1+":"+z.nonce+":"+z.hash(a2)))
	} else {
		z.count++
		nc := fmt.Sprintf("%08x", z.count)
		b.WriteString(", ")
		quoted("response", z.hash(strings.Join([]string{a1, z.nonce, nc, z.cnonce, z.qop, z.hash(a2)}, ":")))
		fmt.Fprintf(&b, `, qop=%s, nc=%s, cnonce="%s"`, z.qop, nc, z.cnonce)
	}
	if z.opaque != "" {
		b.WriteString(", ")
		quoted("opaque", z.opaque)
	}
	if z.sess && z.qop == "" {
		fmt.Fprintf(&b, `, cnonce="%s"`, z.cnonce)
	}
	if z.algo != "" {
		b.WriteString(", algorithm=" + z.algo)
	}
	return b.String()
}
