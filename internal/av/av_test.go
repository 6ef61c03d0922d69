package av

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/asticode/go-astiav"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
)

// The numbers in media are those of the libavcodec that is linked.
func TestCodecIDs(t *testing.T) {
	for id, want := range map[uint32]astiav.CodecID{
		media.H264: astiav.CodecIDH264, media.HEVC: astiav.CodecIDHevc, media.AV1: astiav.CodecIDAv1,
		media.MJPEG: astiav.CodecIDMjpeg, media.AAC: astiav.CodecIDAac, media.Opus: astiav.CodecIDOpus,
		media.PCMMulaw: astiav.CodecIDPcmMulaw, media.PCMAlaw: astiav.CodecIDPcmAlaw, media.PCMS16BE: astiav.CodecIDPcmS16Be,
		media.G726: astiav.CodecIDAdpcmG726,
	} {
		require.Equal(t, want, astiav.CodecID(id), want.Name())
		kind := media.Video
		if want.MediaType() == astiav.MediaTypeAudio {
			kind = media.Audio
		}
		require.Equal(t, kind, media.KindOf(id), want.Name())
	}
}

// astiav's objects begin with their C pointer: what is written through the one is read through the other.
func TestPointers(t *testing.T) {
	pkt := astiav.AllocPacket()
	defer pkt.Free()
	require.NoError(t, pkt.FromData([]byte("payload")))
	require.Equal(t, "payload", string(PacketData(pkt)))
	pkt.SetPts(77)
	require.EqualValues(t, 77, packetPointer(pkt).pts)

	fc, err := astiav.AllocOutputFormatContext(nil, "nut", "")
	require.NoError(t, err)
	defer fc.Free()
	st := fc.NewStream(nil)
	require.EqualValues(t, 1, formatPointer(fc).nb_streams)
	st.SetID(4711)
	require.EqualValues(t, 4711, streamPointer(st).id)
}

func TestErrors(t *testing.T) {
	for _, c := range []struct {
		code astiav.Error
		is   error
	}{
		{astiav.ErrEof, io.EOF}, {astiav.ErrExit, context.Canceled}, {astiav.ErrEtimedout, os.ErrDeadlineExceeded},
		{astiav.Error(-int(syscall.ENOENT)), os.ErrNotExist}, {astiav.Error(-int(syscall.EACCES)), os.ErrPermission},
		{astiav.Error(-int(syscall.ENOSPC)), syscall.ENOSPC}, {astiav.ErrEpipe, syscall.EPIPE},
		{astiav.ErrInvaliddata, ErrInvalidData}, {astiav.ErrDemuxerNotFound, media.ErrUnsupported}, {astiav.ErrHttpNotFound, os.ErrNotExist},
	} {
		err := wrap("open", c.code)
		require.ErrorIs(t, err, c.is)
		require.True(t, strings.HasPrefix(err.Error(), "open: "), err.Error())
		require.Greater(t, len(err.Error()), len("open: "))
	}
	require.NoError(t, wrap("open", nil))
	require.NotErrorIs(t, wrap("open", astiav.ErrBug), io.EOF)
}

func TestMask(t *testing.T) {
	for _, c := range [][2]string{
		{"rtsp://user:pw@cam/1", "rtsp://***@cam/1"},
		{"rtsp:/user:pw@cam/1", "***@cam/1"},
		{"rtsp//user:pw@cam/1 not found", "rtsp//***@cam/1 not found"},
		{"open 'user:p/w@cam/1'", "open '***@cam/1'"},
		{"12:30 [h264 @ 0x55] at a:b", "12:30 [h264 @ 0x55] at a:b"},
		{"srt://cam:1?mode=caller&passphrase=abc", "srt://cam:1?mode=caller&passphrase=***"},
		{"http://cam/?user_password=b", "http://cam/?user_password=***"},
		{"rtmp://site/live/abc-def?x=1: refused", "rtmp://site/live/*** refused"},
		{"rtmp://site/live", "rtmp://site/live"},
		{"rtsp://u:p@ss/w@cam:554/x failed", "rtsp://***@cam:554/x failed"},
		{"http://cam/x?user=a&password=b&ch=1", "http://cam/x?user=a&password=***&ch=1"},
		{"Authorization: Basic dXNlcjpwdw==\r\nNext: 1", "Authorization: ***\r\nNext: 1"},
		{"plain text: a=b", "plain text: a=b"},
	} {
		require.Equal(t, c[1], Mask(c[0]))
	}
}

