package site

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml/token"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/packetring"
	"github.com/cfpipe/cfpipe/pipeline"
)

// defaultPre is how far before its trigger an event begins where the file does not say.
const defaultPre = Duration(10 * time.Second)

// usualRate is how many pictures a second a camera is taken to send where nothing is known of it.
const usualRate = 25

// maxSecret bounds the file of a password or a token.
const maxSecret = 4096

// place finds where a field stands: itself, what it was taken over from, or the block it belongs to.
func (d *decoder) place(path string) token.Position {
	for p := path; p != ""; {
		if at, ok := d.at[p]; ok {
			return at
		}
		if inherited, ok := inheritedPath(p); ok {
			if at, ok := d.at[inherited]; ok {
				return at
			}
		}
		i := strings.LastIndexByte(p, '.')
		if i < 0 {
			break
		}
		p = p[:i]
	}
	return token.Position{}
}

// inheritedPath is the path in defaults that a camera's field is taken over from.
func inheritedPath(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, "cameras.")
	if !ok {
		return "", false
	}
	_, field, ok := strings.Cut(rest, ".")
	return "defaults." + field, ok
}

// rawText is what stands in the file for a field, taken over or not.
func (d *decoder) rawText(path string) string {
	if s, ok := d.raw[path]; ok {
		return s
	}
	inherited, _ := inheritedPath(path)
	return d.raw[inherited]
}

func (d *decoder) complain(path, format string, arg ...any) {
	d.fail(d.place(path), path, fmt.Errorf(format, arg...))
}

// warn notes what works and is hardly meant.
func (d *decoder) warn(path, format string, arg ...any) {
	at := d.place(path)
	d.warnings = append(d.warnings, (&FieldError{File: d.file, Line: at.Line, Column: at.Column, Field: path, Err: fmt.Errorf(format, arg...)}).Error())
}

// check completes the configuration (passwords are read, names made absolute) and looks for what cannot work.
func (d *decoder) check(c *Config) {
	if len(c.Cameras) == 0 {
		d.complain("cameras", "no camera: want cameras: {KEY: {source: …}}")
	}
	for _, r := range []*Record{c.Defaults.Record, c.Defaults.Events} {
		if r != nil {
			r.Out = d.beside(r.Out)
		}
	}
	for key, cam := range c.Cameras {
		path := "cameras." + key
		if err := framering.CheckKey(key); err != nil {
			d.complain(path, "want a key of 1 to 57 characters of a-z, A-Z, 0-9, _ and -")
			continue
		}
		d.checkStream(key, path, &cam.Stream)
		if cam.Sub != nil {
			if cam.Sub.Username == "" {
				cam.Sub.Username = cam.Username
				if cam.Sub.Password == "" && cam.Sub.PasswordFile == "" {
					cam.Sub.Password = cam.Password
				}
			}
			d.checkStream(key+pipeline.SubSuffix, path+".sub", cam.Sub)
		}
	}
	d.checkNames(c)
	d.checkIndex(c)
	if c.Group != "" {
		if _, err := framering.GroupID(c.Group); err != nil {
			d.complain("group", "%w", err)
		}
	}
	if r := c.Relay; r != nil {
		r.Cert, r.KeyFile = d.beside(r.Cert), d.beside(r.KeyFile)
		if r.Listen != "off" {
			d.checkListen("relay.listen", r.Listen)
		}
		if r.ListenTLS != "" {
			d.checkListen("relay.listen_tls", r.ListenTLS)
		}
		if o := (spec{Relay: r}).relayOptions(nil); o.Check() != nil {
			d.complain("relay", "%w", o.Check())
		} else if r.Cert != "" {
			if _, err := servercert.Load(r.Cert, r.KeyFile); err != nil {
				d.complain("relay.cert", "%w", err)
			}
		}
		d.secret("relay.password", &r.Password, &r.PasswordFile)
		if (r.Username == "") != (r.Password == "") {
			d.complain("relay", "username and password belong together")
		}
		d.checkOpen(r)
		if r.RTPPort > 0 && r.RTPPort%2 != 0 {
			d.complain("relay.rtp_port", "%d: want an even port", r.RTPPort)
		}
		for i, k := range r.Keys {
			if framering.CheckKey(k) != nil {
				d.complain(fmt.Sprintf("relay.keys[%d]", i), "%.80q is no key", k)
			}
		}
	}
	if h := c.HTTP; h != nil {
		d.checkListen("http.listen", h.Listen)
		d.secret("http.token", &h.Token, &h.TokenFile)
		if h.Token == "" {
			d.complain("http", "no token: want token_file, or token: ${VARIABLE}")
		} else if len(h.Token) < 16 {
			d.complain("http", "the token is too short: want 16 characters or more, such as those of: openssl rand -hex 32")
		}
	}
}

