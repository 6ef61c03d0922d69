package testenv

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Held is how many goroutines and file descriptors this process has.
type Held struct{ Goroutines, Files int }

// Holds counts them.
func Holds(t testing.TB) Held {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return Held{runtime.NumGoroutine(), len(list)}
}

// Back is for Eventually: an error for as long as the process holds more than it did at h, and more on top of that.
func (h Held) Back(t testing.TB, more Held) func() error {
	return func() error {
		if now := Holds(t); now.Goroutines > h.Goroutines+more.Goroutines || now.Files > h.Files+more.Files {
			return fmt.Errorf("holds %+v, held %+v before", now, h)
		}
		return nil
	}
}
