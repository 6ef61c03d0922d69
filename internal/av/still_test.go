package av

import (
	"bytes"
	"image"
	"image/jpeg"
	"image/png"
	"testing"

	"github.com/stretchr/testify/require"
)

// gradient is an NV12 picture whose colour is known: the left half is BT.709 red, the right half white, at video range.
func gradient(w, h int) Still {
	y, uv := make([]byte, w*h), make([]byte, (w+1)/2*2*((h+1)/2))
	for i := range y {
		if y[i] = 63; i%w >= w/2 {
			y[i] = 235
		}
	}
	for i := 0; i < len(uv); i += 2 {
		uv[i], uv[i+1] = 102, 240
		if i%((w+1)/2*2) >= w/2 {
			uv[i], uv[i+1] = 128, 128
		}
	}
	return Still{Format: NV12, Width: w, Height: h, Planes: []StillPlane{{y, w}, {uv, (w + 1) / 2 * 2}}}
}

func TestStillKeepsColours(t *testing.T) {
	for name, c := range map[string]struct {
		format StillFormat
		decode func(b []byte) (image.Image, error)
	}{
		"jpeg": {JPEG, func(b []byte) (image.Image, error) { return jpeg.Decode(bytes.NewReader(b)) }},
		"png":  {PNG, func(b []byte) (image.Image, error) { return png.Decode(bytes.NewReader(b)) }},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range [][2]int{{1280, 720}, {1284, 722}, {1281, 721}} {
				b, err := EncodeStill(gradient(size[0], size[1]), c.format, 2)
				require.NoError(t, err)
				img, err := c.decode(b)
				require.NoError(t, err)
				require.Equal(t, image.Rect(0, 0, size[0], size[1]), img.Bounds())
				r, g, bl, _ := img.At(100, 300).RGBA()
				require.InDelta(t, 255, r>>8, 6)
				require.InDelta(t, 0, g>>8, 6)
				require.InDelta(t, 0, bl>>8, 6)
				r, g, bl, _ = img.At(1200, 300).RGBA()
				require.InDelta(t, 255, r>>8, 3)
				require.InDelta(t, 255, g>>8, 3)
				require.InDelta(t, 255, bl>>8, 3)
			}
		})
	}
}

func TestStillRefuses(t *testing.T) {
	for _, s := range []Still{{}, {Width: 1, Height: 1}, {Format: 99, Width: 1, Height: 1, Planes: []StillPlane{{make([]byte, 4), 4}}}} {
		_, err := EncodeStill(s, JPEG, 3)
		require.Error(t, err)
	}
	_, err := EncodeStill(gradient(64, 64), JPEG, 32)
	require.Error(t, err)
}
