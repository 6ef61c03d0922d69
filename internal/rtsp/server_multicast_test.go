package rtsp

import (
	"bufio"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// slowCatalog is a fakeCatalog with another path, "slow", that fails once answer is closed.
type slowCatalog struct {
	fakeCatalog
	asked  chan struct{} // one for each time
	answer chan struct{}
}

func (c *slowCatalog) Tracks(path string) ([]media.Track, error) {
	if path != "slow" {
		return c.fakeCatalog.Tracks(path)
	}
	c.asked <- struct{}{}
	<-c.answer
	return nil, fmt.Errorf("path %s: no answer", path)
}

// A publisher that takes its time to answer holds up its own listeners alone; they share the question, and the next one asks again.
func TestMulticastSlowPublisher(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	catalog := &slowCatalog{fakeCatalog{size: 100, interval: 40 * time.Millisecond}, make(chan struct{}, 10), make(chan struct{})}
	s := startServer(t, ServerOptions{Listen: "0.0.0.0:0", Catalog: catalog, RTPPort: -1, Multicast: "239.255.44.0/24"})
	const transport = "Transport: RTP/AVP;multicast"
	addr := fmt.Sprintf("127.0.0.1:%d", s.Addr().Port)
	dial := func(path string) *testenv.RTSP { return testenv.DialRTSP(t, addr, path) }

	var waiting []*testenv.RTSP
	for range 3 {
		c := dial("slow")
		_, err := io.WriteString(c.Conn, "SETUP "+c.URL+"/trackID=0 RTSP/1.0\r\nCSeq: 1\r\n"+transport+"\r\n\r\n")
		require.NoError(t, err)
		waiting = append(waiting, c)
	}
	<-catalog.asked
	c := dial("live")
	status, _, _ := c.Do("SETUP", c.URL+"/trackID=0", transport)
	require.Equal(t, 200, status)
	status, _, _ = c.Do("PLAY", c.URL)
	require.Equal(t, 200, status)
	require.Zero(t, s.Sessions())
	testenv.Eventually(t, 20*time.Second, func() error { // all of them are in the group
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := s.groups["slow"].sessions; n != len(waiting) {
			return fmt.Errorf("%d sessions", n)
		}
		return nil
	})
	close(catalog.answer)
	for _, c := range waiting {
		line, err := bufio.NewReader(c.Conn).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, " 503 ")
	}
	require.Empty(t, catalog.asked)
	c = dial("slow")
	status, _, _ = c.Do("SETUP", c.URL+"/trackID=0", transport)
	require.Equal(t, 503, status)
	require.Len(t, catalog.asked, 1)
}
