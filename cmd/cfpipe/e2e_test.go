package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// site is a host of its own for one test: the built binary, a runtime folder, a folder for recordings.
type site struct {
	t      *testing.T
	binary string
	run    string // runtime folder
	out    string // recordings
}

func newSite(t *testing.T) *site {
	t.Helper()
	testenv.Watchdog(t, 2*time.Minute)
	dir := t.TempDir()
	return &site{t: t, binary: testenv.Binary(t), run: filepath.Join(dir, "run"), out: filepath.Join(dir, "out")}
}

// key returns a key that no other test of the host uses: rings of all tests share /dev/shm.
func (s *site) key(name string) string {
	key := fmt.Sprintf("%s-%d-%06d", name, os.Getpid(), time.Now().UnixNano()%1e6)
	testenv.RemoveRings(s.t, key)
	return key
}

func (s *site) command(arg ...string) *exec.Cmd {
	return exec.Command(s.binary, append(arg, "--runtime-dir", s.run)...)
}

// start runs cfpipe in the background.
func (s *site) start(arg ...string) *testenv.Process {
	s.t.Helper()
	return testenv.StartCmd(s.t, s.command(arg...))
}

// camera starts a built-in camera and returns its URL.
func (s *site) camera(arg ...string) string {
	s.t.Helper()
	p := s.start(append([]string{"testcam", "--listen", "127.0.0.1:0"}, arg...)...)
	return s.line(p)
}

// line waits for the first line that p prints.
func (s *site) line(p *testenv.Process) string {
	s.t.Helper()
	var line string
	testenv.Eventually(s.t, 15*time.Second, func() error {
		l, _, ok := strings.Cut(p.Stdout(), "\n")
		if !ok {
			return fmt.Errorf("%v has printed no line", p.Args)
		}
		line = l
		return nil
	})
	return line
}

// keyStatus is the part of `cfpipe inspect --json` that these tests look at.
type keyStatus struct {
	Packets struct {
		GlobalSeq uint64 `json:"global_seq"`
	} `json:"packets"`
	Subscribers []struct {
		Name string `json:"name"`
	} `json:"subscribers"`
}

// published waits until at least n packets of key are published.
func (s *site) published(key string, n uint64) {
	s.t.Helper()
	testenv.Eventually(s.t, 20*time.Second, func() error {
		seq, err := s.seq(key)
		if err == nil && seq < n {
			err = fmt.Errorf("%d packets published", seq)
		}
		return err
	})
}

func (s *site) seq(key string) (uint64, error) {
	out, err := s.command("inspect", key, "--json").Output()
	if err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	var st keyStatus
	if err := json.Unmarshal(out, &st); err != nil {
		return 0, fmt.Errorf("inspect printed %s: %w", out, err)
	}
	return st.Packets.GlobalSeq, nil
}

// segments parses what `record --json` has printed.
func (s *site) segments(p *testenv.Process) []segmentLine {
	s.t.Helper()
	var all []segmentLine
	for sc := bufio.NewScanner(strings.NewReader(p.Stdout())); sc.Scan(); {
		var l segmentLine
		require.NoError(s.t, json.Unmarshal(sc.Bytes(), &l), sc.Text())
		all = append(all, l)
	}
	return all
}

// probe asks Debian's ffprobe, which shares no code with this binary, for the packets of a file's video.
func probe(t *testing.T, path string) (packets []probedPacket) {
	t.Helper()
	out, err := exec.Command(testenv.NeedTool(t, "ffprobe"), "-v", "error", "-select_streams", "v:0", "-show_packets", "-of", "json", path).Output()
	require.NoError(t, err, path)
	var r struct{ Packets []probedPacket }
	require.NoError(t, json.Unmarshal(out, &r))
	return r.Packets
}

type probedPacket struct {
	DTS   string `json:"dts_time"`
	PTS   string `json:"pts_time"`
	Flags string `json:"flags"`
	Size  string `json:"size"`
}

// checkSegment checks a file with ffprobe: it begins with a keyframe, no dts steps back, every picture decodes without a word.
func checkSegment(t *testing.T, path string) (packets int) {
	t.Helper()
	list := probe(t, path)
	require.NotEmpty(t, list, path)
	require.Contains(t, list[0].Flags, "K", path)
	last := -1e9
	for _, p := range list {
		var dts float64
		_, err := fmt.Sscan(p.DTS, &dts)
		require.NoError(t, err, "%s: dts %q", path, p.DTS)
		require.Greater(t, dts, last, path)
		last = dts
	}
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-i", path, "-f", "null", "-").CombinedOutput()
	require.NoError(t, err, "%s: %s", path, out)
	require.Empty(t, string(out), path)
	return len(list)
}

