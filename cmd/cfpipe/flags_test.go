package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestByteSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "4096": 4096, "8MiB": 8 << 20, "8 MiB": 8 << 20, "500KB": 500e3, "2G": 2 << 30, "1kB": 1000, "7B": 7,
	} {
		var b byteSize
		require.NoError(t, b.Set(in), in)
		require.EqualValues(t, want, b, in)
	}
	for _, in := range []string{"", "MiB", "-1", "8mib", "1.5MiB", "9223372036854775807KiB", "1MiB2"} {
		var b byteSize
		require.Error(t, b.Set(in), in)
	}
	b := byteSize(8 << 20)
	require.Equal(t, "8MiB", b.String())
	b = 1000
	require.Equal(t, "1000", b.String())
}
