package pipeline

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// numberedUnit is an access unit as it was published.
type numberedUnit struct {
	pts, dts int64
	key      bool
	hash     string
	out      time.Time // when it had been published; zero = not yet
}

// numbered publishes the built-in clip over and over at its pace, each access unit with a number of its own in it (an SEI message), and
// keeps a hash of each: what of it is in a file can be told exactly.
type numbered struct {
	stop func()

	mu    sync.Mutex
	units []numberedUnit
}

// numberedID is the UUID of the SEI messages.
const numberedID = "cfpipe-numbered-"

// publishNumbered publishes until stop; pad bytes make each unit larger.
func publishNumbered(t *testing.T, dir, key string, pad int) *numbered {
	t.Helper()
	clip := embedded(t)
	pub, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{
		Slots: 1024, DataSize: 32 << 20, CodecID: media.H264, Extradata: clip.Tracks()[0].Extradata}})
	require.NoError(t, err)
	n := &numbered{}
	end, done := make(chan struct{}), make(chan struct{})
	n.stop = sync.OnceFunc(func() { close(end); <-done })
	t.Cleanup(n.stop)
	go func() {
		defer close(done)
		defer func() { _ = pub.Close(framering.ReasonNormal) }()
		for base := time.Now().UnixNano(); ; base += int64(clip.Duration()) {
			for _, p := range clip.Packets(0) {
				select {
				case <-time.After(time.Duration(base + p.DTS - time.Now().UnixNano())):
				case <-end:
					return
				}
				n.mu.Lock()
				data := withNumber(p.Data, len(n.units), pad)
				n.units = append(n.units, numberedUnit{pts: base + p.PTS, dts: base + p.DTS, key: p.Flags&media.FlagKey != 0, hash: numberedHash(data)})
				last := len(n.units) - 1
				n.mu.Unlock()
				if _, err := pub.Packet(packetring.Packet{PTS: base + p.PTS, DTS: base + p.DTS, Flags: packetring.Flags(p.Flags), Data: data}); err != nil {
					panic(err)
				}
				n.mu.Lock()
				n.units[last].out = time.Now()
				n.mu.Unlock()
			}
		}
	}()
	return n
}

func (n *numbered) published() []numberedUnit {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.units)
}

// withNumber puts the message in front of the first slice.
func withNumber(annexB []byte, number, pad int) (out []byte) {
	text := fmt.Sprintf("%s%08d ", numberedID, number)
	sei := []byte{0, 0, 0, 1, 6, 5}
	size := len(text) + pad
	for ; size >= 255; size -= 255 {
		sei = append(sei, 255)
	}
	sei = append(append(sei, byte(size)), text...)
	sei = append(append(sei, bytes.Repeat([]byte{'x'}, pad)...), 0x80)
	placed := false
	for nal := range bitstream.NALs(annexB) {
		if c := bitstream.Classify(media.H264, nal); !placed && !c.ParamSet && !c.AUD {
			out, placed = append(out, sei...), true
		}
		out = append(append(out, 0, 0, 0, 1), nal...)
	}
	return out
}

// numberedHash is that of all but parameter sets and delimiters, which containers keep elsewhere.
func numberedHash(annexB []byte) string {
	h := sha256.New()
	for nal := range bitstream.NALs(annexB) {
		if c := bitstream.Classify(media.H264, nal); !c.ParamSet && !c.AUD {
			h.Write(nal)
		}
	}
	return string(h.Sum(nil))
}

// fileNumbers reads a file back with ffmpeg and returns the numbers of its units in order. Each is compared to what was published. torn
// says that the file was not finished.
func (n *numbered) fileNumbers(t *testing.T, path string, torn bool) (numbers []int) {
	t.Helper()
	cmd := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-i", path, "-map", "0:v", "-c", "copy", "-f", "h264", "-")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if !torn {
		require.NoError(t, err, stderr.String())
	}
	units := n.published()
	prefix := []byte(numberedID)
	number, unit := -1, []byte(nil)
	flush := func(last bool) {
		if number >= 0 {
			require.Less(t, number, len(units))
			if torn && last && units[number].hash != numberedHash(unit) {
				return // the writer was killed in it
			}
			require.Equal(t, units[number].hash, numberedHash(unit), "unit %d in %s", number, path)
			numbers = append(numbers, number)
		}
		unit = unit[:0]
	}
	for nal := range bitstream.NALs(out) {
		if at := bytes.Index(nal, prefix); at >= 0 && nal[0] == 6 {
			flush(false)
			number, err = strconv.Atoi(string(nal[at+len(prefix):][:8]))
			require.NoError(t, err)
		}
		unit = append(append(unit, 0, 0, 0, 1), nal...)
	}
	flush(true)
	if !torn {
		require.NotEmpty(t, numbers, path)
	}
	return numbers
}

// requireNumbers checks that they are those from first to last, all and in order.
func requireNumbers(t *testing.T, numbers []int, first, last int) {
	t.Helper()
	require.Equal(t, []int{first, last}, []int{numbers[0], numbers[len(numbers)-1]}, "first and last access unit")
	for i, x := range numbers {
		require.Equal(t, first+i, x)
	}
}

// keyAt is the number of the newest keyframe at or before a time.
func (n *numbered) keyAt(t *testing.T, at time.Time) int {
	t.Helper()
	found := -1
	for i, u := range n.published() {
		if u.key && u.pts <= at.UnixNano() {
			found = i
		}
	}
	require.GreaterOrEqual(t, found, 0)
	return found
}

// outAt is the number of the newest unit that had been published at a time.
func (n *numbered) outAt(at time.Time) int {
	found := -1
	for i, u := range n.published() {
		if !u.out.IsZero() && !u.out.After(at) {
			found = i
		}
	}
	return found
}

// lastAt is the number of the newest unit that is decoded at or before a time.
func (n *numbered) lastAt(at time.Time) int {
	found := -1
	for i, u := range n.published() {
		if u.dts <= at.UnixNano() {
			found = i
		}
	}
	return found
}
