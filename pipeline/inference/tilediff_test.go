package inference

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/nnrp"
)

func slowDifference(a, b []byte) (sum int) {
	for i := range a {
		d := int(a[i]) - int(b[i])
		sum += max(d, -d)
	}
	return sum
}

func TestDifference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 7, 8, 9, 96, 1023, 1024, 1025, 3072, 5000} {
		a, b := make([]byte, n), make([]byte, n)
		for i := range a {
			a[i], b[i] = byte(r.Uint32()), byte(r.Uint32())
		}
		require.Equal(t, slowDifference(a, b), difference(a, b), "%d bytes", n)
		for i := range a { // the largest sums that the lanes must hold
			a[i], b[i] = 255*byte(i&1), 255*byte(^i&1)
		}
		require.Equal(t, 255*n, difference(a, b), "%d bytes", n)
	}
	for x := range 256 {
		for y := range 256 {
			require.Equal(t, max(x-y, y-x), difference([]byte{0, 0, byte(x), 0, 0, 0, 0, 0}, []byte{0, 0, byte(y), 0, 0, 0, 0, 0}))
		}
	}
}

// TestCompare: the sums are those of the tiles cut out one by one, padding and planes included.
func TestCompare(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, f := range []Format{
		{Width: 50, Height: 34, Channels: 3, DType: nnrp.Uint8, Layout: nnrp.NHWC},
		{Width: 50, Height: 34, Channels: 3, DType: nnrp.FP16, Layout: nnrp.NCHW},
	} {
		g := newTileGrid(f, 16, 16)
		n := 16 * 16 * f.Channels * f.DType.Size()
		a, b := make([]byte, f.Size()), make([]byte, f.Size())
		for range 40 {
			a[r.IntN(len(a))] = byte(r.Uint32())
		}
		x, y, sums := make([]byte, n), make([]byte, n), make([]int, g.columns)
		for row := range g.rows {
			for _, limit := range []int{0, 1 << 30} {
				g.compare(sums, a, b, row, limit)
				for c := range sums {
					g.cut(x, a, row, c)
					g.cut(y, b, row, c)
					want := slowDifference(x, y)
					if limit == 0 {
						want = min(want, 1)
					}
					require.Equal(t, want, sums[c], "%v: tile %d of row %d, limit %d", f, c, row, limit)
				}
			}
			for c := range g.columns {
				g.move(b, a, row, c)
			}
		}
		require.Equal(t, a, b)
	}
}

// BenchmarkTiler diffs a picture of which nothing, or the noise of a camera, has changed.
func BenchmarkTiler(b *testing.B) {
	f := Format{Width: 640, Height: 640, Channels: 3, DType: nnrp.Uint8}
	for _, noise := range []bool{false, true} {
		b.Run(map[bool]string{false: "still", true: "noise"}[noise], func(b *testing.B) {
			t, err := NewTiler(TilerOptions{Format: f, Tile: 32, Threshold: 2})
			require.NoError(b, err)
			pictures := [2][]byte{make([]byte, f.Size()), make([]byte, f.Size())}
			for i := range pictures[0] {
				pictures[0][i] = byte(i >> 5)
				pictures[1][i] = pictures[0][i]
				if noise && i%3 == 0 {
					pictures[1][i]++
				}
			}
			id := uint32(1)
			_, _, err = t.Frame(id, pictures[0])
			require.NoError(b, err)
			t.Has(id)
			b.SetBytes(int64(f.Size()))
			b.ReportAllocs()
			for b.Loop() {
				id++
				_, n, err := t.Frame(id, pictures[id&1])
				if err != nil || n != 0 {
					b.Fatal(n, err)
				}
			}
		})
	}
}
