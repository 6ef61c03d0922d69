package pipeline

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asticode/go-astiav"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/packetring"
)

// These tests need a GPU; scripts/gpu-test builds and runs them. CFPIPE_GPU makes a missing GPU a failure, and names the folder of clips.

func gpu(t testing.TB) *cudavmm.Device {
	t.Helper()
	v, err := cudavmm.OpenDevice(0)
	if err != nil {
		if os.Getenv("CFPIPE_GPU") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

// gpuClip reads the packets of a clip.
func gpuClip(t testing.TB, name string) (codecID uint32, extradata []byte, all []decode.Packet) {
	t.Helper()
	f := astiav.AllocFormatContext()
	defer f.Free()
	require.NoError(t, f.OpenInput(filepath.Join(os.Getenv("CFPIPE_GPU"), name), nil, nil))
	defer f.CloseInput()
	require.NoError(t, f.FindStreamInfo(nil))
	s := f.Streams()[0]
	pkt := astiav.AllocPacket()
	defer pkt.Free()
	for {
		err := f.ReadFrame(pkt)
		if errors.Is(err, astiav.ErrEof) {
			return uint32(s.CodecParameters().CodecID()), s.CodecParameters().ExtraData(), all
		}
		require.NoError(t, err)
		ns := func(v int64) int64 { return astiav.RescaleQ(v, s.TimeBase(), astiav.NewRational(1, 1e9)) }
		all = append(all, decode.Packet{Data: pkt.Data(), PTS: ns(pkt.Pts()), DTS: ns(pkt.Dts()), Key: pkt.Flags().Has(astiav.PacketFlagKey)})
		pkt.Unref()
	}
}

// sums decodes a clip and returns a checksum of each picture's pixels, without the padding of lines.
func sums(t testing.TB, name string, mode decode.Mode, v *cudavmm.Device, threads int) (all []string, layouts []decode.Layout, hardware bool, reason string) {
	t.Helper()
	id, extradata, packets := gpuClip(t, name)
	d, err := decode.Open(decode.Options{CodecID: id, Extradata: extradata, Mode: mode, Device: v, Threads: threads})
	require.NoError(t, err)
	defer d.Close()
	c := frameCopier{device: func() (*cudavmm.Device, error) { return v, nil }}
	defer c.close()
	emit := func(p *decode.Picture) error {
		meta, err := framering.MetaOf(frameFormats[p.Layout.Format], p.Layout.Width, p.Layout.Height)
		if err != nil {
			return err
		}
		var slot cudavmm.Buffer
		if mode == decode.CPU {
			slot, err = cudavmm.Host{}.Alloc("slot", p.Layout.Size())
		} else {
			slot, err = v.Alloc("slot", p.Layout.Size())
		}
		if err != nil {
			return err
		}
		defer slot.Close()
		if err := p.Store(slot); err != nil {
			return err
		}
		if err := c.use(meta); err != nil {
			return err
		}
		b := make([]byte, c.size)
		if host := slot.Bytes(); host != nil {
			n := 0
			for _, q := range c.planes {
				for y := range q.Lines {
					n += copy(b[n:n+q.Bytes], host[q.Offset+y*q.Pitch:])
				}
			}
		} else if err := c.fromGPU(b, slot); err != nil {
			return err
		}
		sum := sha256.Sum256(b)
		all, layouts = append(all, fmt.Sprintf("%x", sum[:8])), append(layouts, p.Layout)
		return nil
	}
	for _, p := range packets {
		require.NoError(t, d.Decode(p, emit))
	}
	require.NoError(t, d.Drain(emit))
	return all, layouts, d.Hardware(), d.Reason()
}

// NVDEC's pictures are those of the CPU's decoders, which other tests hold to ffmpeg's; what NVDEC cannot do falls back and says why.
func TestGPUDecodeEquals(t *testing.T) {
	v := gpu(t)
	clips, err := filepath.Glob(filepath.Join(os.Getenv("CFPIPE_GPU"), "*.*"))
	require.NoError(t, err)
	require.NotEmpty(t, clips)
	for _, path := range clips {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			want, layouts, _, _ := sums(t, name, decode.CPU, nil, 0)
			require.NotEmpty(t, want)
			for _, threads := range []int{0, nvdecThreads} {
				have, got, hardware, reason := sums(t, name, decode.Auto, v, threads)
				require.Equal(t, layouts, got)
				require.Equal(t, want, have)
				t.Logf("RESULT %s, threads %d: %d pictures equal, nvdec %v, last %s, reason %q", name, threads, len(have), hardware, got[len(got)-1], reason)
				if strings.HasPrefix(name, "nvdec-") {
					require.True(t, hardware, "NVDEC was not used: %s", reason)
				}
				if !hardware {
					require.NotEmpty(t, reason)
				}
			}
		})
	}
}

// nvdecThreads are the pictures in parallel that keep one engine of NVDEC busy.
const nvdecThreads = 3

