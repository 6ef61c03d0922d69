package mux

import (
	"strings"
	"time"
	"unicode"
)

// Origin is what a recording says of itself, whatever its name.
//
// The containers' own fields do not hold it: MP4 counts whole seconds, transport streams have no date at all. The exact time stands where
// there is room for text: in the date of MP4 and Matroska, in the name of a transport stream's service.
type Origin struct {
	Key   string    // what the pictures are of; "" = it does not say
	Cause string    // why the recording began; "" = it does not say
	Start time.Time // Unix time of the file's time zero, the DTS of its first picture; zero = it does not say
	Exact bool      // Start is known to the tick of the container, else to a second
}

// originTime is RFC 3339 with the nine digits of the nanosecond.
const originTime = "2006-01-02T15:04:05.000000000Z"

// provider marks transport streams whose service is named KEY TIME [CAUSE].
const provider = "cfpipe"

// What a recording is of, the first word of its cause.
const (
	CauseContinuous = "continuous" // it runs all the time
	CauseEvent      = "event"      // it has an event, whose reason may follow
)

// maxCause bounds what is said of the cause: the name of a service has one byte for its length.
const maxCause = 120

// maxKey is more than a key has: what was cut off is none.
const maxKey = 64

// metadata tells an output's origin.
func (o Origin) metadata(f Format) map[string]string {
	start := o.Start.UTC().Format(originTime)
	m := map[string]string{}
	o.Cause = plain(o.Cause, maxCause)
	put := func(name, value string) {
		if value != "" {
			m[name] = value
		}
	}
	if f == TS {
		put("service_provider", provider)
		put("service_name", strings.TrimSpace(strings.Join([]string{o.Key, start, o.Cause}, " ")))
		return m
	}
	put("creation_time", o.Start.UTC().Format("2006-01-02T15:04:05.000000Z"))
	put("date", start)
	put("title", o.Key)
	put("comment", o.Cause)
	return m
}

// plain is text of n bytes at most and of one line: a file may come from anywhere, and what it says goes into answers and logs.
func plain(s string, n int) string {
	s = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s[:min(len(s), n)], ""))
	return strings.TrimSpace(s)
}

// plausible says whether a time is one that Unix nanoseconds hold with room for the length of a recording: 1970 to 2261.
func plausible(t time.Time) bool { return t.Unix() > 0 && t.Year() < 2262 }

// readOrigin reads it back, bounded: a key as long as one may be, which is not checked, and no time that was never and will not be. tag returns an
// entry of a file's metadata.
func readOrigin(tag func(name string) string) (o Origin) {
	exact := tag("date")
	if exact == "" {
		exact = tag("DATE") // Matroska's tags are in capitals
	}
	o.Key, o.Cause = tag("title"), tag("comment")
	if o.Cause == "" {
		o.Cause = tag("COMMENT")
	}
	if tag("service_provider") == provider {
		words := strings.SplitN(tag("service_name"), " ", 3)
		o.Key, o.Cause = "", ""
		if len(words) > 0 {
			if _, err := time.Parse(originTime, words[0]); err == nil { // no key
				words = append([]string{""}, words...)
			}
			o.Key = words[0]
		}
		if len(words) > 1 {
			exact = words[1]
		}
		if len(words) > 2 {
			o.Cause = strings.Join(words[2:], " ")
		}
	}
	o.Key, o.Cause = plain(o.Key, maxKey), plain(o.Cause, maxCause)
	if t, err := time.Parse(originTime, exact); err == nil && plausible(t) {
		o.Start, o.Exact = t, true
	} else if t, err := time.Parse(time.RFC3339Nano, tag("creation_time")); err == nil && plausible(t) {
		o.Start = t.UTC()
	}
	return o
}