func TestLogBridge(t *testing.T) {
	var out bytes.Buffer
	SetLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	defer SetLogger(nil)
	astiav.Log(nil, astiav.LogLevelWarning, "half %s", "a line, ")
	require.Empty(t, out.String())
	astiav.Log(nil, astiav.LogLevelWarning, "the other: rtsp://joe:%s@cam\n", "secret")
	require.Contains(t, out.String(), "half a line, the other: rtsp://***@cam")
	require.NotContains(t, out.String(), "secret")
	out.Reset()
	astiav.Log(nil, astiav.LogLevelDebug, "quiet\n")
	require.Empty(t, out.String())
	astiav.Log(nil, astiav.LogLevelError, "%s\n", strings.Repeat("x", 100000)) // longer than any buffer
	require.Contains(t, out.String(), "level=WARN")
	require.Less(t, out.Len(), 8192)
}

// What keeps a connection from coming about stands in the error alone, whether the log is on or not.
func TestOpenURLSays(t *testing.T) {
	defer SetLogger(nil)
	var out bytes.Buffer
	for _, l := range []*slog.Logger{nil, slog.New(slog.NewTextHandler(&out, nil))} {
		SetLogger(l)
		_, err := OpenURL(context.Background(), "rtmp://127.0.0.1:1/app/secretname", time.Second)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.Equal(t, "open: Connection refused", err.Error())
		_, err = OpenURL(context.Background(), "tcp://127.0.0.1", time.Second)
		require.ErrorContains(t, err, "(Port missing in uri)")
	}
	require.Empty(t, out.String())
	astiav.Log(nil, astiav.LogLevelError, "and after it all is told\n")
	require.Contains(t, out.String(), "told")
}

// What a muxer says is told with the key of its stream.
func TestLogKey(t *testing.T) {
	var out bytes.Buffer
	SetLogger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo})))
	defer SetLogger(nil)
	o, err := NewOutput(OutputOptions{
		Format: "nut", Key: "door", Writer: io.Discard, Streams: []OutputStream{{Track: media.Track{CodecID: media.MJPEG}, Width: 16, Height: 16}},
	})
	require.NoError(t, err)
	defer o.Close()
	astiav.Log(o.fc, astiav.LogLevelWarning, "pts has no value\n")
	require.Contains(t, out.String(), "key=door")
	require.Contains(t, out.String(), "component=nut")
	require.Len(t, bridge.keys, 1)
	o.Close()
	require.Empty(t, bridge.keys)
}

type failingWriter struct {
	after int
	err   error
}

func (f *failingWriter) Write(b []byte) (int, error) {
	if f.after -= len(b); f.after < 0 {
		return 0, f.err
	}
	return len(b), nil
}

// The writer's own error comes out, at the write or at the flush that met it, and every call after it fails alike.
func TestOutputError(t *testing.T) {
	cause := &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC}
	o, err := NewOutput(OutputOptions{
		Format: "nut", Writer: &failingWriter{after: 20000, err: cause},
		Streams: []OutputStream{{Track: media.Track{CodecID: media.MJPEG}, Width: 16, Height: 16}},
	})
	require.NoError(t, err)
	defer o.Close()
	for i := range 100 {
		if err = o.Write(OutputPacket{DTS: int64(i) * 1e7, PTS: int64(i) * 1e7, Key: true, Data: make([]byte, 1000)}); err == nil {
			err = o.Flush()
		}
		if err != nil {
			break
		}
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorIs(t, o.Write(OutputPacket{Data: []byte{1}}), syscall.ENOSPC)
	require.ErrorIs(t, o.Finish(), syscall.ENOSPC)
	o.Close()
	o.Close()
}

func TestOutputRefuses(t *testing.T) {
	_, err := NewOutput(OutputOptions{Format: "no such muxer", Writer: io.Discard})
	require.Error(t, err)
	video := []OutputStream{{Track: media.Track{CodecID: media.MJPEG}, Width: 16, Height: 16}}
	_, err = NewOutput(OutputOptions{Format: "nut", Writer: io.Discard, Streams: video, Options: map[string]string{"nonsense": "1"}})
	require.ErrorContains(t, err, `"nonsense"`)
	_, err = NewOutput(OutputOptions{Format: "mp4", Writer: io.Discard, Streams: video})
	require.Error(t, err) // it has to seek
	var e *Error
	require.True(t, errors.As(err, &e))
}

func TestRescale(t *testing.T) {
	for _, c := range [][4]int64{
		{1e9, 1, 90000, 90000}, {40e6, 1, 90000, 3600}, {-40e6, 1, 90000, -3600}, {1, 1, 1000, 0}, {500000, 1, 1000, 1},
		{86400 * 365 * 1e9, 1, 90000, 86400 * 365 * 90000}, {33366666, 1001, 30000, 1},
	} {
		require.Equal(t, c[3], rescale(c[0], c[1], c[2]), c)
	}
	for _, v := range []int64{0, 1, 3003, 1 << 40} {
		require.Equal(t, v, rescale(ticks(v, 1, 90000), 1, 90000))
	}
}

func tempFile(t *testing.T, name string, data []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(p, data, 0o600))
	return p
}
