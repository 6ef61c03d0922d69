package pipeline

import (
	"strings"

	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/mux"
)

// takers names the commands that can take a track, for people.
func takers(t media.Track) string {
	var list, formats []string
	if rtsp.CanCarry(t) == nil {
		list = append(list, "relay")
	}
	holds := mux.HoldsVideo
	if t.Kind == media.Audio {
		holds = mux.HoldsAudio
	}
	for _, f := range []mux.Format{mux.FMP4, mux.MKV, mux.TS} {
		if holds(f, t.CodecID) == nil {
			formats = append(formats, string(f))
		}
	}
	if len(formats) > 0 {
		list = append(list, "record ("+strings.Join(formats, " ")+")")
	}
	if t.Kind == media.Video && decode.Knows(t.CodecID) {
		list = append(list, "decode")
	}
	if len(list) == 0 {
		return "readers of the packet ring alone"
	}
	return strings.Join(list, ", ")
}