func (d *decoder) checkStream(key, path string, s *Stream) {
	d.checkSource(key, path, s)
	if !s.Enabled {
		return
	}
	if s.Record != nil {
		d.checkRecord(key, path+".record", s.Record)
	}
	if s.Events != nil {
		if d.isSet(path + ".events.on_event") {
			d.complain(path+".events.on_event", "events are always recorded on events; all the time is what record is for")
		}
		s.Events.OnEvent = true
		d.checkRecord(key, path+".events", s.Events)
		if s.Record != nil && s.Record.OnEvent {
			d.complain(path+".events", "record has on_event already: want one of them")
		}
	}
	d.checkReach(path+".record", s, s.Record)
	d.checkReach(path+".events", s, s.Events)
	if s.Infer != nil {
		d.checkInfer(key, path+".infer", s)
	}
	if s.Push != nil {
		d.checkPush(key, path+".push", s.Push)
	}
}

// checkSource completes and checks where a stream comes from, and under which names.
func (d *decoder) checkSource(key, path string, s *Stream) {
	if s.Source == "" {
		d.complain(path+".source", "it is missing: want an rtsp:// URL, a file or another input")
		return
	}
	if raw := d.rawText(path + ".source"); literalPassword(raw) || literalParameter(raw) {
		d.complain(path+".source", "a secret must not stand in this file: use username with password_file, or ${VARIABLE} in its place")
	}
	if s.Password != "" && s.PasswordFile != "" && d.raw[path+".password"] == "" {
		s.Password = "" // the camera's own file wins over the variable of the defaults
	} else if s.Password != "" && d.raw[path+".password"] != "" && d.raw[path+".password_file"] == "" {
		s.PasswordFile = ""
	}
	d.secret(path+".password", &s.Password, &s.PasswordFile)
	if s.Password != "" && s.Username == "" {
		d.complain(path, "password without username")
	}
	if s.CA != "" {
		s.CA = d.beside(s.CA)
	}
	if err := framering.CheckKey(key + pipeline.AudioSuffix); err != nil && s.Audio {
		d.complain(path, "the key %s%s is too long: want 63 characters at most, or audio: false", key, pipeline.AudioSuffix)
	}
	if !strings.Contains(s.Source, ":") {
		s.Source = d.beside(s.Source)
	}
	if !s.Enabled {
		return
	}
	if _, err := pipeline.OpenSource(sourceOptions(*s, nil)); err != nil {
		d.complain(path+".source", "%w", err)
	}
}

// isSet says whether a field stands in the file, for the camera or for all.
func (d *decoder) isSet(path string) bool {
	_, own := d.at[path]
	inherited, _ := inheritedPath(path)
	_, all := d.at[inherited]
	return own || all
}

func (d *decoder) checkRecord(key, path string, r *Record) {
	if r.Out == "" {
		d.complain(path+".out", "it is missing: want a file name such as /srv/video/%%{key}/%%Y-%%m-%%d/%%H-%%M-%%S.mp4")
		return
	}
	r.Out = d.beside(r.Out)
	if _, err := mux.ParsePattern(r.Out, key); err != nil {
		d.complain(path+".out", "%w", err)
	}
	if format, err := mux.FileFormat(r.Format, r.Out); err != nil {
		d.complain(path+".out", "%w", err)
	} else {
		r.Format = string(format)
	}
	if s := time.Duration(r.Segment); s > 0 && s < time.Second {
		d.complain(path+".segment", "%v: want 1s or more, or 0s for one file", s)
	}
	if r.OnEvent {
		if !d.isSet(path + ".pre") {
			r.Pre = defaultPre
		}
		if err := r.eventOptions("").Check(time.Duration(r.Pre)); err != nil {
			d.complain(path, "%w", err)
		}
	} else if d.isSet(path+".post") || d.isSet(path+".longest") {
		d.complain(path, "post and longest are for on_event")
	}
	if r.Retention != nil && *r.Retention == (Retention{}) {
		d.complain(path+".retention", "it bounds nothing: want age, size or free")
	}
}

