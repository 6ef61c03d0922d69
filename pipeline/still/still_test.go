package still

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
)

// picture makes a picture whose pixels follow from its number.
func picture(f framering.Format, width, height int, seq uint64) Picture {
	p := Picture{Format: f, Width: width, Height: height, Seq: seq, PTS: int64(seq) * 1e9}
	n, err := p.size()
	if err != nil {
		panic(err)
	}
	p.Pixels = make([]byte, n)
	for i := range p.Pixels {
		p.Pixels[i] = byte(uint64(i) + seq*7)
	}
	return p
}

func answer(t testing.TB, p Picture, err error) []byte {
	t.Helper()
	line, err := appendHeader(nil, p, err)
	require.NoError(t, err)
	require.LessOrEqual(t, len(line), maxHeader)
	return append(line, p.Pixels...)
}

// sizes are what pictures of 321×121 take without padding, by hand.
var sizes = map[framering.Format]int{
	framering.NV12: 321*121 + 322*61, framering.P010: 2*321*121 + 2*322*61, framering.P016: 2*321*121 + 2*322*61,
	framering.YUV420P: 321*121 + 2*161*61, framering.RGB24: 3 * 321 * 121, framering.BGR24: 3 * 321 * 121,
	framering.RGBA32: 4 * 321 * 121, framering.BGRA32: 4 * 321 * 121, framering.GRAY8: 321 * 121,
}

func TestAnswer(t *testing.T) {
	for f, n := range sizes {
		want := picture(f, 321, 121, 1<<63+5)
		require.Len(t, want.Pixels, n, f)
		b := answer(t, want, nil)
		have, err := read(iotest.HalfReader(bytes.NewReader(append(b, "more"...))))
		require.NoError(t, err, f)
		require.Equal(t, want, have, f)
	}
	// As the package's comment shows it.
	line, err := appendHeader(nil, Picture{Format: framering.NV12, Width: 1920, Height: 1080, Seq: 4711, PTS: 1_700_000_000_000_000_000}, nil)
	require.NoError(t, err)
	require.Equal(t, `{"format":0,"width":1920,"height":1080,"seq":4711,"pts_ns":1700000000000000000}`+"\n", string(line))
	_, err = read(bytes.NewReader(answer(t, Picture{}, errors.New("no frame\x1b[2J\n"+strings.Repeat("\x01", 9999)))))
	require.ErrorContains(t, err, `no frame\x1b[2J\n`)
	require.NotErrorIs(t, err, errAnswer)
}

// An answer that ends anywhere before its last byte is none.
func TestAnswerCut(t *testing.T) {
	b := answer(t, picture(framering.NV12, 17, 3, 9), nil)
	for n := range b {
		_, err := read(bytes.NewReader(b[:n]))
		require.Error(t, err, n)
		require.True(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%d bytes: %v", n, err)
	}
}

func TestAnswerHostile(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON": "hello", "empty": "", "another type": `{"width":"7"}`, "a list": `[]`, "null": `null`, "no size": `{}`, "negative": `{"width":-7,"height":5}`,
		"endless": strings.Repeat("x", 1<<20), "deep": strings.Repeat("[", 4000), "unknown format": `{"format":99,"width":8,"height":8}`,
		"a format too large": fmt.Sprintf(`{"format":%d,"width":8,"height":8}`, uint64(math.MaxUint32)+1), "two": `{"width":8,"height":8}{}`,
		"large": `{"format":5,"width":65536,"height":65536}`, "larger than any": `{"format":0,"width":65536,"height":4096}`, "overflow": `{"width":9223372036854775807,"height":2}`,
		"half a number": `{"width":8.5,"height":8}`,
	} {
		_, err := read(strings.NewReader(line + "\n"))
		require.ErrorIs(t, err, errAnswer, name)
	}
}

func FuzzAnswer(f *testing.F) {
	for format := range sizes {
		f.Add(answer(f, picture(format, 5, 3, 42), nil))
	}
	f.Add(answer(f, Picture{}, errors.New("no frame yet")))
	f.Add([]byte(`{"format":0,"width":65536,"height":65536,"seq":18446744073709551615,"pts_ns":-9223372036854775808}` + "\n"))
	f.Add([]byte("{}\n"))
	f.Add([]byte(`{"error":"` + strings.Repeat("x", 4096)))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := read(bytes.NewReader(b))
		if err != nil {
			require.Equal(t, Picture{}, p)
			return
		}
		require.LessOrEqual(t, len(p.Pixels), len(b))
		again, err := read(bytes.NewReader(answer(t, p, nil)))
		require.NoError(t, err)
		require.Equal(t, p, again)
		line, _, _ := bytes.Cut(b, []byte("\n"))
		require.True(t, json.Valid(line))
	})
}
