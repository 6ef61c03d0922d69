package rtsp

import (
	"github.com/cfpipe/cfpipe/internal/media"
)

// Publisher takes what peers publish with ANNOUNCE and RECORD.
type Publisher interface {
	// Publish is asked for a sink when a peer has announced tracks for a path; an error refuses it.
	Publish(path string, tracks []media.Track) (PublishSink, error)
}

// PublishSink takes the access units of one publisher.
type PublishSink interface {
	// Unit hands over an access unit, from one goroutine at a time; the data is the callee's.
	Unit(track int, u Unit)
	// Close is called once, with the cause, when the publisher is gone.
	Close(cause error)
}

type publishing struct{}

func (*publishing) end(error) {}
