package av

/*
#cgo pkg-config: libavformat libavcodec libavutil
#include "native.h"
*/
import "C"

import (
	"unsafe"

	"github.com/asticode/go-astiav"
)

// astiav keeps the C pointer of an object in the first and only field; TestPointers holds it to that.

func formatPointer(fc *astiav.FormatContext) *C.AVFormatContext {
	return *(**C.AVFormatContext)(unsafe.Pointer(fc))
}

func streamPointer(st *astiav.Stream) *C.AVStream { return *(**C.AVStream)(unsafe.Pointer(st)) }

func packetPointer(p *astiav.Packet) *C.AVPacket { return *(**C.AVPacket)(unsafe.Pointer(p)) }

// PacketData is the payload of a packet where it lies: valid until the packet is unreferenced. astiav's own Data copies.
func PacketData(p *astiav.Packet) []byte {
	c := packetPointer(p)
	if c.data == nil || c.size <= 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(c.data)), int(c.size))
}

// Version names the FFmpeg libraries that this program is built with.
func Version() string { return "FFmpeg " + C.GoString(C.av_version_info()) }
