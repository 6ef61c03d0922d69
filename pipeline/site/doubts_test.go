package site

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Bounds that no disk can meet; those that one can are not told of.
func TestUnmet(t *testing.T) {
	of := func(text string) []string {
		t.Helper()
		c, err := load(t, "cameras: {a: {source: 'rtsp://h/a', record: {out: /tmp/none/here/a.mp4"+text)
		require.NoError(t, err)
		return c.Unmet()
	}
	require.Empty(t, of(", retention: {age: 1d, size: 1MiB, free: 1MiB}}}}\nretention: {size: 1MiB, free: 1MiB}"))
	require.Empty(t, of("}}}\nretention: {size: 9000000GiB, free: 1MiB}"), "free comes first")
	for text, want := range map[string]string{
		"}}}\nretention: {free: 9000000GiB}": `^retention.free: the disk of /tmp/none/here has .* and can never have 9000000.0 GiB free: nothing is removed for that`,
		", retention: {free: 9000000GiB}}}}": `^cameras.a.record.out retention.free: the disk of /tmp/none/here `,
		", retention: {size: 9000000GiB}}}}": `retention.size: 9000000.0 GiB are more than the disk of /tmp/none/here, `,
		"}}}\nretention: {size: 9000000GiB}": `^retention.size: 9000000.0 GiB are more than the disks, `,
	} {
		list := of(text)
		require.Len(t, list, 1, text)
		require.Regexp(t, want, list[0])
	}
}

// What lies open to more people than is meant.
func TestOpenToAll(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("a-secret-of-the-test\n"), 0o600))
	text := `
defaults: {username: viewer, password_file: ` + secret + `}
cameras: {a: {source: 'rtsp://h/a'}, b: {source: 'rtsp://h/b'}}
http: {token_file: ` + secret + `}
relay: `
	warnings := func(relay string) []string {
		t.Helper()
		c, err := load(t, text+relay)
		require.NoError(t, err)
		return c.Warnings()
	}
	for _, relay := range []string{"{listen: '127.0.0.1:8554'}", "{listen: ':8554', username: u, password_file: " + secret + "}", "{listen: 'off', listen_tls: '10.0.0.1:8322'}"} {
		require.Empty(t, warnings(relay), relay)
	}
	for _, relay := range []string{"{}", "{listen: '0.0.0.0:8554'}", "{listen: '[::]:8554'}", "{listen: 'off', listen_tls: ':8322'}"} {
		list := warnings(relay)
		require.Len(t, list, 1, relay)
		require.Contains(t, list[0], "asks for no password")
	}
	require.NoError(t, os.Chmod(secret, 0o644))
	list := warnings("off")
	require.Len(t, list, 1, "once a file")
	require.Contains(t, list[0], "every user of this host may read "+secret+": chmod o-rwx "+secret)
	require.NotContains(t, list[0], "a-secret")
}
