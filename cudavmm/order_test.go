package cudavmm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A publication may outlive the decoder that opened the GPU for it: what was made on a device keeps its context until it is closed.
func TestDeviceClosedBeforeWhatWasMadeOnIt(t *testing.T) {
	testenv.CheckLeaks(t)
	f := newFake()
	d, err := newDriver(f.api())
	require.NoError(t, err)
	v, err := d.Device(0)
	require.NoError(t, err)

	var made []interface{ Close() error }
	keep := func(c interface{ Close() error }, err error) {
		require.NoError(t, err)
		made = append(made, c)
	}
	stream, err := v.NewStream()
	keep(stream, err)
	event, err := v.NewEvent(false)
	keep(event, err)
	buffer, err := v.Alloc("frame", 1<<20)
	keep(buffer, err)
	local, err := v.AllocLocal(1 << 20)
	keep(local, err)
	ipc, _, err := v.AllocIPC(1 << 20)
	keep(ipc, err)
	ipcEvent, err := v.NewIPCEvent()
	keep(ipcEvent, err)

	require.NoError(t, v.Close())
	require.Len(t, d.devices, 1)
	for _, c := range made {
		require.NoError(t, c.Close())
	}
	require.Empty(t, f.misuse)
	require.Empty(t, d.devices, "the context is given back with the last of them")
}
