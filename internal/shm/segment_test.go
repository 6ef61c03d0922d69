package shm

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestCreateOpenClose(t *testing.T) {
	testenv.CheckLeaks(t)
	name := unique(t)
	w, err := CreateLocked(name, 10000, CreateOptions{})
	require.NoError(t, err)
	require.Len(t, w.Bytes(), 10000)
	require.Equal(t, make([]byte, 10000), w.Bytes())
	require.True(t, Locked(w))

	for _, path := range []string{name, "/dev/shm/" + name} {
		r, err := Open(path, OpenOptions{ReadOnly: true, MinSize: 10000})
		require.NoError(t, err)
		require.True(t, Locked(r), "a reader sees the publisher's lock")
		w.Bytes()[9999] = 7
		require.Equal(t, byte(7), r.Bytes()[9999])
		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
	}
	_, err = CreateLocked(name, 10000, CreateOptions{})
	require.ErrorIs(t, err, ErrExists)
	_, err = Open(name, OpenOptions{MinSize: 10001})
	require.ErrorIs(t, err, ErrTooSmall)

	r, err := Open(name, OpenOptions{ReadOnly: true})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	require.False(t, Locked(r))
	require.Equal(t, byte(7), r.Bytes()[9999], "the mapping outlives the name")
	require.NoError(t, r.Close())
	_, err = Open(name, OpenOptions{})
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestMode(t *testing.T) {
	testenv.CheckLeaks(t)
	for _, c := range []struct {
		o    CreateOptions
		want os.FileMode
	}{
		{CreateOptions{}, 0o600},
		{CreateOptions{GID: os.Getgid() + 1}, 0o660},
		{CreateOptions{Mode: 0o644}, 0o644},
	} {
		if c.o.GID != 0 && os.Geteuid() != 0 {
			continue
		}
		w, err := CreateLocked(unique(t), 100, c.o)
		require.NoError(t, err)
		st, err := w.File().Stat()
		require.NoError(t, err)
		require.Equal(t, c.want, st.Mode().Perm())
		if c.o.GID != 0 {
			var raw unix.Stat_t
			require.NoError(t, unix.Fstat(int(w.File().Fd()), &raw))
			require.Equal(t, c.o.GID, int(raw.Gid))
		}
		require.NoError(t, w.Close())
	}
}

func TestOpenRefuses(t *testing.T) {
	testenv.CheckLeaks(t)
	name := unique(t)
	for _, bad := range []string{"", "x", "/etc/passwd", "cuframes-a/../b", "/dev/shm/../etc/cuframes-x", "sub/cuframes-x", "../dev/shm/cuframes-x",
		"/dev/shm//cuframes-x", "cuframes-x\x00y", "/tmp/cuframes-x", "cuframes-" + strings.Repeat("x", 255)} {
		_, err := Open(bad, OpenOptions{})
		require.ErrorIs(t, err, ErrName, "%q", bad)
		_, err = CreateLocked(bad, 100, CreateOptions{})
		require.ErrorIs(t, err, ErrName, "%q", bad)
	}
	path := Dir + "/" + name
	plant := map[string]func() error{
		"link":   func() error { return os.Symlink("/etc/passwd", path) },
		"folder": func() error { return os.Mkdir(path, 0o700) },
		"pipe":   func() error { return unix.Mkfifo(path, 0o600) },
	}
	for kind, f := range plant {
		require.NoError(t, f())
		_, err := Open(name, OpenOptions{ReadOnly: true})
		require.ErrorIs(t, err, ErrNotRegular, kind)
		_, err = CreateLocked(name, 100, CreateOptions{})
		require.ErrorIs(t, err, ErrNotRegular, kind)
		require.NoError(t, os.Remove(path))
	}
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err := Open(name, OpenOptions{})
	require.ErrorIs(t, err, ErrTooSmall)
	require.NoError(t, os.Truncate(path, maxSize+1))
	_, err = Open(name, OpenOptions{})
	require.ErrorContains(t, err, "larger than any ring")
	require.NoError(t, os.Remove(path))
}

func TestForeign(t *testing.T) {
	testenv.CheckLeaks(t)
	name := unique(t)
	path := Dir + "/" + name
	require.NoError(t, os.WriteFile(path, []byte("foreign header"), 0o600))

	var seen string
	_, err := CreateLocked(name, 100, CreateOptions{Foreign: func(old []byte) bool { seen = string(old); return true }})
	require.ErrorIs(t, err, ErrExists)
	require.Equal(t, "foreign header", seen)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "foreign header", string(b), "what is alive is left alone")

	w, err := CreateLocked(name, 100, CreateOptions{Foreign: func([]byte) bool { return false }})
	require.NoError(t, err)
	require.Equal(t, make([]byte, 100), w.Bytes())

	// An orphan of this package's own making is dead without asking, whatever process has its number now.
	w.owner = false
	require.NoError(t, w.Close())
	w, err = CreateLocked(name, 100, CreateOptions{Foreign: func([]byte) bool { t.Error("asked about an orphan"); return true }})
	require.NoError(t, err)
	require.NoError(t, w.Close())
}