// leftovers returns what is left of key in /dev/shm and the runtime folder.
func (s *site) leftovers(key string) []string {
	rings, _ := filepath.Glob("/dev/shm/cuframes-" + key + "*")
	sockets, _ := filepath.Glob(filepath.Join(s.run, key+"*"))
	return append(rings, sockets...)
}

// TestDemo runs what a newcomer runs first, and checks its files with a program that shares no code with it.
func TestDemo(t *testing.T) {
	s := newSite(t)
	cmd := exec.Command(s.binary, "demo", "--duration", "11s", "--out", s.out)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Less(t, strings.Count(string(out), "\n"), 40, "more than a screen:\n%s", out)

	files, err := filepath.Glob(filepath.Join(s.out, "*.mp4"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 2, "%s", out)
	total := 0
	for _, f := range files {
		total += checkSegment(t, f)
	}
	require.Contains(t, string(out), fmt.Sprintf("recorded    %d in %d files, 0 lost", total, len(files)))
	_, left, _ := strings.Cut(strings.TrimSpace(string(out)), "which you may delete: rm -r ")
	require.DirExists(t, left, "the last line names what is left")
	require.Contains(t, filepath.Base(left), "cfpipe-demo-")
	require.NoError(t, os.RemoveAll(left))
}

// Two demos run side by side, and one that is interrupted says what it has removed.
func TestDemoInterrupted(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	s := newSite(t)
	t.Setenv("TMPDIR", t.TempDir())
	first, second := testenv.StartCmd(t, exec.Command(s.binary, "demo")), testenv.StartCmd(t, exec.Command(s.binary, "demo", "--out", s.out))
	for _, p := range []*testenv.Process{first, second} {
		testenv.Eventually(t, testenv.Slow(20*time.Second), func() error {
			if !strings.Contains(p.Stdout(), "viewer") {
				return fmt.Errorf("does not run yet: %s%s", p.Stdout(), p.Stderr())
			}
			return nil
		})
	}
	for _, p := range []*testenv.Process{first, second} {
		require.NoError(t, p.Stop(t, syscall.SIGINT, 20*time.Second), p.Stderr())
	}
	require.Regexp(t, `logs and recordings are removed: .*/cfpipe-demo-`, first.Stdout())
	require.Contains(t, second.Stdout(), "the recordings stay in "+s.out)
	require.DirExists(t, s.out)
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "cfpipe-demo-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestSignalsStopCleanly: every long-running command ends with status 0 on SIGINT and SIGTERM and leaves nothing behind.
func TestSignalsStopCleanly(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			s := newSite(t)
			key := s.key("stop")
			url := s.camera("--audio")
			ingest := s.start("ingest", url, "--key", key)
			s.published(key, 10)
			readers := []*testenv.Process{
				s.start("record", key, "--out", filepath.Join(s.out, "%s.mp4"), "--json"),
				s.start("relay", key, "--listen", "127.0.0.1:0"),
				s.start("ls", "--watch", "--json"),
				s.start("inspect", key, "--watch", "--json"),
			}
			pipe := s.command("packets", key, "-f", "nut")
			pipe.Stdout = io.Discard
			readers = append(readers, testenv.StartCmd(t, pipe))
			s.line(readers[1])
			s.published(key, 60)
			for _, p := range append(readers, ingest) {
				require.NoError(t, p.Stop(t, sig, 10*time.Second), "%v\n%s", p.Args, p.Stderr())
			}
			require.Empty(t, s.leftovers(key))
			segments := s.segments(readers[0])
			require.Len(t, segments, 1)
			require.Equal(t, segments[0].Packets, checkSegment(t, segments[0].Path))
		})
	}
}

