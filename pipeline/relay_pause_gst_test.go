package pipeline

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// pauseScript plays, pauses and plays again, and prints how many access units came in each part, and how many of them ahead of the first keyframe.
const pauseScript = `
import sys, time, gi
gi.require_version('Gst', '1.0')
from gi.repository import Gst
Gst.init(None)
p = Gst.parse_launch('rtspsrc location=%s protocols=%s tls-validation-flags=0 latency=100 ! rtph264depay ! '
    'video/x-h264,stream-format=byte-stream,alignment=au ! identity name=i ! fakesink sync=false async=false' % (sys.argv[1], sys.argv[2]))
units = []
def seen(pad, info):
    b = info.get_buffer()
    units.append(not b.has_flags(Gst.BufferFlags.DELTA_UNIT))
    return Gst.PadProbeReturn.OK
p.get_by_name('i').get_static_pad('sink').add_probe(Gst.PadProbeType.BUFFER, seen)
def part(state, enough, most, tell=True):
    del units[:]
    p.set_state(state)
    end = time.monotonic() + most
    while len(units) < enough and time.monotonic() < end:
        m = p.get_bus().timed_pop_filtered(50 * Gst.MSECOND, Gst.MessageType.ERROR | Gst.MessageType.EOS)
        if m: sys.exit('%s %s' % (m.type, m.parse_error() if m.type == Gst.MessageType.ERROR else ''))
    part = list(units)
    if tell: print(state.value_nick, len(part), part.index(True) if True in part else '-')
for i in range(3):
    part(Gst.State.PLAYING, 60, 20)
    part(Gst.State.PAUSED, 1000, 0.2, False) # what was under way
    part(Gst.State.PAUSED, 1000, 1)
part(Gst.State.PLAYING, 60, 20)
p.set_state(Gst.State.NULL)
`

// GStreamer's rtspsrc pauses and plays again within one session, over each transport.
func TestRelayPauseGStreamer(t *testing.T) {
	t.Parallel() // runs when the tests that look for leaks are done
	testenv.Watchdog(t, 3*time.Minute)
	testenv.NeedTool(t, "gst-launch-1.0")
	python := testenv.Python(t)
	script := filepath.Join(t.TempDir(), "pause.py")
	require.NoError(t, os.WriteFile(script, []byte(pauseScript), 0o644))
	l := newLive(t, embedded(t), time.Second)
	at := l.relayTLS(RelayOptions{Multicast: "239.255.45.0/24", Listen: "0.0.0.0:0", ListenTLS: "127.0.0.1:0"})
	plain := fmt.Sprintf("rtsp://127.0.0.1:%d/%s", at.Plain.Port, l.key)
	for name, args := range map[string][2]string{
		"tcp": {plain, "tcp"}, "udp": {plain, "udp"}, "multicast": {plain, "udp-mcast"}, "tls": {"rtsps://" + at.TLS.String() + "/" + l.key, "tcp"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := exec.Command(python, script, args[0], args[1]).CombinedOutput()
			require.NoError(t, err, string(out))
			for line := range strings.Lines(string(out)) {
				var state, key string // key: how many came ahead of the first keyframe
				var units int
				_, err := fmt.Sscan(line, &state, &units, &key)
				require.NoError(t, err, string(out))
				if state == "playing" {
					require.GreaterOrEqual(t, units, 60, string(out))
					require.Contains(t, "0123", key, "the jitter buffer held a few when it was paused: %s", out)
				}
			}
			require.Equal(t, 3, strings.Count(string(out), "paused 0 -"), "in a pause nothing comes: %s", out)
		})
	}
}
