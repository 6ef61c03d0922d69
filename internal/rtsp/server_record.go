package rtsp

import (
	"github.com/cfpipe/cfpipe/internal/media"
)

// Publisher takes what peers publish with ANNOUNCE and RECORD.
type Publisher interface {
	// Publish is asked for a sink when a peer has announced tracks for a path; an error refuses it. closed is called once, with
	// the cause, when the publisher is gone.
	Publish(path string, tracks []media.Track) (sink media.Sink, closed func(cause error), err error)
}

type publishing struct{}

func (*publishing) end(error) {}
