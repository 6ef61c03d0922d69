package quictransport

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/lossylink"
	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/nnrp/session"
)

// TestProbeDelay: an eighth of a long round trip; nothing on the loopback interface.
func TestProbeDelay(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	s := startServer(t, "127.0.0.1:0", nil, session.Policy{})
	dial := func(url string) (session.Conn, *session.Client) {
		conn, err := Dial(t.Context(), url, Trust{Fingerprint: servercert.Fingerprint(s.cert)})
		require.NoError(t, err)
		c, err := session.Open(t.Context(), conn, session.ClientOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close(context.Background()) })
		return conn, c
	}
	near, c := dial(s.url())
	for near.ProbeDelay() != 0 { // while the machine is too busy to answer in 10 ms; the watchdog ends this
		exchange(t, c, noise(10))
	}
	p, err := lossylink.NewProxy(s.l.Addr(), lossylink.Options{OneWay: 20 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	far, c := dial("nnrps://" + p.Addr().String())
	exchange(t, c, noise(10))
	require.GreaterOrEqual(t, far.ProbeDelay(), 5*time.Millisecond)
	require.Less(t, far.ProbeDelay(), 50*time.Millisecond)
}
