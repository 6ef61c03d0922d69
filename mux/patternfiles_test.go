package mux

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Every name that a pattern gives is found again, with a number too.
func TestPatternFiles(t *testing.T) {
	for _, c := range []struct{ pattern, dir string }{
		{"/v/%{key}/%Y-%m-%d/%H-%M-%S.mp4", "/v/cam.1"},
		{"/v/%{key}-%s-%f.mkv", "/v"},
		{"/v/%%/%F/%T.ts", "/v/%"},
		{"/v/%{key}.mp4", "/v"},
		{"/v//x/./%D/%R%p%I%e.mp4", "/v/x"},
		{"/v/%j/%a %A %b %B %y%z.mp4", "/v"},
		{"/v/a+b(c)/%s", "/v/a+b(c)"},
	} {
		p, err := ParsePattern(c.pattern, "cam.1")
		require.NoError(t, err)
		f := p.Files()
		require.Equal(t, c.dir, f.Dir, c.pattern)
		for _, at := range []time.Time{time.Unix(0, 0), time.Unix(1_800_000_000, 123e6), time.Date(2026, 9, 30, 23, 59, 59, 0, time.Local)} {
			name := filepath.Clean(p.Name(at))
			require.True(t, f.Match(name), "%s: %s", c.pattern, name)
			require.True(t, f.Match(numbered(name, 2)), name)
			require.True(t, f.Match(numbered(name, maxNameTries)), name)
			for _, other := range []string{name + "x", "x" + name, numbered(name, 0), name + "/x", name + "\n"} {
				require.False(t, f.Match(other), "%s: %s", c.pattern, other)
			}
		}
	}
}
