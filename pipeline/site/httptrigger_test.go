package site

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A body that cannot be taken is answered with the field that is wrong, and with what would be right.
func TestTriggerBody(t *testing.T) {
	for body, want := range map[string]string{
		`{"fro": "30s"}`:                  `unknown field "fro": want JSON such as {"action"`,
		`{"for": 30}`:                     "for: a number is no string: want JSON such as",
		`{"for": "30s"} {}`:               "there is more behind it: want JSON",
		`{"for": "30s"`:                   "unexpected EOF: want JSON",
		`[]`:                              "want JSON such as",
		`{"for": "soon"}`:                 "for: ",
		`{"action": "jump"}`:              "jump",
		"{\"" + strings.Repeat("x", 3000): "want JSON",
	} {
		_, err := readTrigger(strings.NewReader(body))
		require.ErrorContains(t, err, want, body)
		require.Less(t, len(err.Error()), 300)
	}
	r, err := readTrigger(strings.NewReader(` {"for": "30s", "reason": "bell"} `))
	require.NoError(t, err)
	require.Equal(t, "bell", r.Reason)
}
