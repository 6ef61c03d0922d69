package lobby

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLobby(t *testing.T) {
	var gone []int
	l := New(3, func(c int) { gone = append(gone, c) })
	for c := range 4 {
		l.Enter(c)
	}
	require.Equal(t, []int{0}, gone)
	l.Leave(0) // it has gone
	l.Leave(1)
	l.Enter(2) // the newest now
	l.Enter(4)
	l.Enter(5)
	require.Equal(t, []int{0, 3}, gone)
	l.Close()
	require.Equal(t, []int{0, 3, 2, 4, 5}, gone)
	l.Enter(6)
	l.Close()
	require.Equal(t, []int{0, 3, 2, 4, 5, 6}, gone)
}
