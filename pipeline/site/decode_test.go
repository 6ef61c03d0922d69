package site

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func load(t *testing.T, text string) (*Config, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "site.yaml")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return Load(name)
}

func TestLoad(t *testing.T) {
	t.Setenv("SITE_TEST_PASSWORD", `p@ss:{w}"`)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("from file\n"), 0o600))
	c, err := load(t, `
x-recording: &recording
  out: /video/%{key}/%Y-%m-%d/%H-%M-%S.mkv
  format: mkv
cameras:
  door:
    source: rtsp://10.0.0.1/a
    record: {segment: 5m, retention: {age: 30d, size: 50GiB}}
    sub: {source: 'rtsp://10.0.0.1/b', decode: cpu}
  yard: {source: 'rtsp://10.0.0.2/a', username: other, password_file: `+dir+`/secret, record: off, audio: no, packet_bytes: 8MiB}
  hall: {source: 'rtsp://u:${SITE_TEST_PASSWORD}@10.0.0.3/a?x=$${y}', enabled: false}
defaults:
  username: viewer
  password: ${SITE_TEST_PASSWORD}
  transport: tcp
  record: *recording
`)
	require.NoError(t, err)
	door, yard, hall := c.Cameras["door"], c.Cameras["yard"], c.Cameras["hall"]
	require.Equal(t, `p@ss:{w}"`, door.Password)
	require.Equal(t, `p@ss:{w}"`, door.Sub.Password)
	require.Equal(t, "viewer", door.Sub.Username)
	require.False(t, door.Sub.Audio)
	require.True(t, door.Audio)
	require.Equal(t, "cpu", door.Sub.Decode)
	require.Nil(t, door.Sub.Record)
	require.Equal(t, "mkv", door.Record.Format)
	require.Equal(t, Duration(5*time.Minute), door.Record.Segment)
	require.Equal(t, &Retention{Age: Duration(720 * time.Hour), Size: 50 << 30}, door.Record.Retention)
	require.Equal(t, Duration(time.Minute), c.Defaults.Record.Segment, "what a camera says is its own")
	require.Nil(t, yard.Record)
	require.Nil(t, yard.Sub)
	require.Equal(t, "from file", yard.Password)
	require.Empty(t, yard.PasswordFile)
	require.False(t, yard.Audio)
	require.EqualValues(t, 8<<20, yard.PacketBytes)
	require.Equal(t, "tcp", yard.Transport)
	require.Equal(t, `rtsp://u:p@ss:{w}"@10.0.0.3/a?x=${y}`, hall.Source)
	var ids []string
	for _, s := range c.specs("/run/x", "") {
		ids = append(ids, s.id())
	}
	require.Equal(t, []string{"ingest door", "ingest door-sub", "ingest yard", "record door"}, ids)
}

