package lz4codec

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/nnrp"
)

func TestTile(t *testing.T) {
	var c nnrp.Codec = Codec{}
	src := bytes.Repeat([]byte("cfpipe "), 1000)
	block, ok := c.Append([]byte("front"), src)
	require.True(t, ok)
	require.Less(t, len(block), 200)
	require.Equal(t, "front", string(block[:5]))
	dst := make([]byte, len(src))
	require.NoError(t, nnrp.DecodeTile(dst, nnrp.CodecLZ4, block[5:], []nnrp.Codec{c}))
	require.Equal(t, src, dst)

	require.Error(t, c.Decode(make([]byte, len(src)-1), block[5:]), "a block that makes more than the tile")
	require.Error(t, c.Decode(make([]byte, len(src)+1), block[5:]), "a block that makes less than the tile")
	require.Error(t, c.Decode(dst, block[5:len(block)-1]))
	require.Error(t, nnrp.DecodeTile(dst, 7, block, []nnrp.Codec{c}))

	noise := make([]byte, 4096)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(noise)
	out, ok := c.Append(block[:5], noise)
	require.False(t, ok)
	require.Equal(t, "front", string(out))

	// One block typed by hand: token 0x50 = five literals, no match.
	dst = make([]byte, 5)
	require.NoError(t, c.Decode(dst, []byte{0x50, 'h', 'e', 'l', 'l', 'o'}))
	require.Equal(t, "hello", string(dst))
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0x50, 'h', 'e', 'l', 'l', 'o'}, uint16(5))
	f.Fuzz(func(t *testing.T, b []byte, n uint16) {
		dst := make([]byte, n)
		if Codec.Decode(Codec{}, dst, b) != nil {
			return
		}
		if block, ok := (Codec{}).Append(nil, dst); ok {
			again := make([]byte, n)
			if err := (Codec{}).Decode(again, block); err != nil || !bytes.Equal(again, dst) {
				t.Fatalf("%v", err)
			}
		}
	})
}