func TestCloseLeavesTheSuccessor(t *testing.T) {
	testenv.CheckLeaks(t)
	name := unique(t)
	w, err := CreateLocked(name, 100, CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, os.Remove(Dir+"/"+name)) // an administrator's rm
	second, err := CreateLocked(name, 100, CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = os.Stat(Dir + "/" + name)
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

func TestNoSpace(t *testing.T) {
	testenv.CheckLeaks(t)
	smallDir(t, "1m")
	_, err := CreateLocked("cuframes-big", 8<<20, CreateOptions{})
	var space *SpaceError
	require.ErrorAs(t, err, &space)
	require.Equal(t, int64(8<<20), space.Asked)
	require.Equal(t, int64(1<<20), space.Total)
	require.Equal(t, int64(1<<20), space.Free)
	require.Equal(t, "create "+Dir+"/cuframes-big: 8192 KiB asked, 1024 KiB left of 1024 KiB in "+Dir+"/: ask for fewer bytes, or make it larger "+
		"(docker: --shm-size, Kubernetes: an emptyDir with medium Memory on /dev/shm, host: mount -o remount,size=SIZE "+Dir+")", err.Error())
	left, err := os.ReadDir(Dir)
	require.NoError(t, err)
	require.Empty(t, left, "nothing stays behind")

	// The space of an orphan counts: a ring of more than half the file system can be replaced.
	w, err := CreateLocked("cuframes-big", 700<<10, CreateOptions{})
	require.NoError(t, err)
	w.owner = false
	require.NoError(t, w.Close())
	w, err = CreateLocked("cuframes-big", 700<<10, CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, w.Close())
}

func init() {
	// claim NAME: waits for a line on stdin, tries to create, says how it went, and stays until it is killed.
	roles["claim"] = func(args []string) error {
		fmt.Println("ready")
		in := bufio.NewReader(os.Stdin)
		for {
			if _, err := in.ReadString('\n'); err != nil {
				return nil
			}
			w, err := CreateLocked(args[0], 1<<16, CreateOptions{})
			switch {
			case err == nil:
				copy(w.Bytes(), strconv.Itoa(os.Getpid()))
				fmt.Println("owner")
			case errors.Is(err, ErrExists):
				fmt.Println("exists")
			default:
				return err
			}
		}
	}
}

// Many processes race for one name, over and over, each time against the orphan that the killed winner of the last round left:
// exactly one wins each round, the path is the winner's, and no temporary stays.
func TestCreatorsRace(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	name := unique(t)
	const creators, rounds = 12, 8
	type proc struct {
		*testenv.Process
		in  *os.File
		out *bufio.Reader
	}
	start := func() *proc {
		inR, inW, err := os.Pipe()
		require.NoError(t, err)
		outR, outW, err := os.Pipe()
		require.NoError(t, err)
		cmd := testenv.Child("claim", name)
		cmd.Stdin, cmd.Stdout = inR, outW
		p := &proc{testenv.StartCmd(t, cmd), inW, bufio.NewReader(outR)}
		inR.Close()
		outW.Close()
		t.Cleanup(func() { inW.Close(); outR.Close() })
		line, err := p.out.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "ready\n", line)
		return p
	}
	procs := make([]*proc, creators)
	for i := range procs {
		procs[i] = start()
	}
	var orphan *Segment
	for round := range rounds {
		for _, p := range procs {
			_, err := p.in.WriteString("go\n")
			require.NoError(t, err)
		}
		winner := -1
		for i, p := range procs {
			line, err := p.out.ReadString('\n')
			require.NoError(t, err, p.Stderr())
			switch line {
			case "owner\n":
				require.Equal(t, -1, winner, "round %d: two owners", round)
				winner = i
			case "exists\n":
			default:
				t.Fatalf("unexpected %q", line)
			}
		}
		require.NotEqual(t, -1, winner, "round %d: no owner", round)
		pid := strconv.Itoa(procs[winner].Process.Process.Pid)
		r, err := Open(name, OpenOptions{ReadOnly: true})
		require.NoError(t, err)
		require.Equal(t, pid, string(r.Bytes()[:len(pid)]), "the name is the winner's")
		require.True(t, Locked(r))
		if orphan != nil {
			require.NotEqual(t, pid, string(orphan.Bytes()[:len(pid)]), "a reader's old mapping stays as it was")
			require.NoError(t, orphan.Close())
		}
		orphan = r
		procs[winner].Kill()
		require.False(t, Locked(r), "kill -9 frees the key")
		procs[winner] = start()
	}
	require.NoError(t, orphan.Close())
	w, err := CreateLocked(name, 100, CreateOptions{}) // takes over from the last killed one, and cleans up
	require.NoError(t, err)
	require.NoError(t, w.Close())
}

// Readers look whether the owner of an orphan lives, and lose their processor meanwhile: the next creator waits for them, though not for ever.
func TestCreateWaitsForLooks(t *testing.T) {
	testenv.CheckLeaks(t)
	name := unique(t)
	orphan, err := os.Create(Dir + "/" + name)
	require.NoError(t, err)
	fd := int(orphan.Fd())
	require.NoError(t, unix.Flock(fd, unix.LOCK_SH))
	_, err = CreateLocked(name, 100, CreateOptions{})
	require.ErrorIs(t, err, ErrExists)

	looked := make(chan error)
	go func() {
		time.Sleep(200 * time.Millisecond)
		looked <- unix.Flock(fd, unix.LOCK_UN)
	}()
	w, err := CreateLocked(name, 100, CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, <-looked)
	require.NoError(t, w.Close())
	require.NoError(t, orphan.Close())
}

// A creator that was killed before its file took its place leaves no litter for long.
func TestSweep(t *testing.T) {
	testenv.CheckLeaks(t)
	name := unique(t)
	require.NoError(t, os.WriteFile(Dir+"/"+name+".ABCDEFGHIJ"+tempSuffix, nil, 0o600))
	w, err := CreateLocked(name, 100, CreateOptions{})
	require.NoError(t, err)
	left, err := os.ReadDir(Dir)
	require.NoError(t, err)
	for _, e := range left {
		require.False(t, strings.HasPrefix(e.Name(), name+"."), e.Name())
	}
	require.NoError(t, w.Close())
}
