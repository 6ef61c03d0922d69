package rtsp

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/bluenviron/gortsplib/v4"
	"github.com/bluenviron/gortsplib/v4/pkg/base"
	"github.com/bluenviron/gortsplib/v4/pkg/description"
	"github.com/bluenviron/gortsplib/v4/pkg/format"
	"github.com/pion/rtcp"
	"github.com/pion/rtp"

	"github.com/cfpipe/cfpipe/internal/clock"
	"github.com/cfpipe/cfpipe/internal/media"
)

// Publisher takes what peers publish with ANNOUNCE and RECORD.
type Publisher interface {
	// Publish is asked when a peer has announced a path; an error refuses it. The sink is called as by any source. closed is called
	// once, with the cause, when the publisher is gone.
	Publish(path string) (sink media.Sink, closed func(cause error), err error)
}

// publishing is a session that records. It takes the first video and the first audio that are known, like the client does.
type publishing struct {
	path   string
	feed   *feed
	stats  counters
	medias []*description.Media // by track of the feed
	closed func(error)
	once   sync.Once
}

// OnAnnounce implements a hook of the library.
func (s *Server) OnAnnounce(ctx *gortsplib.ServerHandlerOnAnnounceCtx) (*base.Response, error) {
	if !s.authorised(ctx.Conn, ctx.Request) {
		return response(base.StatusUnauthorized), unauthorised
	}
	if s.o.Publish == nil {
		return response(base.StatusMethodNotAllowed), nil
	}
	path := pathOf(ctx.Path)
	p := &publishing{path: path}
	formats, err := p.choose(ctx, s.log)
	if err != nil {
		s.log.Warn("rtsp: publisher refused", "path", path, "error", err)
		return response(base.StatusUnsupportedMediaType), nil
	}
	sink, closed, err := s.o.Publish.Publish(path)
	if err != nil {
		s.log.Warn("rtsp: publisher refused", "path", path, "error", err)
		return response(base.StatusForbidden), nil
	}
	if !s.admit(ctx.Session, connOf(ctx.Conn)) {
		closed(errors.New("the server has no room for another session"))
		return response(base.StatusServiceUnavailable), nil
	}
	p.closed = closed
	p.feed = newFeed(sink, formats, &SourceOptions{ReorderWait: defaultReorderWait, MaxUnit: defaultMaxUnit, Logger: s.log}, false, &p.stats)
	if err := p.feed.announce(); err != nil {
		closed(err)
		s.log.Warn("rtsp: publisher refused", "path", path, "error", err)
		return response(base.StatusForbidden), nil
	}
	ctx.Session.SetUserData(p)
	s.log.Info("rtsp: publisher", "path", path, "peer", ctx.Conn.NetConn().RemoteAddr().String())
	return response(base.StatusOK), nil
}

// choose matches the description as the client reads it with the library's, media by media.
func (p *publishing) choose(ctx *gortsplib.ServerHandlerOnAnnounceCtx, log *slog.Logger) (formats []*rtpFormat, err error) {
	_, list, err := parseSDP(ctx.Request.Body)
	if err != nil {
		return nil, err
	}
	if len(list) != len(ctx.Description.Medias) {
		return nil, fmt.Errorf("description with %d media, %d of them readable", len(list), len(ctx.Description.Medias))
	}
	have := map[string]bool{}
	for i, m := range list {
		if m.kind != "video" && m.kind != "audio" || have[m.kind] {
			continue
		}
		f, err := m.format()
		if err != nil {
			log.Warn("rtsp: track left out", "path", p.path, "error", err)
			continue
		}
		have[m.kind] = true
		formats = append(formats, f)
		p.medias = append(p.medias, ctx.Description.Medias[i])
	}
	if len(formats) == 0 {
		return nil, fmt.Errorf("no track of a known codec: %w", media.ErrUnsupported)
	}
	return formats, nil
}

// OnRecord implements a hook of the library.
func (s *Server) OnRecord(ctx *gortsplib.ServerHandlerOnRecordCtx) (*base.Response, error) {
	p, ok := ctx.Session.UserData().(*publishing)
	if !ok {
		return response(base.StatusBadRequest), nil
	}
	connOf(ctx.Conn).setPlaying(true) // the library ends a publisher that falls silent
	for i, m := range p.medias {
		t := p.feed.tracks[i]
		var scratch []byte
		ctx.Session.OnPacketRTP(m, formatWith(m, t.format.payload), func(pkt *rtp.Packet) {
			n := pkt.MarshalSize()
			if cap(scratch) < n {
				scratch = make([]byte, n)
			}
			if n, err := pkt.MarshalTo(scratch[:n]); err == nil {
				if err := t.rtp(scratch[:n], clock.Now()); err != nil {
					p.end(err)
					ctx.Session.Close()
				}
			}
		})
		ctx.Session.OnPacketRTCP(m, func(pkt rtcp.Packet) {
			if b, err := pkt.Marshal(); err == nil {
				t.rtcp(b, clock.Now())
			}
		})
	}
	return response(base.StatusOK), nil
}

// formatWith is the format of a media with a payload type, else its first one.
func formatWith(m *description.Media, payload int) format.Format {
	for _, f := range m.Formats {
		if int(f.PayloadType()) == payload {
			return f
		}
	}
	return m.Formats[0]
}

// end tells the publisher's owner once.
func (p *publishing) end(cause error) {
	p.once.Do(func() {
		if cause == nil {
			cause = errors.New("the publisher has left")
		}
		p.closed(cause)
	})
}

// OnPacketsLost implements a hook of the library: the feed counts for itself.
func (s *Server) OnPacketsLost(*gortsplib.ServerHandlerOnPacketsLostCtx) {}

// OnDecodeError implements a hook of the library.
func (s *Server) OnDecodeError(ctx *gortsplib.ServerHandlerOnDecodeErrorCtx) {
	s.log.Debug("rtsp: packet not understood", "error", ctx.Error)
}
