package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What the kernel's two clocks say of a machine that is awake stays as it is.
func TestSuspended(t *testing.T) {
	slept := Suspended()
	require.GreaterOrEqual(t, slept, time.Duration(0))
	time.Sleep(10 * time.Millisecond)
	require.InDelta(t, slept, Suspended(), float64(time.Second))
}
