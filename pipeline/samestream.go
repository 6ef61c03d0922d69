package pipeline

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

// sameStream says whether readers of a publication of a can go on with b: the same codec, and pictures (or sound) of the same
// form. Parameter sets that differ in other things (timing, VUI: case b1) do not matter.
func sameStream(a, b media.Track) bool {
	if a.CodecID != b.CodecID {
		return false
	}
	if bytes.Equal(a.Extradata, b.Extradata) {
		return true
	}
	fa, okA := pictureFormat(a)
	fb, okB := pictureFormat(b)
	return okA && okB && fa == fb
}

// pictureFormat is what the parameter sets of a video track say; false where they cannot be read, or there are none.
func pictureFormat(t media.Track) (bitstream.Format, bool) {
	switch t.CodecID {
	case media.H264, media.HEVC:
		sets := bitstream.NewParameterSets(t.CodecID)
		_ = sets.AddExtradata(t.Extradata) // what could be read counts
		sps, ok := sets.SPS()
		return sps.Format, ok
	case media.AV1:
		return bitstream.AV1Format(t.Extradata)
	}
	return bitstream.Format{}, false
}

// streamText names a track's codec and the size of its pictures, or the rate and the channels of its sound.
func streamText(t media.Track) string {
	name := media.CodecName(t.CodecID)
	if t.Kind == media.Audio {
		return fmt.Sprintf("%s %d Hz %d ch", name, t.ClockRate, t.Channels)
	}
	if f, ok := pictureFormat(t); ok {
		return fmt.Sprintf("%s %dx%d", name, f.Width, f.Height)
	}
	return name
}

// changes names what keeps readers of a from going on with b.
func changes(a, b media.Track) string {
	var list []string
	note := func(changed bool, what string) {
		if changed {
			list = append(list, what)
		}
	}
	note(a.CodecID != b.CodecID, "codec")
	if a.Kind == media.Audio {
		note(a.ClockRate != b.ClockRate, "rate")
		note(a.Channels != b.Channels, "channels")
	} else if fa, ok := pictureFormat(a); ok {
		if fb, ok := pictureFormat(b); ok {
			note(fa.Width != fb.Width || fa.Height != fb.Height, "size")
			note(fa.Profile != fb.Profile && fa.Codec == fb.Codec, "profile")
			note(fa.ChromaFormat != fb.ChromaFormat, "chroma")
			note(fa.BitDepth != fb.BitDepth, "bit depth")
		}
	}
	note(len(list) == 0, "extradata")
	return strings.Join(list, ", ")
}
