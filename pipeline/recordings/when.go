package recordings

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseTime reads a moment as people write it: RFC 3339; "2026-11-30 12:00", with seconds or without, and "2026-11-30", in local time; "12:00" or
// "12:00:30" of today; "now"; "-90s", "-15m", "-1h30m", "-2d", "-1w" before now. "24:00" is the end of a day. "" is the zero time.
func ParseTime(text string, now time.Time) (time.Time, error) {
	t, err := parseTime(text, now)
	if err == nil && !t.IsZero() && !countable(t) {
		return time.Time{}, fmt.Errorf("time %.40q: want a year from 1678 to 2261", text)
	}
	return t, err
}

// countable says whether a time is one in Unix ns, as recordings and their index have it.
func countable(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 1678 && y <= 2261
}

func parseTime(text string, now time.Time) (time.Time, error) {
	text = strings.TrimSpace(text)
	switch {
	case text == "":
		return time.Time{}, nil
	case text == "now":
		return now, nil
	case strings.HasPrefix(text, "-"):
		d, err := parseAgo(text[1:])
		if err != nil {
			return time.Time{}, badTime(text)
		}
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05Z07:00"} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	for _, end := range []string{"24:00", "24:00:00"} {
		day, ok := strings.CutSuffix(text, end)
		if ok && (day == "" || strings.HasSuffix(day, " ") || strings.HasSuffix(day, "T")) {
			t, err := ParseTime(day+"00:00", now)
			if err != nil {
				return t, badTime(text)
			}
			return t.AddDate(0, 0, 1), nil
		}
	}
	local := strings.Replace(text, "T", " ", 1)
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, local, now.Location()); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			y, m, d := now.Date()
			return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), now.Location()), nil
		}
	}
	return time.Time{}, badTime(text)
}

// IsTimeOfDay says whether a text that ParseTime reads names no day: then it means today.
func IsTimeOfDay(text string) bool {
	text = strings.TrimSpace(text)
	return strings.Contains(text, ":") && !strings.Contains(text, "-")
}

// parseAgo reads a duration; weeks and days stand in front of what time.ParseDuration knows.
func parseAgo(text string) (time.Duration, error) {
	if text == "" {
		return 0, errors.New("no duration")
	}
	var days int64
	for _, of := range []struct {
		name string
		days int64
	}{{"w", 7}, {"d", 1}} {
		before, rest, ok := strings.Cut(text, of.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(before, 10, 14)
		if err != nil {
			return 0, err
		}
		days, text = days+int64(n)*of.days, rest
	}
	if text == "" {
		text = "0s"
	}
	d, err := time.ParseDuration(text)
	if err == nil && d < 0 {
		err = fmt.Errorf("%s is negative", text)
	}
	all := time.Duration(days)*24*time.Hour + d
	if err == nil && all < d {
		err = fmt.Errorf("%s is too long", text)
	}
	return all, err
}

func badTime(text string) error {
	return fmt.Errorf("time %.40q: want 2026-11-30T12:00:00Z, \"2026-11-30 12:00\", 2026-11-30, 12:00 (today), now, or before now -90s, -15m, -1h30m, -2d or -1w (units s, m, h, d, w)", text)
}
