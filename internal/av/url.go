package av

//#include <stdlib.h>
//#include "url.h"
import "C"

import (
	"context"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// URLWriter writes bytes to a URL through FFmpeg's protocols (tcp, udp, rtmp, http, a file …).
type URLWriter struct {
	pb   *C.AVIOContext
	stop *C.int // in C memory: read by the protocol while a call runs
	wake func() bool

	mu sync.Mutex // of one call at a time, and of Close
}

// OutputProtocols are the schemes of URLs that OpenURL can write to.
func OutputProtocols() (names []string) {
	var at unsafe.Pointer
	for {
		name := C.avio_enum_protocols(&at, 1)
		if name == nil {
			return names
		}
		names = append(names, C.GoString(name))
	}
}

// OpenURL connects. An open or write that takes longer than timeout fails, and when ctx ends both return at once. The URL
// never stands in an error, which says what FFmpeg would have put into the log.
func OpenURL(ctx context.Context, url string, timeout time.Duration) (*URLWriter, error) {
	u := C.CString(url)
	defer C.free(unsafe.Pointer(u))
	t := C.CString(strconv.FormatInt(timeout.Microseconds(), 10))
	defer C.free(unsafe.Pointer(t))
	w := &URLWriter{stop: (*C.int)(C.calloc(1, C.sizeof_int))}
	// A plain store: the protocols poll it, and every value but 0 means the same.
	w.wake = context.AfterFunc(ctx, func() { *w.stop = 1 })
	var why [C.CFAV_REASON_SIZE]C.char
	if ret := C.cfav_url_open(u, w.stop, t, &w.pb, &why[0]); ret < 0 {
		w.free()
		return nil, &Error{Op: "open", Code: int(ret), Said: strings.TrimSpace(C.GoString(&why[0]))}
	}
	return w, nil
}

// Write sends b. An error is final.
func (w *URLWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pb == nil {
		return 0, os.ErrClosed
	}
	n := 0
	for n < len(b) {
		part := b[n:min(len(b), n+math.MaxInt32)]
		if ret := C.cfav_url_write(w.pb, (*C.uint8_t)(unsafe.Pointer(&part[0])), C.int(len(part))); ret < 0 {
			return n, &Error{Op: "write", Code: int(ret)}
		}
		n += len(part)
	}
	return n, nil
}

// Close ends the connection. Idempotent.
func (w *URLWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pb == nil {
		return nil
	}
	ret := C.avio_closep(&w.pb)
	w.free()
	if ret < 0 {
		return &Error{Op: "close", Code: int(ret)}
	}
	return nil
}

func (w *URLWriter) free() {
	if w.wake() { // not called, and it will not be
		C.free(unsafe.Pointer(w.stop))
		return
	}
	// The context has ended, and the store may be under way: leave the four bytes.
}
