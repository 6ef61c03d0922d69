package nnrp

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func TestCapture(t *testing.T) {
	var all []byte
	var offsets []int64
	for _, c := range golden {
		if !goldenLimits(c.msg).SDK {
			offsets = append(offsets, int64(len(all)))
			all = append(all, hx(c.bytes)...)
		}
	}
	read := func(b []byte) (again []byte, n int, err error) {
		r := NewCaptureReader(iotest.HalfReader(bytes.NewReader(b)), Limits{})
		for {
			c, err := r.Next()
			if err != nil {
				return again, n, err
			}
			require.Equal(t, offsets[n], c.Offset)
			if again, err = c.Message.Append(again, c.Header); err != nil {
				return again, n, err
			}
			n++
		}
	}
	again, n, err := read(all)
	require.Equal(t, io.EOF, err)
	require.Equal(t, len(offsets), n)
	require.Equal(t, all, again)

	for cut := 0; cut < len(all); cut += 1 + cut/200 { // every byte of the first messages, then thinner: TestCut has them all
		again, _, err := read(all[:cut])
		if errors.Is(err, io.EOF) {
			require.True(t, bytes.Equal(all[:cut], again))
			continue
		}
		var e *Error
		require.True(t, errors.As(err, &e), "%v", err)
		require.EqualValues(t, cut, e.Offset)
		require.Contains(t, []ErrorCode{CodeMalformedHeader, CodeMalformedBody}, e.Code)
	}

	bad := append([]byte(nil), all...)
	bad[offsets[3]+2] = 'X'
	_, n, err = read(bad)
	require.ErrorIs(t, err, ErrMalformedHeader)
	require.Equal(t, 3, n)
	require.ErrorContains(t, err, "malformed_header")
	require.Equal(t, offsets[3], offsetOf(t, err))

	_, _, err = read(all[:2])
	require.ErrorIs(t, err, ErrMalformedHeader)
	_, _, err = read([]byte("no"))
	require.ErrorIs(t, err, ErrMalformedHeader)
	require.Zero(t, offsetOf(t, err))

	// A header that announces 4 GiB costs what is there.
	giant := (&Header{Type: MsgFrameSubmit, MetaLen: 32, BodyLen: 1<<32 - 1}).Append(nil)
	r := NewCaptureReader(bytes.NewReader(giant), Limits{})
	_, err = r.Next()
	require.ErrorIs(t, err, ErrMalformedBody)
	require.Less(t, cap(r.buf), 1<<20)
}

func offsetOf(t *testing.T, err error) int64 {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e.Offset
}
