package packetring

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// Another language reads the ring from its byte table alone.
func TestPythonReads(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	python := testenv.NeedTool(t, "python3")
	w := create(t, uniqueKey(t), Config{Slots: 64, DataSize: 1 << 16, CodecID: 27, Extradata: []byte("sps and pps")})
	publishNext(t, w, 100)
	p := testenv.Start(t, python, "testdata/read_ring.py", shm.Dir+"/"+w.Path(), "2000")
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-p.Done():
			require.NoError(t, p.WaitFor(t, time.Minute))
			var got struct {
				Codec, Read, Lost, Torn, First, Last int
				Extradata                            string
			}
			require.NoError(t, json.Unmarshal([]byte(p.Stdout()), &got), p.Stderr())
			require.Equal(t, 2000, got.Read)
			require.Zero(t, got.Torn)
			require.Equal(t, got.Last-got.First+1, got.Read+got.Lost)
			require.Equal(t, 27, got.Codec)
			require.Equal(t, "sps and pps", got.Extradata)
			return
		case <-tick.C:
			publishNext(t, w, 100+n%3000)
		}
	}
}
