package decode

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/internal/media"
)

// caps is what the NVDEC engines of one GPU can do with one codec, in 4:2:0.
type caps struct {
	depths              uint32 // bit n: n bits per sample
	maxWidth, maxHeight int
	minWidth, minHeight int
	engines             int
	maxMacroblocks      int
}

// decodeCaps is CUVIDDECODECAPS.
type decodeCaps struct {
	codec, chroma, depthMinus8 uint32
	_                          [3]uint32
	supported, engines         uint8
	_                          uint16 // nOutputFormatMask
	maxWidth, maxHeight        uint32
	maxMacroblocks             uint32
	minWidth, minHeight        uint16
	_                          [2]uint8 // bIsHistogramSupported, nCounterBitDepth
	_                          uint16   // nMaxHistogramBins
	_                          [10]uint32
}

var _ [88]byte = [unsafe.Sizeof(decodeCaps{})]byte{}

const chroma420 = 1 // cudaVideoChromaFormat_420

// nvdecCodecs maps FFmpeg's codec ids to cudaVideoCodec.
var nvdecCodecs = map[uint32]uint32{media.H264: 4, media.HEVC: 8, media.AV1: 11, media.MJPEG: 5, media.VP8: 9, media.VP9: 10}

// cuvid is libnvcuvid, loaded once.
var cuvid struct {
	sync.Once
	getCaps func(*decodeCaps) int32
	err     error
}

func loadCuvid() error {
	cuvid.Do(func() {
		var h uintptr
		for _, name := range []string{"libnvcuvid.so.1", "/usr/local/nvidia/lib64/libnvcuvid.so.1", "libnvcuvid.so"} {
			if h, cuvid.err = purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL); cuvid.err == nil {
				break
			}
		}
		if cuvid.err != nil {
			cuvid.err = fmt.Errorf("%w: no NVDEC library (containers: NVIDIA_DRIVER_CAPABILITIES must name video): %w", ErrUnsupported, cuvid.err)
			return
		}
		p, err := purego.Dlsym(h, "cuvidGetDecoderCaps")
		if err != nil {
			cuvid.err = fmt.Errorf("%w: the NVDEC library is too old: %w", ErrUnsupported, err)
			return
		}
		purego.RegisterFunc(&cuvid.getCaps, p)
	})
	return cuvid.err
}

// nvdecCaps asks a GPU what it can do with a codec. A nil error means that it decodes at least one depth of it.
func nvdecCaps(device *cudavmm.Device, codecID uint32) (*caps, error) {
	id, ok := nvdecCodecs[codecID]
	if !ok {
		return nil, fmt.Errorf("%w: NVDEC knows no %s", ErrUnsupported, media.CodecName(codecID))
	}
	if err := loadCuvid(); err != nil {
		return nil, err
	}
	return askCaps(id, codecID, device.Info().Name, func(c *decodeCaps) (err error) {
		var r int32
		if err := device.With(func() { r = cuvid.getCaps(c) }); err != nil {
			return err
		}
		if r != 0 {
			return fmt.Errorf("cuvidGetDecoderCaps: error %d", r)
		}
		return nil
	})
}

// askCaps puts the answers for each depth together.
func askCaps(id, codecID uint32, gpu string, ask func(*decodeCaps) error) (*caps, error) {
	all := &caps{}
	for _, depth := range []uint32{8, 10, 12} {
		c := decodeCaps{codec: id, chroma: chroma420, depthMinus8: depth - 8}
		if err := ask(&c); err != nil {
			return nil, err
		}
		if c.supported == 0 {
			continue
		}
		all.depths |= 1 << depth
		all.maxWidth, all.maxHeight = max(all.maxWidth, int(c.maxWidth)), max(all.maxHeight, int(c.maxHeight))
		all.minWidth, all.minHeight = max(all.minWidth, int(c.minWidth)), max(all.minHeight, int(c.minHeight))
		all.engines, all.maxMacroblocks = max(all.engines, int(c.engines)), max(all.maxMacroblocks, int(c.maxMacroblocks))
	}
	if all.depths == 0 {
		return nil, fmt.Errorf("%w: the NVDEC of %s has no %s", ErrUnsupported, gpu, media.CodecName(codecID))
	}
	return all, nil
}

// Capability is what doctor prints about one codec.
type Capability struct {
	Codec               string
	Depths              []int // bits per sample, 4:2:0
	MaxWidth, MaxHeight int
	Engines             int
}

// Capabilities lists the codecs that the GPU's NVDEC decodes.
func Capabilities(device *cudavmm.Device) ([]Capability, error) {
	if err := loadCuvid(); err != nil {
		return nil, err
	}
	var all []Capability
	for _, id := range []uint32{media.H264, media.HEVC, media.AV1, media.MJPEG} {
		c, err := nvdecCaps(device, id)
		if err != nil {
			continue // not this codec
		}
		k := Capability{Codec: media.CodecName(id), MaxWidth: c.maxWidth, MaxHeight: c.maxHeight, Engines: c.engines}
		for _, depth := range []int{8, 10, 12} {
			if c.depths>>depth&1 != 0 {
				k.Depths = append(k.Depths, depth)
			}
		}
		all = append(all, k)
	}
	return all, nil
}
