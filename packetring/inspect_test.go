package packetring

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestInspect(t *testing.T) {
	testenv.CheckLeaks(t)
	key := fmt.Sprintf("inspect-%d", os.Getpid())
	w, err := Create(key, Config{Slots: 8, DataSize: 1000, MaxPacket: 300, CodecID: 27, Extradata: []byte("sps")})
	require.NoError(t, err)
	defer w.Close()
	s, err := Inspect(w.Path())
	require.NoError(t, err)
	require.Empty(t, s.Packets)
	require.True(t, s.Alive)

	sizes := []int{10, 300, 300, 0, 300, 90}
	for i, n := range sizes {
		flags := FlagLastInAU
		if i%3 == 0 {
			flags |= FlagKey
		}
		_, err := w.Publish(Packet{PTS: int64(100 + i), DTS: int64(90 + i), Flags: flags, Data: make([]byte, n)})
		require.NoError(t, err)
	}
	s, err = Inspect("/dev/shm/" + w.Path())
	require.NoError(t, err)
	require.Equal(t, Snapshot{
		Info: Info{CodecID: 27, Extradata: []byte("sps"), Slots: 8, DataSize: 1000, Protocol: 4, ProducerPID: os.Getpid()},
		Name: w.Path(), Alive: true, GlobalSeq: 6, LastKeyframeSeq: 4, WriteOffset: 1000,
		Packets: []Meta{ // 1000 bytes: all are still there
			{1, 100, 90, FlagKey | FlagLastInAU, 0, 10}, {2, 101, 91, FlagLastInAU, 10, 300}, {3, 102, 92, FlagLastInAU, 310, 300},
			{4, 103, 93, FlagKey | FlagLastInAU, 610, 0}, {5, 104, 94, FlagLastInAU, 610, 300}, {6, 105, 95, FlagLastInAU, 910, 90},
		},
	}, s)
	for range 4 {
		_, err := w.Publish(Packet{Data: make([]byte, 300)})
		require.NoError(t, err)
	}
	s, err = Inspect(w.Path())
	require.NoError(t, err)
	require.Len(t, s.Packets, 3)
	require.EqualValues(t, 8, s.Packets[0].Seq, "what was overwritten is not listed")

	path := w.Path()
	require.NoError(t, w.Close())
	_, err = Inspect(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(shm.Dir+"/"+path, make([]byte, 5000), 0o600))
	defer os.Remove(shm.Dir + "/" + path)
	_, err = Inspect(path)
	require.ErrorIs(t, err, ErrFormat)
}