// What is wrong is said with its line, column and field, and with what would be right.
func TestLoadErrors(t *testing.T) {
	t.Setenv("SITE_TEST_TOKEN", "only-8ch")
	ok := "cameras: {a: {source: 'rtsp://h/a'}}\n"
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for name, c := range map[string]struct{ text, want string }{
		"empty":             {"", "site.yaml: the file is empty"},
		"no mapping":        {"- a\n", "site.yaml:1:1: want a mapping"},
		"scalar":            {"hello", "want a mapping"},
		"syntax":            {"cameras: {a: {", "site.yaml:1:"},
		"tab":               {"cameras:\n\ta: b\n", "site.yaml:2:1: the line is indented with a tab: YAML takes spaces there"},
		"tab after spaces":  {"cameras:\n  - a: x\n    \tsource: b\n", "site.yaml:3:5: the line is indented with a tab"},
		"tab after a dash":  {"cameras:\n  -\ta: b\n", "site.yaml:2:5: the line is indented with a tab"},
		"tab in a text":     {"cameras:\n  a: >\n    b\n\tc\n", "site.yaml:4:1: the line is indented with a tab"},
		"binary":            {"cameras: \x00", "NUL byte"},
		"two documents":     {ok + "---\n" + ok, "more than one YAML document"},
		"no cameras":        {"relay: {listen: ':1'}\n", "cameras: no camera"},
		"unknown field":     {ok + "relays: {}\n", "site.yaml:2:1: relays: unknown field; did you mean relay? (allowed here: runtime_dir, group, stagger, defaults, cameras, relay, http, index, retention)"},
		"unknown nested":    {"cameras:\n  a:\n    source: rtsp://h/a\n    record: {out: x, sgment: 3s}\n", "site.yaml:4:22: cameras.a.record.sgment: unknown field"},
		"twice":             {ok + "relay: {}\nrelay: {}\n", "site.yaml:3:1"},
		"enum":              {"cameras: {a: {source: 'rtsp://h/a', transport: tpc}}", `cameras.a.transport: "tpc": want auto, tcp, udp or multicast`},
		"enum in defaults":  {"defaults:\n  decode: gpu\n" + ok, "site.yaml:2:11: defaults.decode"},
		"number":            {"cameras: {a: {source: 'rtsp://h/a', packet_slots: many}}", "want a whole number from 1 to 1024"},
		"bounds":            {"cameras: {a: {source: 'rtsp://h/a', packet_slots: 2000}}", "want a value from 1 to 1024"},
		"protocol":          {"cameras: {a: {source: 'rtsp://h/a', protocol: 3}}", "want 4, 2 or 1"},
		"duration":          {"cameras: {a: {source: 'rtsp://h/a', timeout: 10}}", "want a duration such as 10s"},
		"negative":          {"cameras: {a: {source: 'rtsp://h/a', timeout: -10s}}", "want a duration"},
		"size":              {"cameras: {a: {source: 'rtsp://h/a', packet_bytes: 1 potato}}", "want a size"},
		"ring":              {"cameras: {a: {source: 'rtsp://h/a', packet_bytes: 4GiB}}", "4294967295"},
		"huge size":         {ok + "retention: {size: 99999999999TiB}\n", "size is too large"},
		"bool":              {"cameras: {a: {source: 'rtsp://h/a', audio: maybe}}", "want true or false"},
		"list for value":    {"cameras: {a: {source: [x]}}", "want one value"},
		"value for list":    {ok + "relay: {keys: a}\n", "relay.keys: want a list"},
		"value for block":   {ok + "relay: 8554\n", "relay: want a mapping"},
		"no source":         {"cameras: {a: {transport: tcp}}", "cameras.a.source: it is missing"},
		"bad key":           {"cameras: {'a/../b': {source: x}}", "want a key of 1 to 57 characters"},
		"long key":          {"cameras: {" + strings.Repeat("k", 60) + ": {source: 'rtsp://h/a'}}", "too long"},
		"colliding keys":    {"cameras: {a: {source: 'rtsp://h/a'}, a-audio: {source: 'rtsp://h/b'}}", "the key a-audio is that of cameras.a already"},
		"same files":        {"defaults: {record: {out: '%s.mp4'}}\ncameras: {a: {source: 'rtsp://h/a'}, b: {source: 'rtsp://h/b'}}", "use %{key} in it"},
		"pattern":           {"cameras: {a: {source: 'rtsp://h/a', record: {out: '%Q.mp4'}}}", "%Q is not known"},
		"no pattern":        {"cameras: {a: {source: 'rtsp://h/a', record: {segment: 3s}}}", "record.out: it is missing"},
		"short segment":     {"cameras: {a: {source: 'rtsp://h/a', record: {out: a.mp4, segment: 1ms}}}", "want 1s or more"},
		"bounds nothing":    {"cameras: {a: {source: 'rtsp://h/a', record: {out: a.mp4, retention: {}}}}", "it bounds nothing"},
		"secret in file":    {"cameras: {a: {source: 'rtsp://h/a', username: u, password: hunter2}}", "must not stand in this file"},
		"secret in URL":     {"cameras: {a: {source: 'rtsp://u:hunter2@h/a'}}", "must not stand in this file"},
		"half secret":       {"cameras: {a: {source: 'rtsp://h/a', username: u, password: 'hunter2${SITE_TEST_TOKEN}'}}", "must not stand in this file"},
		"secret in default": {"defaults: {source: 'rtsp://u:hunter2@h/a'}\ncameras: {a: {}}", "must not stand in this file"},
		"no variable":       {"cameras: {a: {source: 'rtsp://${SITE_TEST_NOT_SET}/a'}}", "the environment variable SITE_TEST_NOT_SET is not set"},
		"broken variable":   {"cameras: {a: {source: 'rtsp://${SITE/a'}}", "needs its }"},
		"no password file":  {"cameras: {a: {source: 'rtsp://h/a', username: u, password_file: nope}}", "no such file"},
		"password alone":    {"cameras: {a: {source: 'rtsp://h/a', password: '${SITE_TEST_TOKEN}'}}", "password without username"},
		"no token":          {ok + "http: {}\n", "no token"},
		"short token":       {ok + "http: {token: '${SITE_TEST_TOKEN}'}\n", "too short"},
		"listen":            {ok + "relay: {listen: nowhere}\n", "want HOST:PORT"},
		"listen TLS":        {ok + "relay: {listen_tls: nowhere}\n", "want HOST:PORT"},
		"no port at all":    {ok + "relay: {listen: off}\n", "relay: neither an address for RTSP"},
		"half certificate":  {ok + "relay: {listen_tls: ':1', cert: c.pem}\n", "relay: a certificate and its key go together"},
		"no certificate":    {ok + "relay: {listen_tls: ':1', cert: nope.pem, key_file: nope.pem}\n", "relay.cert: load certificate: open"},
		"odd port":          {ok + "relay: {rtp_port: 5001}\n", "even port"},
		"no such alias":     {"cameras: {a: *nope}", "nope"},
		"tag":               {"cameras: {a: !!binary aGk=}", "tags are not used"},
		"alias of itself":   {"defaults: &d {record: *d}\n" + ok, "d"},
		"deep brackets":     {strings.Repeat("[", 29_000), "nested too deeply"},
		"deep braces":       {strings.Repeat("{a: ", 7_000), "nested too deeply"},
		"deep dashes":       {strings.Repeat("- ", 29_000), "nested too deeply"},
		"pipe for password": {"cameras: {a: {source: 'rtsp://h/a', username: u, password_file: " + pipe + "}}", "no plain file"},
		"folder for index":  {"index: /\n" + ok, "index: / is no plain file"},
		"no such file":      {"cameras: {a: {source: nothere.mp4}}", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Watchdog(t, 20*time.Second)
			_, err := load(t, c.text)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "hunter2")
			var field *FieldError
			require.True(t, errors.As(err, &field), "%T", err)
		})
	}
}

