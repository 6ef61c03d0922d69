package pipeline

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// gpuQueue queues what gpuPaint does and does not wait: readers are to wait for the event.
func gpuQueue(s *cudavmm.Stream, b framering.Buffer, n uint64) error {
	if err := s.Memset2D(cudavmm.Plane{Pointer: b.Pointer(), Pitch: 2048}, byte(n), 2048, 1080); err != nil {
		return err
	}
	return s.Memset2D(cudavmm.Plane{Pointer: b.Pointer() + 2048*1080, Pitch: 2048}, byte(n>>8), 2048, 540)
}

// gpuSend paints the next frame and publishes it with an event.
func gpuSend(t testing.TB, w *framering.FrameWriter, s *cudavmm.Stream) {
	t.Helper()
	slot, err := w.Acquire(t.Context())
	require.NoError(t, err)
	require.NoError(t, gpuQueue(s, slot.Buffer, slot.Seq))
	_, err = w.PublishOn(time.Now().UnixNano(), s.Handle())
	require.NoError(t, err)
}

// gpuLegacyWriter publishes frames of protocol 1 or 2 from memory of the ring's own, or of the test's.
func gpuLegacyWriter(t testing.TB, v *cudavmm.Device, dir, key string, protocol uint32, external bool, policy framering.Policy) (
	*framering.Publisher, *framering.FrameWriter, *cudavmm.Stream) {
	t.Helper()
	o := gpuFrameOptions(v, policy)
	if external {
		for range framering.DefaultRingSize {
			b, err := v.AllocLocal(int(o.Meta.FrameSize))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			o.External = append(o.External, b.Pointer())
		}
	}
	return gpuServe(t, v, framering.PublisherOptions{RuntimeDir: dir, Key: key, Protocol: protocol}, o)
}

// Frames of protocols 1 and 2 to four processes, two of them slow: the publisher does not wait for the GPU, nothing torn is accepted,
// and no handle is left open.
func TestGPULegacy(t *testing.T) {
	v := gpu(t)
	for _, protocol := range []uint32{1, 2} {
		for _, external := range []bool{false, true} {
			name := map[bool]string{false: "library", true: "external"}[external]
			t.Run(fmt.Sprintf("protocol-%d-%s", protocol, name), func(t *testing.T) {
				dir, key := place(t)
				p, w, s := gpuLegacyWriter(t, v, dir, key, protocol, external, framering.DropOldest)
				roles := []string{"read", "strict", "slow", "slow"}
				var results []func() gpuReport
				for _, role := range roles {
					_, r := gpuChild(t, role, dir, key)
					results = append(results, r)
				}
				for range gpuFrames {
					gpuSend(t, w, s)
					time.Sleep(2 * time.Millisecond)
				}
				require.NoError(t, s.Synchronize())
				require.NoError(t, p.Close(framering.ReasonNormal))
				var sum gpuReport
				for i, result := range results {
					r := result()
					t.Logf("RESULT protocol %d %s %s: %d whole, %d overwritten and reported, %d torn, %d lost, %d handles left; %d frames", protocol, name, roles[i],
						r.Read, r.Overruns, r.Torn, r.Lost, r.Handles, gpuFrames)
					require.NotZero(t, r.Read)
					sum.Torn, sum.Handles, sum.Overruns = sum.Torn+r.Torn, sum.Handles+r.Handles, sum.Overruns+r.Overruns
				}
				t.Logf("RESULT protocol %d %s: %d torn, %d handles left", protocol, name, sum.Torn, sum.Handles)
				require.Zero(t, sum.Torn)
				require.Zero(t, sum.Handles)
				require.Zero(t, cudavmm.IPCHandles())
				require.NotZero(t, sum.Overruns, "the slow readers must have been overtaken")
			})
		}
	}
	// Under STRICT_WAIT nothing is missing.
	dir, key := place(t)
	p, w, s := gpuLegacyWriter(t, v, dir, key, 2, false, framering.StrictWait)
	var results []func() gpuReport
	for range 4 {
		_, r := gpuChild(t, "strict", dir, key)
		results = append(results, r)
	}
	for range gpuFrames {
		gpuSend(t, w, s)
	}
	require.NoError(t, s.Synchronize())
	require.NoError(t, p.Close(framering.ReasonNormal))
	for _, result := range results {
		r := result()
		require.Equal(t, gpuReport{Read: uint64(gpuFrames)}, r)
	}
	t.Logf("RESULT protocol 2 strict-wait: 4 readers with %d of %d frames whole each", gpuFrames, gpuFrames)
}