// Decoding into frame rings against decoding alone and against ffmpeg, and the GPU memory of each stream: without delay, against an ffmpeg
// that does not delay pictures either, and with pictures in parallel, as ffmpeg has them by default. All streams run on while
// pictures are counted: engines are given to streams unevenly, and would idle when the first ones end.
func TestGPUThroughput(t *testing.T) {
	v := gpu(t)
	for _, name := range []string{"nvdec-h264-1080.ts", "nvdec-hevc-1080.ts"} {
		for _, c := range []struct {
			streams, threads int
			ffmpeg           string
		}{{1, 0, "1"}, {1, nvdecThreads, "auto"}, {16, 0, "auto"}} {
			alone, _ := gpuStreams(t, v, name, c.streams, c.threads, false)
			whole, memory := gpuStreams(t, v, name, c.streams, c.threads, true)
			reference := ""
			if ffmpeg, ok := gpuReference(); ok {
				fps := ffmpegFPS(t, ffmpeg, filepath.Join(os.Getenv("CFPIPE_GPU"), name), c.streams, c.ffmpeg)
				reference = fmt.Sprintf("; ffmpeg -threads %s -hwaccel cuda in %d process(es) %.0f fps, ratio %.2f", c.ffmpeg, c.streams, fps, whole/fps)
			}
			t.Logf("FIGURE %s, %d stream(s), threads %d: %.0f fps into frame rings, %.0f fps decoding alone, ratio %.2f; GPU memory a stream %d MiB%s",
				name, c.streams, c.threads, whole, alone, whole/alone, memory>>20, reference)
		}
	}
}

// gpuStreams decodes a clip again and again in streams decoders at once, into frame rings of their own or (publish false) for nothing.
func gpuStreams(t *testing.T, v *cudavmm.Device, name string, streams, threads int, publish bool) (fps float64, perStream uint64) {
	id, extradata, packets := gpuClip(t, name)
	free, _, err := v.Free()
	require.NoError(t, err)
	var all, ready sync.WaitGroup
	var pictures atomic.Int64
	var stop atomic.Bool
	stream := func(dir, key string, ready func()) error {
		defer ready()
		d, err := decode.Open(decode.Options{CodecID: id, Extradata: extradata, Mode: decode.CUDA, Device: v, Threads: threads})
		if err != nil {
			return err
		}
		defer d.Close()
		p, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key})
		if err != nil {
			return err
		}
		defer p.Close(framering.ReasonNormal)
		w, err := p.StartFrames(framering.FrameOptions{Meta: framering.NV12Meta(1920, 1080), Memory: v})
		if err != nil {
			return err
		}
		emit := func(pic *decode.Picture) error {
			pictures.Add(1)
			if !publish {
				return nil
			}
			slot, err := w.Acquire(t.Context())
			if err != nil {
				return err
			}
			if err := pic.Store(slot.Buffer); err != nil {
				return err
			}
			_, err = w.Publish(pic.PTS)
			return err
		}
		for loop := 0; !stop.Load(); loop++ {
			for _, k := range packets {
				if err := d.Decode(k, emit); err != nil {
					return err
				}
			}
			if loop == 0 {
				ready()
			}
		}
		return nil
	}
	ready.Add(streams)
	for range streams {
		dir, key := place(t)
		all.Go(func() {
			if err := stream(dir, key, sync.OnceFunc(ready.Done)); err != nil {
				t.Error(err)
			}
		})
	}
	ready.Wait()
	now, _, err := v.Free()
	require.NoError(t, err)
	fps = counted(pictures.Load)
	stop.Store(true)
	all.Wait()
	return fps, (free - now) / uint64(streams)
}

// counted is the rate at which a count grows, over some seconds.
func counted(count func() int64) float64 {
	time.Sleep(time.Second)
	before, start := count(), time.Now()
	time.Sleep(4 * time.Second)
	return float64(count()-before) / time.Since(start).Seconds()
}

// A decode stage on NVDEC, from a packet ring to frames in GPU memory, with a change of size.
func TestGPUDecodeStage(t *testing.T) {
	gpu(t)
	dir, key := place(t)
	id, extradata, packets := gpuClip(t, "nvdec-h264-resize.ts")
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: id, Slots: 256, DataSize: 32 << 20, Extradata: extradata}})
	require.NoError(t, err)
	defer pub.Close(framering.ReasonNormal)
	counter := background(t, DecodeOptions{RuntimeDir: dir, Key: key, Publisher: pub.Control(), Mode: decode.Auto, Policy: framering.StrictWait, AckTimeout: 10 * time.Second})
	put := func(all []decode.Packet) {
		for _, p := range all {
			flags := packetring.FlagLastInAU
			if p.Key {
				flags |= packetring.FlagKey
			}
			_, err := pub.Packet(packetring.Packet{PTS: p.PTS, DTS: p.DTS, Flags: flags, Data: p.Data})
			require.NoError(t, err)
		}
	}
	put(packets[:3])
	s, err := SubscribeFrames(t.Context(), FrameSubscribeOptions{RuntimeDir: dir, Key: key, Mode: framering.StrictOrder, Newest: true, WaitForKey: 20 * time.Second})
	require.NoError(t, err)
	defer s.Close()
	put(packets[3:])
	c := &frameCopier{device: s.Device}
	defer c.close()
	sizes := map[uint32]int{}
	for f := (framering.Frame{}); int(f.Seq) < len(packets)-4; {
		f, _ = readFrame(t, s, c)
		require.Nil(t, f.Buffer.Bytes(), "frames of NVDEC lie on the GPU")
		sizes[s.Meta().Width]++
	}
	require.Len(t, sizes, 2)
	stats := counter.Stats()
	require.True(t, stats.Hardware)
	t.Logf("RESULT decode stage: %+v, frames by width %v, generation %d", stats, sizes, s.Generation())
}