// TestKillEveryStage kills ingest, record and relay in turn, under load, while the others go on.
func TestKillEveryStage(t *testing.T) {
	s := newSite(t)
	key := s.key("kill")
	url := s.camera("--audio")
	ingest := s.start("ingest", url, "--key", key)
	s.published(key, 10)
	record := func() *testenv.Process {
		return s.start("record", key, "--out", filepath.Join(s.out, "%H%M%S.mp4"), "--segment", "4s", "--json")
	}
	witness := s.start("record", key, "--out", filepath.Join(s.out, "witness-%H%M%S.mp4"), "--segment", "4s", "--json")
	victim := record()
	relay := s.start("relay", key, "--listen", "127.0.0.1:0")
	relayURL := s.line(relay)
	seq, err := s.seq(key)
	require.NoError(t, err)
	s.published(key, seq+100)

	// A recorder: the file it was writing plays but for the last fragment.
	victim.Kill()
	files, err := filepath.Glob(filepath.Join(s.out, "[0-9]*.mp4"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		require.NotEmpty(t, probe(t, f))
	}
	victim = record()

	// The relay: a new one serves within the time that a camera is given.
	relay.Kill()
	relay = s.start("relay", key, "--listen", strings.TrimSuffix(strings.TrimPrefix(relayURL, "rtsp://"), "/"+key))
	require.Equal(t, relayURL, s.line(relay))

	// The owner of the camera: a new one is back at once, its stale socket and rings are no obstacle, and readers follow it.
	ingest.Kill()
	begin := time.Now()
	ingest = s.start("ingest", url, "--key", key)
	s.published(key, 1)
	require.Less(t, time.Since(begin), 4*time.Second)
	s.published(key, 150)
	out, err := exec.Command(testenv.NeedTool(t, "ffprobe"), "-v", "error", "-rtsp_transport", "tcp", "-read_intervals", "%+#20",
		"-show_entries", "packet=flags",
		"-select_streams", "v", "-of", "csv=p=0", relayURL).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.True(t, strings.HasPrefix(string(out), "K"), "%s", out)

	require.NoError(t, ingest.Stop(t, syscall.SIGTERM, 10*time.Second))
	for _, p := range []*testenv.Process{witness, victim, relay} {
		require.NoError(t, p.Stop(t, syscall.SIGTERM, 10*time.Second), "%s", p.Stderr())
	}
	require.Empty(t, s.leftovers(key))

	// The witness lost nothing but what the dead owner never published, and marked the gap.
	gaps := 0
	for _, seg := range s.segments(witness) {
		require.Equal(t, seg.Packets, checkSegment(t, seg.Path))
		require.Zero(t, seg.Lost)
		if seg.Discontinuous {
			gaps++
		}
	}
	require.Equal(t, 1, gaps)
}

// TestSecretsStayHidden: a password in a file is in no log, no process list and no error.
func TestSecretsStayHidden(t *testing.T) {
	s := newSite(t)
	key := s.key("secret")
	const password = "`~!@#$%^&*()-_;',.<>:\"{}[]@"
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
	url := s.camera("--username", "admin", "--password-file", file)

	ingest := s.start("ingest", url, "--key", key, "--username", "admin", "--password-file", file, "--log-level", "debug")
	s.published(key, 5)
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", ingest.Process.Pid))
	require.NoError(t, err)
	require.NotContains(t, string(cmdline), password)
	require.NoError(t, ingest.Stop(t, syscall.SIGINT, 10*time.Second))
	require.NotContains(t, ingest.Stdout()+ingest.Stderr(), password)

	// The name in the URL and the password in a file, as most people write it.
	both := s.start("ingest", strings.Replace(url, "rtsp://", "rtsp://admin@", 1), "--key", key, "--password-file", file)
	s.published(key, 5)
	require.NoError(t, both.Stop(t, syscall.SIGINT, 10*time.Second))

	wrong := s.start("ingest", strings.Replace(url, "rtsp://", "rtsp://admin:hunter2@", 1), "--key", key, "--log-level", "debug", "--duration", "3s")
	_ = wrong.WaitFor(t, 15*time.Second)
	require.NotContains(t, wrong.Stdout()+wrong.Stderr(), "hunter2")
	require.Contains(t, wrong.Stderr(), "401", "the reason is named")
}

// TestSnapshotOfASilentCamera: an old picture is not passed off as a new one.
func TestSnapshotOfASilentCamera(t *testing.T) {
	s := newSite(t)
	key := s.key("silent")
	camera := s.start("testcam", "--listen", "127.0.0.1:0")
	s.start("ingest", s.line(camera), "--key", key)
	s.published(key, 10)
	picture := filepath.Join(t.TempDir(), "p.jpg")
	out, err := s.command("snapshot", key, "-o", picture, "--max-age", "3s", "--json").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "age_seconds")

	camera.Kill()
	testenv.Eventually(t, 10*time.Second, func() error {
		cmd := s.command("snapshot", key, "-o", picture, "--max-age", "500ms")
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != exitTimeout {
			return fmt.Errorf("status %d: %s", cmd.ProcessState.ExitCode(), out)
		}
		return nil
	})
}