// A publisher of protocol 2 is killed and started again: a subscriber follows, and the handles of the dead one are closed.
func TestGPULegacyKilled(t *testing.T) {
	v := gpu(t)
	dir, key := place(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	c := frameCopier{device: func() (*cudavmm.Device, error) { return v, nil }}
	defer c.close()
	require.NoError(t, c.use(framering.NV12Meta(1920, 1080)))
	b := make([]byte, c.size)
	var s *FrameSubscription
	for i := range 6 {
		p, _ := gpuChild(t, "publish-2", dir, key)
		if s == nil {
			var err error
			s, err = SubscribeFrames(ctx, FrameSubscribeOptions{RuntimeDir: dir, Key: key, WaitForKey: 10 * time.Second})
			require.NoError(t, err)
		}
		for whole := false; !whole; {
			f, err := s.Next(ctx)
			require.NoError(t, err)
			err = errors.Join(c.copy(b, f), f.Release())
			if errors.Is(err, framering.ErrFrameOverrun) {
				continue
			}
			require.NoError(t, err)
			require.Equal(t, byte(f.Seq), b[12345])
			whole = s.Generation() >= i
		}
		require.Equal(t, framering.DefaultRingSize, cudavmm.IPCHandles(), "those of the publisher that lives")
		p.Kill()
	}
	require.NoError(t, s.Close())
	require.Zero(t, cudavmm.IPCHandles())
	t.Logf("RESULT protocol 2: 5 kills followed, 0 handles left")
}

//go:embed testdata/legacy_reader.py
var legacyReader string

// A program on the CUDA runtime API that knows nothing of this project but the document of protocol 1.
func TestGPULegacyPython(t *testing.T) {
	v := gpu(t)
	python := testenv.NeedTool(t, "python3")
	for _, external := range []bool{false, true} {
		dir, key := place(t)
		const frames = 300
		_, w, s := gpuLegacyWriter(t, v, dir, key, 1, external, framering.StrictWait)
		cmd := exec.Command(python, "-c", legacyReader, dir, key, fmt.Sprint(frames))
		p, lines := testenv.StartPiped(t, cmd)
		line, err := lines.ReadString('\n')
		if line == "no libcudart\n" {
			t.Skip("there is no CUDA runtime library here")
		}
		require.NoError(t, err, p.Stderr())
		require.Equal(t, "ready\n", line)
		for range frames {
			gpuSend(t, w, s)
		}
		rest, err := io.ReadAll(lines)
		require.NoError(t, err)
		require.NoError(t, p.WaitFor(t, 20*time.Second), p.Stderr())
		require.Contains(t, string(rest), fmt.Sprintf("%d frames right", frames))
		require.NoError(t, s.Synchronize())
		t.Logf("RESULT CUDA runtime API in Python: %s", strings.TrimSpace(string(rest)))
	}
}

// gpuBridge is a bridge of its own process; key holds both keys.
func gpuBridge(ctx context.Context, kind, dir, keys string) error {
	key, newKey, _ := strings.Cut(keys, " ")
	protocol := uint32(kind[len(kind)-1] - '0')
	return Bridge(ctx, BridgeOptions{
		RuntimeDir: dir, Key: key, NewKey: newKey, Protocol: protocol, Policy: framering.StrictWait, AckTimeout: 20 * time.Second,
		WaitForKey: 30 * time.Second, NoFollow: true, Ready: func() { fmt.Println("ready") },
	})
}

// bridgePacket is packet i of the bridge's tests.
func bridgePacket(i int) packetring.Packet {
	r := rand.NewPCG(uint64(i), 7)
	b := binary.LittleEndian.AppendUint32(nil, uint32(i))
	for range 50 + i%40 {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	p := packetring.Packet{PTS: 1_700_000_000e9 + int64(i)*40e6 + 80e6, DTS: 1_700_000_000e9 + int64(i)*40e6, Flags: packetring.FlagLastInAU, Data: b}
	if i%10 == 0 {
		p.Flags |= packetring.FlagKey
	}
	if i%37 == 0 {
		p.Flags |= packetring.FlagCorrupt
	}
	return p
}

// checkBridged reads n packets and requires them to be those that were published, one after another.
func checkBridged(ctx context.Context, s *Subscription, n int) error {
	next := -1
	for range n {
		p, err := s.Next(ctx)
		if err != nil {
			return err
		}
		i := int(binary.LittleEndian.Uint32(p.Data))
		want := bridgePacket(i)
		if next >= 0 && i != next || p.PTS != want.PTS || p.DTS != want.DTS || p.Flags != want.Flags || string(p.Data) != string(want.Data) {
			return fmt.Errorf("packet %d (expected %d): pts %d dts %d flags %v, %d bytes, want %+v", i, next, p.PTS, p.DTS, p.Flags, len(p.Data), want)
		}
		next = i + 1
	}
	return nil
}

// From protocol 2 to 4 and back, each bridge a process: packets are byte-equal with their times and flags, pictures pixel-equal.
func TestGPUBridge(t *testing.T) {
	v := gpu(t)
	dir, key := place(t)
	const n = 200
	pub, err := Publish(PublishOptions{
		RuntimeDir: dir, Key: key, Protocol: 2, Packets: packetring.Config{CodecID: 27, Slots: 512, Extradata: []byte("sets")},
	})
	require.NoError(t, err)
	defer pub.Close(framering.ReasonNormal)
	w, err := pub.Control().StartFrames(gpuFrameOptions(v, framering.StrictWait))
	require.NoError(t, err)
	s, err := v.NewStream()
	require.NoError(t, err)
	defer s.Close()
	put := func(i int) {
		_, err := pub.Packet(bridgePacket(i))
		require.NoError(t, err)
		slot, err := w.Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, gpuQueue(s, slot.Buffer, uint64(i)))
		_, err = w.PublishOn(int64(i), s.Handle())
		require.NoError(t, err)
	}
	put(0)
	gpuChild(t, "bridge-4", dir, key+" "+key+"-four")
	gpuChild(t, "bridge-2", dir, key+"-four "+key+"-two")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	packets, err := Subscribe(ctx, SubscribeOptions{RuntimeDir: dir, Key: key + "-two", Start: StartOldest, WaitForKey: 20 * time.Second})
	require.NoError(t, err)
	defer packets.Close()
	done := make(chan error, 2)
	go func() { done <- checkBridged(ctx, packets, n) }()
	go func() {
		done <- func() error {
			frames, err := SubscribeFrames(ctx, FrameSubscribeOptions{
				RuntimeDir: dir, Key: key + "-two", Mode: framering.StrictOrder, Newest: true, WaitForKey: 30 * time.Second,
			})
			if err != nil {
				return err
			}
			defer frames.Close()
			c := frameCopier{device: frames.Device}
			defer c.close()
			if err := c.use(framering.NV12Meta(1920, 1080)); err != nil {
				return err
			}
			b := make([]byte, c.size)
			next := int64(-1)
			for got := 0; got < n; got++ {
				f, err := frames.Next(ctx)
				if err != nil {
					return err
				}
				err = errors.Join(c.copy(b, f), f.Release())
				if errors.Is(err, framering.ErrFrameOverrun) && got == 0 {
					got-- // what was published before a reader came is kept for nobody
					continue
				}
				if err != nil {
					return err
				}
				luma, chroma := b[:1920*1080], b[1920*1080:]
				right := bytes.Count(luma, []byte{byte(f.PTS)}) + bytes.Count(chroma, []byte{byte(f.PTS >> 8)})
				if next >= 0 && f.PTS != next || right != len(b) {
					return fmt.Errorf("picture with time %d (expected %d): %d of %d bytes are right", f.PTS, next, right, len(b))
				}
				next = f.PTS + 1
			}
			return nil
		}()
	}()
	ended := 0
	for i := 1; ended < 2; i++ {
		select {
		case err := <-done:
			require.NoError(t, err)
			ended++
		default:
		}
		put(i)
		time.Sleep(4 * time.Millisecond)
	}
	require.NoError(t, s.Synchronize())
	info, err := InspectKey(dir, key+"-two")
	require.NoError(t, err)
	require.EqualValues(t, 2, info.Protocol)
	t.Logf("RESULT bridge 2 → 4 → 2: %d packets byte-equal with times and flags, %d pictures pixel-equal", n, n)
}
