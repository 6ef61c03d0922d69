package still

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// place returns a runtime folder with a publisher in it.
func place(t *testing.T) (dir string, p *framering.Publisher, key string) {
	t.Helper()
	dir, key = testenv.Place(t)
	p, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(framering.ReasonNormal)) })
	require.NoError(t, p.Serve())
	return dir, p, key
}

func serve(t *testing.T, p *framering.Publisher, take func(context.Context) (Picture, error)) *Server {
	t.Helper()
	l, err := p.ListenSnapshot()
	require.NoError(t, err)
	s := Serve(l, take, nil)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func TestAsk(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir, p, key := place(t)
	_, err := Ask(t.Context(), dir, key)
	require.ErrorIs(t, err, os.ErrNotExist, "nobody hands out pictures")
	_, err = Ask(t.Context(), dir, "no/key")
	require.ErrorIs(t, err, framering.ErrInvalidArg)

	pictures := make([]Picture, 41) // larger than what a socket holds
	for i := range pictures {
		pictures[i] = picture(framering.NV12, 640, 480, uint64(i))
	}
	var seq atomic.Uint64
	s := serve(t, p, func(context.Context) (Picture, error) {
		if n := seq.Add(1); n%5 != 0 {
			return pictures[n], nil
		}
		return Picture{}, errors.New("no frame yet")
	})
	var got, none atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				have, err := Ask(t.Context(), dir, key)
				if err != nil {
					if !strings.Contains(err.Error(), "no frame yet") {
						t.Error(err)
					}
					none.Add(1)
					continue
				}
				if want := pictures[have.Seq]; !bytes.Equal(want.Pixels, have.Pixels) || want.PTS != have.PTS {
					t.Errorf("picture %d is another one", have.Seq)
				}
				got.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 32, got.Load())
	require.EqualValues(t, 8, none.Load())
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err = Ask(t.Context(), dir, key)
	require.ErrorIs(t, err, os.ErrNotExist)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Ask(ctx, dir, key)
	require.ErrorIs(t, err, context.Canceled)

	// A picture that is not what it says never leaves.
	serve(t, p, func(context.Context) (Picture, error) {
		q := picture(framering.NV12, 64, 64, 1)
		q.Height++
		return q, nil
	})
	_, err = Ask(t.Context(), dir, key)
	require.ErrorContains(t, err, "not whole")
}

// Clients that do not read hold as many pictures as there is room for and no more, for as long as their time lasts; the service ends
// whatever they do.
func TestServeHostile(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir, p, key := place(t)
	var taken atomic.Int64
	still := picture(framering.NV12, 1920, 1080, 1)
	s := serve(t, p, func(context.Context) (Picture, error) {
		taken.Add(1)
		return still, nil
	})
	dial := func() net.Conn {
		c, err := net.Dial("unix", framering.SnapshotPath(dir, key))
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	for range 20 { // gone before the answer
		require.NoError(t, dial().Close())
	}
	_, err := Ask(t.Context(), dir, key)
	require.NoError(t, err)

	before := taken.Load()
	begun := time.Now()
	var silent []net.Conn
	for range room {
		silent = append(silent, dial())
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := taken.Load() - before; n != room {
			return fmt.Errorf("%d pictures", n)
		}
		return nil
	})
	chatty := dial()
	_, _ = io.WriteString(chatty, strings.Repeat("x", 4096))
	if time.Since(begun) < sendPatience/2 {
		require.EqualValues(t, room, taken.Load()-before, "pictures beyond the room")
	}
	n, _ := io.Copy(io.Discard, chatty)
	require.Greater(t, n, int64(1920*1080), "it is answered when those before it are sent away")
	cut := 0
	for _, c := range silent {
		if n, _ := io.Copy(io.Discard, c); n < 1920*1080 {
			cut++
		}
	}
	require.Positive(t, cut, "one at least was sent away for it")
	_, err = Ask(t.Context(), dir, key)
	require.NoError(t, err)

	// More than are ever answered: who asks meanwhile goes another way after a while, and the service ends at once.
	for range 100 {
		silent = append(silent, dial())
	}
	begun = time.Now()
	_, err = Ask(t.Context(), dir, key)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Less(t, time.Since(begun), 2*askPatience)
	begun = time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(begun), sendPatience, "those who do not read are not waited for")
}

