package shm

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestReplaceKeepsTheName(t *testing.T) {
	testenv.CheckLeaks(t)
	name := fmt.Sprintf("cuframes-replace-%d", os.Getpid())
	first, err := CreateLocked(name, 4096, CreateOptions{})
	require.NoError(t, err)
	first.Bytes()[0] = 1
	reader, err := Open(name, OpenOptions{})
	require.NoError(t, err)
	defer reader.Close()

	second, err := first.Replace(8192, CreateOptions{}, func(b []byte) { b[0] = 2 })
	require.NoError(t, err)
	again, err := Open(name, OpenOptions{})
	require.NoError(t, err)
	defer again.Close()
	require.Equal(t, byte(2), again.Bytes()[0])
	require.Len(t, again.Bytes(), 8192)
	require.Equal(t, byte(1), reader.Bytes()[0], "the old readers keep what they have")
	require.True(t, Locked(again))

	_, err = first.Replace(4096, CreateOptions{}, func([]byte) {})
	require.Error(t, err, "it has no name any more")
	require.NoError(t, first.Close())
	_, err = os.Stat(Dir + "/" + name)
	require.NoError(t, err, "closing the old one leaves the name to the new one")
	_, err = CreateLocked(name, 4096, CreateOptions{})
	require.ErrorIs(t, err, ErrExists)
	require.NoError(t, second.Close())
	_, err = os.Stat(Dir + "/" + name)
	require.ErrorIs(t, err, os.ErrNotExist)
	left, err := os.ReadDir(Dir)
	require.NoError(t, err)
	for _, e := range left {
		require.NotContains(t, e.Name(), name)
	}
}

func TestReplaceThatFailsLeavesTheOld(t *testing.T) {
	testenv.CheckLeaks(t)
	name := fmt.Sprintf("cuframes-replace-fails-%d", os.Getpid())
	s, err := CreateLocked(name, 4096, CreateOptions{})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Replace(maxSize+1, CreateOptions{}, func([]byte) {})
	require.Error(t, err)
	_, err = s.Replace(0, CreateOptions{}, func([]byte) {})
	require.Error(t, err)
	r, err := Open(name, OpenOptions{})
	require.NoError(t, err)
	require.True(t, Locked(r))
	require.NoError(t, r.Close())
}