// TestUsage: wrong calls exit with 2, absent keys with 3, and say what to do.
func TestUsage(t *testing.T) {
	s := newSite(t)
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"ingest"}, 2, "--help"},
		{[]string{"ingest", "rtsp://127.0.0.1:1/x"}, 2, "key"},
		{[]string{"ingest", "rtsp://127.0.0.1:1/x", "--key", "no/slash"}, 2, "key"},
		{[]string{"record", "nobody", "--out", "x.mp4"}, 3, "nobody"},
		{[]string{"packets", "nobody", "-f", "nut"}, 3, "nobody"},
		{[]string{"packets", "nobody", "-f", "avi"}, 2, "avi"},
		{[]string{"inspect", "nobody"}, 3, "nobody"},
		{[]string{"inspect", "../x"}, 2, "key"},
		{[]string{"record", "a/b", "--out", "x.mp4"}, 2, "key"},
		{[]string{"packets", "a/b"}, 2, "key"},
		{[]string{"packets", "nobody", "--duration", "-1s"}, 2, "negative"},
		{[]string{"ingest", "rtsp://127.0.0.1:1/x", "--key", "k", "--packet-bytes", "1"}, 2, "64KiB"},
		{[]string{"ingest", "rtsp://127.0.0.1:1/x", "--key", "k", "--packet-bytes", "4GiB"}, 2, "4 GiB"},
		{[]string{"ingest", "rtsp://127.0.0.1:1/x", "--key", "k", "--stagger", "-1s"}, 2, "negative"},
		{[]string{"ingest", "rtsp://127.0.0.1:1/x", "--key", "k", "--group", "no such group"}, 2, "no such group"},
		{[]string{"relay", "a/b"}, 2, "key"},
		{[]string{"relay", "--listen", "nowhere"}, 2, "nowhere"},
		{[]string{"relay", "--rtp-port", "-7"}, 2, "rtp-port"},
		{[]string{"relay", "--rtp-port", "8001"}, 2, "rtp-port"},
		{[]string{"relay", "--multicast", "10.0.0.0/8"}, 2, "multicast"},
		{[]string{"relay", "--username", "viewer"}, 2, "--password-file is missing"},
		{[]string{"relay", "--password-file", "/etc/hostname"}, 2, "--username is missing"},
		{[]string{"relay", "--username", "viewer", "--password-file", os.DevNull}, 2, "empty"},
		{[]string{"testcam", "--password-file", "/etc/hostname"}, 2, "belong together"},
		{[]string{"demo", "--duration", "-1s"}, 2, "duration"},
		{[]string{"run", "site.yaml", "--check", "--json"}, 2, "--check and --json: want one of them"},
		{[]string{"trigger", "nobody", "--start", "--stop"}, 2, "--start and --stop: want one of them"},
		{[]string{"nonsense"}, 2, "nonsense"},
		{[]string{"help", "snapsht"}, 2, `did you mean "cfpipe snapshot"?`},
		{[]string{"help", "nnrp", "nonsense"}, 2, "cfpipe nnrp --help"},
		{[]string{"completion", "bash", "more"}, 2, "takes flags alone"},
		{[]string{"record", "nobody", "-out", "x.mp4"}, 2, "the option is --out"},
		{[]string{"trigger", "nobody", "--reason", "-stop"}, 3, "nobody records it"},
		{[]string{"packets", "nobody", "-fnut"}, 3, "nobody"},
		{[]string{"packets", "nobody", "--duration", "x"}, 2, "want a duration, for example 10s"},
		{[]string{"packets", "nobody", "--count", "-1"}, 2, `--count "-1": want a whole number, 0 or more`},
		{[]string{"testcam", "--count", "two"}, 2, `--count "two": want a whole number`},
		{[]string{"ingest", "rtsp://127.0.0.1:1/x", "--key", "k", "--decode", "gpu"}, 2, `--decode "gpu": want auto, cuda or cpu`},
		{[]string{"relay", "--listen", "192.0.2.1:8554"}, 1, "this host has no such address"},
		{[]string{"relay", "a", "--push", "foo://host/x"}, 2, "want one of"},
		{[]string{"bench", "packets", "--only", "x"}, 2, "want some of [wake busy stream cpu]"},
		{[]string{"ls", "--nonsense"}, 2, "--help"},
		{[]string{"ls", "--log-format", "xml"}, 2, "xml"},
	} {
		cmd := s.command(c.args...)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		_ = cmd.Run()
		require.Equal(t, c.status, cmd.ProcessState.ExitCode(), "%v: %s", c.args, stderr.String())
		require.Contains(t, stderr.String(), c.says, c.args)
	}
}