// Clients that have lost patience before it was their turn cost no picture.
func TestServeTheImpatient(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 20*time.Second)
	dir, p, key := place(t)
	var taken atomic.Int64
	begin, taking := make(chan struct{}), make(chan struct{}, 1)
	serve(t, p, func(context.Context) (Picture, error) {
		if taken.Add(1) == 1 {
			taking <- struct{}{}
			<-begin
		}
		return picture(framering.GRAY8, 8, 8, 1), nil
	})
	dial := func() net.Conn {
		c, err := net.Dial("unix", framering.SnapshotPath(dir, key))
		require.NoError(t, err)
		return c
	}
	first := dial()
	<-taking
	for range 100 {
		require.NoError(t, dial().Close())
	}
	close(begin)
	_, err := Ask(t.Context(), dir, key)
	require.NoError(t, err)
	require.EqualValues(t, 2, taken.Load())
	require.NoError(t, first.Close())
}

// A service that is closed while a picture is taken ends with it, and the context of taking tells.
func TestServeClosedWithin(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 20*time.Second)
	dir, p, key := place(t)
	taking := make(chan struct{})
	s := serve(t, p, func(ctx context.Context) (Picture, error) {
		close(taking)
		<-ctx.Done()
		return Picture{}, ctx.Err()
	})
	asked := make(chan error, 1)
	go func() {
		_, err := Ask(t.Context(), dir, key)
		asked <- err
	}()
	<-taking
	require.NoError(t, s.Close())
	require.Error(t, <-asked)
}

// Answers of a hostile publisher, and none at all.
func TestAskHostile(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	whole := string(answer(t, picture(framering.NV12, 640, 480, 1), nil))
	for name, c := range map[string]struct {
		reply string
		hang  bool // keep the connection open behind it
		err   error
	}{
		"silent":           {"", true, os.ErrDeadlineExceeded},
		"gone":             {"", false, io.EOF},
		"endless line":     {strings.Repeat("x", 1<<20), true, errAnswer},
		"half a line":      {`{"width":`, true, os.ErrDeadlineExceeded},
		"half a picture":   {whole[:len(whole)/2], true, os.ErrDeadlineExceeded},
		"cut off":          {whole[:len(whole)/2], false, io.ErrUnexpectedEOF},
		"far too large":    {`{"format":5,"width":65536,"height":65536}` + "\n", true, errAnswer},
		"more than agreed": {whole + strings.Repeat("x", 4<<20), true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, p, key := place(t)
			l, err := p.ListenSnapshot()
			require.NoError(t, err)
			var wg sync.WaitGroup
			done := make(chan struct{})
			wg.Go(func() {
				c2, err := l.Accept()
				if err != nil {
					t.Error(err)
					return
				}
				defer c2.Close()
				_, _ = io.WriteString(c2, c.reply)
				if c.hang {
					<-done
				}
			})
			begun := time.Now()
			have, err := Ask(t.Context(), dir, key)
			if c.err == nil {
				require.NoError(t, err)
				require.EqualValues(t, 1, have.Seq)
			} else {
				require.ErrorIs(t, err, c.err)
				require.NotErrorIs(t, err, os.ErrNotExist)
			}
			require.Less(t, time.Since(begun), 3*askPatience)
			close(done)
			wg.Wait()
		})
	}
}

// In a folder in which all may make files another user's socket is not believed, and that of a publisher that was killed is none.
func TestAskStranger(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, p, key := place(t)
	l, err := p.ListenSnapshot()
	require.NoError(t, err)
	s := Serve(l, func(context.Context) (Picture, error) { return picture(framering.GRAY8, 8, 8, 1), nil }, nil)
	defer s.Close()
	_, err = Ask(t.Context(), dir, key)
	require.NoError(t, err)
	if os.Geteuid() == 0 { // the control socket becomes another's, which is the same as the other way round
		require.NoError(t, os.Chown(framering.SocketPath(dir, key), 12345, -1))
		_, err = Ask(t.Context(), dir, key)
		require.ErrorIs(t, err, os.ErrPermission)
	}
	require.NoError(t, s.Close())
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: framering.SnapshotPath(dir, key), Net: "unix"})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
	_, err = Ask(t.Context(), dir, key)
	require.ErrorIs(t, err, os.ErrNotExist)
}
