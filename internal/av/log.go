package av

//#include "native.h"
import "C"

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"unsafe"
)

// FFmpeg's levels.
const (
	logQuiet   = -8
	logError   = 16
	logWarning = 24
	logInfo    = 32
	logDebug   = 48
)

// maxPartialLine bounds what is kept of a line that has no end yet.
const maxPartialLine = 4096

var bridge struct {
	sync.Mutex
	logger  *slog.Logger
	partial strings.Builder
	keys    map[uintptr]string // of the objects that log, where they are somebody's
}

// logAs names whose object it is that logs; "" = nobody's any more.
func logAs(object unsafe.Pointer, key string) {
	bridge.Lock()
	defer bridge.Unlock()
	if key == "" {
		delete(bridge.keys, uintptr(object))
		return
	}
	if bridge.keys == nil {
		bridge.keys = map[uintptr]string{}
	}
	bridge.keys[uintptr(object)] = key
}

// FFmpeg never writes to standard error by itself: without SetLogger its messages are dropped.
func init() { C.cfav_install_log(logQuiet) }

// SetLogger sends FFmpeg's messages to l, with credentials masked: errors as warnings (what matters is also returned),
// warnings as information, the rest as debug. It holds for the whole process; nil drops the messages.
func SetLogger(l *slog.Logger) {
	level := logQuiet
	if l != nil {
		ctx := context.Background()
		switch {
		case l.Enabled(ctx, slog.LevelDebug-4):
			level = logDebug
		case l.Enabled(ctx, slog.LevelDebug):
			level = logInfo
		case l.Enabled(ctx, slog.LevelInfo):
			level = logWarning
		case l.Enabled(ctx, slog.LevelWarn):
			level = logError
		}
	}
	bridge.Lock()
	bridge.logger = l
	bridge.partial.Reset()
	bridge.Unlock()
	C.cfav_set_log_level(C.int(level))
}

func slogLevel(level int) slog.Level {
	switch {
	case level <= logError:
		return slog.LevelWarn
	case level <= logWarning:
		return slog.LevelInfo
	case level <= logInfo:
		return slog.LevelDebug
	default:
		return slog.LevelDebug - 4
	}
}

//export cfavLog
func cfavLog(object C.uintptr_t, level C.int, name, line *C.char) {
	text := C.GoString(line)
	from := ""
	if name != nil {
		from = C.GoString(name)
	}
	logLine(uintptr(object), int(level), from, text)
}

// logLine joins the pieces of a line; FFmpeg ends whole lines with a newline.
func logLine(object uintptr, level int, from, text string) {
	bridge.Lock()
	l := bridge.logger
	if l == nil {
		bridge.Unlock()
		return
	}
	if bridge.partial.Len()+len(text) <= maxPartialLine {
		bridge.partial.WriteString(text)
	}
	if !strings.HasSuffix(text, "\n") && bridge.partial.Len() < maxPartialLine {
		bridge.Unlock()
		return
	}
	whole := strings.TrimSpace(bridge.partial.String())
	bridge.partial.Reset()
	key := bridge.keys[object]
	bridge.Unlock()
	if whole == "" {
		return
	}
	if key != "" {
		l = l.With("key", key)
	}
	l.Log(context.Background(), slogLevel(level), "ffmpeg: "+Mask(whole), "component", Mask(from))
}

const secretNames = `pass|passw|passwd|password|passphrase|pwd|token|secret|api_?key|stream_?key`

// NamesSecret says whether a parameter of a URL is one that holds a secret, by its name.
func NamesSecret(name string) bool { return maskName.MatchString(name) }

var (
	// The password may hold any byte, "@" and "/" too: all up to the last "@" of the word goes.
	maskUser = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s'"<>?#]*@`)
	// The same where the scheme is misspelt: "rtsp:/user:password@host", "user:password@host".
	maskBare  = regexp.MustCompile(`(^|[\s'"/])[^\s'"/:@<>]+:(?:[^\s'"@<>/]|/[^\s'"@<>/])[^\s'"@<>]*@`)
	maskField = regexp.MustCompile(`(?i)\b([a-z_]*(?:` + secretNames + `|auth|signature|sig))=[^\s&'"<>]+`)
	maskName  = regexp.MustCompile(`(?i)^[a-z_]*(?:` + secretNames + `)$`)
	// What follows the application in an RTMP address is the key to publish with.
	maskStream = regexp.MustCompile(`(?i)\b(rtmp[a-z]*://[^\s'"/]+/[^\s'"/]+/)[^\s'"]+`)
	maskHeader = regexp.MustCompile(`(?i)\b((?:proxy-)?authorization:\s*)[^\r\n]+`)
)

// Mask removes credentials from text that is going to be shown: user and password of URLs, secrets in query strings,
// authorization headers, stream keys.
func Mask(s string) string {
	if !strings.ContainsAny(s, "@=:") {
		return s
	}
	s = maskUser.ReplaceAllString(s, "${1}***@")
	s = maskBare.ReplaceAllString(s, "${1}***@")
	s = maskStream.ReplaceAllString(s, "${1}***")
	s = maskField.ReplaceAllString(s, "${1}=***")
	return maskHeader.ReplaceAllString(s, "${1}***")
}
