package shm

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestTruncationIsAnError(t *testing.T) {
	testenv.CheckLeaks(t)
	name := unique(t)
	w, err := CreateLocked(name, 1<<20, CreateOptions{})
	require.NoError(t, err)
	r, err := Open(name, OpenOptions{ReadOnly: true})
	require.NoError(t, err)
	dst := make([]byte, 1<<20)
	require.NoError(t, Guard(func() { copy(dst, r.Bytes()) }))

	require.NoError(t, os.Truncate(Dir+"/"+name, 4096))
	word := (*uint32)(unsafe.Pointer(&r.Bytes()[8192]))
	require.ErrorIs(t, Guard(func() { copy(dst, r.Bytes()) }), ErrFault)
	require.ErrorIs(t, Guard(func() { dst[0] = r.Bytes()[1<<20-1] }), ErrFault)
	require.ErrorIs(t, Guard(func() { atomic.LoadUint32(word) }), ErrFault)
	require.ErrorIs(t, Guard(func() { w.Bytes()[8192] = 1 }), ErrFault)
	require.ErrorIs(t, FutexWait(word, 0, 0), ErrFault)
	require.NoError(t, Guard(func() { copy(dst, r.Bytes()[:4096]) }), "what is left can be read")
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
}

func TestGuardPassesOtherPanics(t *testing.T) {
	require.PanicsWithValue(t, "mine", func() { _ = Guard(func() { panic("mine") }) })
	var p *int
	require.Panics(t, func() { _ = Guard(func() { *p = 1 }) }, "a nil dereference is a defect of ours")
	require.Panics(t, func() { _ = Guard(func() { _ = make([]int, 1)[len(os.Args)+5] }) })
}

func TestGuardDoesNotAllocate(t *testing.T) {
	var sum int
	b := []byte{1, 2, 3}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := Guard(func() { sum += int(b[1]) }); err != nil {
			panic(err)
		}
	}))
	require.True(t, errors.Is(ErrTimeout, os.ErrDeadlineExceeded))
}
