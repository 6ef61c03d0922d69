// Package clips has streams of packets for tests: those of files that they have made, and encoded ones. It stands apart from testenv, which packages
// without FFmpeg import.
package clips

import (
	"errors"
	"testing"

	"github.com/asticode/go-astiav"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
)

// Clip is a video as its file holds it.
type Clip struct {
	CodecID   uint32
	Extradata []byte
	Packets   []media.Packet // whole access units; times in ns since the file's own zero
}

// Read reads a file with one stream, whose form (Annex B or not) stays.
func Read(t testing.TB, path string) (c Clip) {
	t.Helper()
	f := astiav.AllocFormatContext()
	require.NotNil(t, f)
	defer f.Free()
	require.NoError(t, f.OpenInput(path, nil, nil))
	defer f.CloseInput()
	require.NoError(t, f.FindStreamInfo(nil))
	s := f.Streams()[0]
	ns := func(v int64) int64 { return astiav.RescaleQ(v, s.TimeBase(), astiav.NewRational(1, 1e9)) }
	pkt := astiav.AllocPacket()
	defer pkt.Free()
	for {
		err := f.ReadFrame(pkt)
		if errors.Is(err, astiav.ErrEof) {
			break
		}
		require.NoError(t, err)
		p := media.Packet{PTS: ns(pkt.Pts()), DTS: ns(pkt.Dts()), Flags: media.FlagLastInAU, Data: pkt.Data()}
		if pkt.Flags().Has(astiav.PacketFlagKey) {
			p.Flags |= media.FlagKey
		}
		c.Packets = append(c.Packets, p)
		pkt.Unref()
	}
	c.CodecID, c.Extradata = uint32(s.CodecParameters().CodecID()), s.CodecParameters().ExtraData()
	return c
}