// A pipe in the place of the site file is not waited for.
func TestLoadPipe(t *testing.T) {
	testenv.Watchdog(t, 20*time.Second)
	pipe := filepath.Join(t.TempDir(), "site.yaml")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	_, err := Load(pipe)
	require.ErrorContains(t, err, "no plain file")
}

// A hostile file costs bounded time and memory.
func TestLoadHostile(t *testing.T) {
	bomb := "x-0: &a0 [x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 9; i++ {
		n := string(rune('0' + i - 1))
		bomb += "x-" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + strings.Repeat("*a"+n+", ", 8) + "*a" + n + "]\n"
	}
	var merges strings.Builder
	merges.WriteString("x-0: &m0 {transport: tcp}\n")
	for i := 1; i < 40; i++ {
		merges.WriteString("x-" + strings.Repeat("m", i) + ": &m" + strings.Repeat("i", i) + " {<<: *m" + strings.Repeat("i", i-1))
		if i == 1 {
			merges.WriteString("0")
		}
		merges.WriteString("}\n")
	}
	for name, text := range map[string]string{
		"deep flow":     strings.Repeat("[", 100_000),
		"deep maps":     strings.Repeat("{a: ", 15_000),
		"deep list":     strings.Repeat("- ", 50_000),
		"long":          "cameras: {a: {source: '" + strings.Repeat("x", 2<<20) + "'}}",
		"bomb":          bomb + "relay: {keys: *a8}\ncameras: {a: {source: 'rtsp://h/a'}}\n",
		"merge chain":   merges.String() + "cameras: {a: {<<: *m" + strings.Repeat("i", 39) + "}}\n",
		"many errors":   "cameras: {a: {" + strings.Repeat("x1: 1, ", 1) + strings.Repeat("y: {z: 1}, ", 1) + "}}\n" + strings.Repeat("#", 1000),
		"anchors":       strings.Repeat("&a ", 2000),
		"question":      strings.Repeat("? ", 2000),
		"broken UTF-8":  "cameras: {\xff\xfe: {source: x}}",
		"unicode key":   "cameras: {дверь: {source: x}}",
		"control chars": "cameras: {\"a\\u0007\": {source: x}}",
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Watchdog(t, 30*time.Second)
			_, err := load(t, text)
			require.Error(t, err)
			require.Less(t, len(err.Error()), 20_000)
		})
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("cameras: {a: {source: 'rtsp://h/a'}}\n")
	f.Add("defaults: &d {record: {out: 'x', retention: {age: 3d}}}\ncameras:\n  a: {<<: *d, source: '${HOME}'}\n")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		c, d, err := parse("site.yaml", []byte(text), nil)
		if err != nil {
			return
		}
		d.check(c)
		_ = c.specs("/run/x", "")
	})
}

// The container of a recording is what the name of its files says, as for cfpipe record.
func TestRecordFormat(t *testing.T) {
	for in, want := range map[string]string{
		"out: 'v/%s.mkv'": "mkv", "out: 'v/%s.ts'": "ts", "out: 'v/%s.mp4'": "fmp4",
		"out: 'v/%s.mp4', format: mp4": "mp4", "out: 'v/%s.MKV', format: mkv": "mkv",
	} {
		for _, block := range []string{"record", "events"} {
			c, err := load(t, "cameras: {a: {source: 'rtsp://h/x', "+block+": {"+in+"}}}")
			require.NoError(t, err, in)
			require.Equal(t, want, c.recordings()[0].Format, in)
		}
	}
	for in, says := range map[string]string{
		"out: 'v/%s.avi'": "must end in .mp4, .mkv or .ts", "out: 'v/%s'": "must end in", "out: 'v/%s.mp4', format: mkv": "must end in .mkv",
	} {
		_, err := load(t, "cameras: {a: {source: 'rtsp://h/x', record: {"+in+"}}}")
		require.ErrorContains(t, err, says, in)
		require.ErrorContains(t, err, "cameras.a.record.out", in)
	}
}