// Whoever reads the log, or the list of files, goes away: ingest, record and relay stay, and the open file is finished.
func TestReadersOfOutputGoAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	key := s.key("pipe")
	url := s.camera()
	closed := func(arg ...string) *exec.Cmd {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		cmd := s.command(arg...)
		cmd.Stdout, cmd.Stderr = w, w
		require.NoError(t, cmd.Start())
		w.Close()
		r.Close()
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		return cmd
	}
	ingest := closed("ingest", url, "--key", key, "--log-level", "debug")
	s.published(key, 10)
	record := closed("record", key, "--out", filepath.Join(s.out, "%s-%f.mp4"), "--segment", "1s", "--json", "--log-level", "debug")
	relay := closed("relay", key, "--listen", "127.0.0.1:0", "--log-level", "debug")
	testenv.Eventually(t, 30*time.Second, func() error {
		if files, _ := filepath.Glob(filepath.Join(s.out, "*.mp4")); len(files) < 3 {
			return fmt.Errorf("%d files", len(files))
		}
		return nil
	})
	for _, cmd := range []*exec.Cmd{record, relay, ingest} {
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, cmd.Wait(), "%v", cmd.Args)
	}
	files, err := filepath.Glob(filepath.Join(s.out, "*.mp4"))
	require.NoError(t, err)
	for _, f := range files {
		checkSegment(t, f)
	}
	list := closed("ls", "--watch", "--interval", "50ms") // what is there to be read ends with its reader
	require.NoError(t, list.Wait())
}

// A process of another user is told whose the key is and what opens it, and takes nothing that it may not read for dead.
func TestAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing the user takes root")
	}
	t.Parallel()
	s := newSite(t)
	key := s.key("uid")
	s.start("ingest", s.camera(), "--key", key)
	s.published(key, 1)
	for dir := s.run; len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) { // the folders of tests are their owner's alone
		require.NoError(t, os.Chmod(dir, 0o755))
	}
	mine, err := os.ReadFile(s.binary)
	require.NoError(t, err)
	binary := filepath.Join(filepath.Dir(s.run), "cfpipe")
	require.NoError(t, os.WriteFile(binary, mine, 0o755))
	other := func(arg ...string) (string, int) {
		cmd := exec.Command(binary, append(arg, "--runtime-dir", s.run)...)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		require.NotNil(t, cmd.ProcessState, "%v", err)
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, status := other("inspect", key)
	require.Equal(t, exitFailed, status, out)
	require.Contains(t, out, "no access")
	require.NotContains(t, out, "dead")
	require.Contains(t, out, "--group")
	out, status = other("packets", key, "--count", "1")
	require.Equal(t, exitFailed, status, out)
	require.Contains(t, out, "uid 0")
	require.Contains(t, out, "--group")
}

// TestHelp: every command has an example and the exit statuses.
func TestHelp(t *testing.T) {
	root := newRootCommand()
	for _, c := range root.Commands() {
		if c.Hidden || c.Name() == "help" || c.Name() == "completion" || c.HasSubCommands() {
			continue
		}
		require.NotEmpty(t, c.Short, c.Name())
		require.NotEmpty(t, c.Example, c.Name())
		require.Contains(t, c.Long, "EXIT STATUS", c.Name())
		if c.Name() != "trigger" { // it waits for answers
			require.Equal(t, c.Flags().Lookup("wait") != nil, strings.Contains(c.Long, "  4  "), "%s: status 4 is that of --wait", c.Name())
		}
	}
}