// checkReach warns of a pre-roll that the slots of the ring cannot hold at the usual rate. How far its bytes reach back depends on the
// camera: the recorder tells when it runs.
func (d *decoder) checkReach(path string, s *Stream, r *Record) {
	if r == nil || !r.OnEvent {
		return
	}
	holds := time.Duration(s.PacketSlots) * time.Second / usualRate
	if pre := time.Duration(r.Pre); pre > holds {
		remedy := "packet_slots"
		if s.PacketSlots == packetring.MaxSlots {
			remedy = "shorten it, or let the camera send fewer a second"
		}
		d.warn(path+".pre", "%v before the trigger is more than the ring holds: its %d slots are %v of %d pictures a second; %s",
			pre, s.PacketSlots, holds.Round(time.Second), usualRate, remedy)
	}
}

// checkNames finds streams that would publish or record under one name.
func (d *decoder) checkNames(c *Config) {
	taken := map[string]string{} // key → path of its stream
	outs := map[string]string{}
	at := time.Unix(0, 0)
	for _, s := range c.streams() {
		keys := []string{s.key}
		if s.Audio {
			keys = append(keys, s.key+pipeline.AudioSuffix)
		}
		for _, k := range keys {
			if other, ok := taken[k]; ok {
				d.complain(s.path, "the key %s is that of %s already", k, other)
			}
			taken[k] = s.path
		}
	}
	for _, f := range c.fileSets() {
		p, err := mux.ParsePattern(f.out, f.key)
		if err != nil {
			continue
		}
		name := p.Name(at)
		if other, ok := outs[name]; ok {
			d.complain(f.path, "it names the same files as %s: use %%{key} in it", other)
		}
		outs[name] = f.path
	}
}

// beside makes a name absolute: relative names are those beside the site file.
func (d *decoder) beside(name string) string {
	if name == "" || filepath.IsAbs(name) {
		return name
	}
	dir, err := filepath.Abs(filepath.Dir(d.file))
	if err != nil {
		return name
	}
	return filepath.Join(dir, name)
}

// secret reads a secret's file into value.
func (d *decoder) secret(path string, value, file *string) {
	if *file == "" {
		return
	}
	if *value != "" {
		d.complain(path, "it stands beside %s_file: want one of them", path[strings.LastIndexByte(path, '.')+1:])
		return
	}
	b, err := readBounded(d.beside(*file), maxSecret+1)
	if err != nil {
		d.complain(path+"_file", "%w", err)
		return
	}
	line, _, _ := strings.Cut(string(b), "\n")
	line = strings.TrimSuffix(line, "\r")
	switch {
	case line == "":
		d.complain(path+"_file", "%s is empty", *file)
	case len(b) > maxSecret:
		d.complain(path+"_file", "%s is longer than %d bytes: this is no secret of one line", *file, maxSecret)
	}
	d.checkReaders(path, *file)
	*value, *file = line, ""
	d.private.values = append(d.private.values, line)
}

// literalPassword says whether a URL has a password that does not come from a variable alone.
func literalPassword(raw string) bool {
	_, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return false
	}
	user, _, ok := cutLast(rest, "@")
	if !ok || strings.HasPrefix(user, "${") && strings.Count(user, "${") == 1 && strings.HasSuffix(user, "}") {
		return false
	}
	_, password, ok := strings.Cut(user, ":")
	name, isVariable := strings.CutPrefix(password, "${")
	name, closed := strings.CutSuffix(name, "}")
	return ok && (!isVariable || !closed || !variableName(name))
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

func (d *decoder) checkListen(path, listen string) {
	if _, port, err := net.SplitHostPort(listen); err != nil || port == "" {
		d.complain(path, "%.80q: want HOST:PORT or :PORT", listen)
	} else if _, err := net.LookupPort("tcp", port); err != nil {
		d.complain(path, "%.80q: no such port", listen)
	}
}
