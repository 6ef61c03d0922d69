package site

import (
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline"
)

// checkInfer completes and checks what sends pictures away.
func (d *decoder) checkInfer(key, path string, s *Stream) {
	in := s.Infer
	if in.To == "" {
		d.complain(path+".to", "it is missing: want nnrps://host:port of the runtime")
		return
	}
	if s.Decode == "off" {
		d.complain(path, "it needs pictures: set decode")
	}
	d.secret(path+".token", &in.Token, &in.TokenFile)
	if in.CA != "" {
		in.CA = d.beside(in.CA)
	}
	o := spec{Key: key, Infer: in}.inferOptions(nil)
	err := o.SetFormat(in.Size, in.DType, in.Layout)
	if err == nil {
		err = o.Check()
	}
	if err == nil {
		err = o.Trust.Check()
	}
	if err != nil {
		d.complain(path, "%w", err)
	}
	if in.Results == "" && in.Trigger == nil {
		d.complain(path, "nothing is done with the results: want results, or trigger")
	}
	if in.Results == "" && in.Retention != nil {
		d.complain(path+".retention", "there are no results' files: want results as well")
	}
	if in.Retention != nil && *in.Retention == (Retention{}) {
		d.complain(path+".retention", "it bounds nothing: want age, size or free")
	}
	if in.Results != "" {
		in.Results = d.beside(in.Results)
		p, err := mux.ParsePattern(in.Results, key)
		switch at := time.Unix(0, 0); {
		case err != nil:
			d.complain(path+".results", "%w", err)
		case p.Name(at) != p.Name(at.Add(59*time.Second)):
			d.complain(path+".results", "its name changes within a minute, and a file begins each time: want days or hours in it, such as %%Y-%%m-%%d")
		}
	}
	if r := in.Trigger; r != nil {
		if r.Output == "" {
			d.complain(path+".trigger.output", "it is missing: want an output's name or role_id")
		}
		if s.Events == nil && (s.Record == nil || !s.Record.OnEvent) {
			d.complain(path+".trigger", "nobody records this stream on events: want events, or record with on_event")
		}
	}
}

// checkPush completes and checks what sends a stream away.
func (d *decoder) checkPush(key, path string, p *Push) {
	d.secret(path+".to", &p.To, &p.ToFile)
	if p.To == "" {
		d.complain(path+".to", "it is missing: want a URL, or to_file")
		return
	}
	if raw := d.rawText(path + ".to"); literalPassword(raw) || literalStreamKey(raw) || literalParameter(raw) {
		d.complain(path+".to", "a secret must not stand in this file: use ${VARIABLE} in its place, or to_file")
	}
	d.secret(path+".password", &p.Password, &p.PasswordFile)
	if p.Password != "" && p.Username == "" {
		d.complain(path, "password without username")
	}
	if err := (pipeline.PushOptions{Keys: []string{key}, URL: p.To}).Check(); err != nil {
		d.complain(path+".to", "%w", err)
	}
}

// literalStreamKey says whether an RTMP URL has the key to publish with, which follows the application, in clear.
func literalStreamKey(raw string) bool {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !strings.HasPrefix(strings.ToLower(scheme), "rtmp") {
		return false
	}
	parts := strings.SplitN(rest, "/", 3)
	return len(parts) == 3 && parts[2] != "" && !strings.Contains(parts[2], "${")
}
