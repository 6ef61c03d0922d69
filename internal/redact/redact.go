// Package redact keeps values that nobody may see, passwords and the like, out of logs and messages.
package redact

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// shortest is the least length of a value that is looked for: a shorter one stands in too much by chance.
	shortest = 4
	mask     = "***"
)

// Set is what nobody may see. The zero value and nil hide nothing. Its methods may be called from any goroutine.
type Set struct {
	mu       sync.Mutex
	newest   []string
	replacer atomic.Pointer[strings.Replacer]
}

// New returns a set that hides the values.
func New(values []string) *Set {
	s := &Set{}
	s.Use(values)
	return s
}

// Use hides these values from now on, and still those of the call before: what was begun with them may speak for a while.
func (s *Set) Use(values []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, v := range slices.Concat(values, s.newest) {
		all = append(all, forms(v)...)
	}
	s.newest = slices.Clone(values)
	all = slices.DeleteFunc(all, func(v string) bool { return len(v) < shortest })
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }) // one may stand in another
	var pairs []string
	for _, v := range slices.Compact(all) {
		pairs = append(pairs, v, mask)
	}
	if len(pairs) == 0 {
		s.replacer.Store(nil)
		return
	}
	s.replacer.Store(strings.NewReplacer(pairs...))
}

// forms are how a value is written: as it is, in the parts of a URL, in quotes. Of a whole URL its parts are values too.
func forms(v string) []string {
	all := written(v)
	if _, rest, ok := strings.Cut(v, "://"); ok {
		if i := strings.IndexAny(rest, "/?#"); i >= 0 && i+1 < len(rest) {
			all = append(all, written(rest[i+1:])...)
		}
		if u, err := url.Parse(v); err == nil {
			if password, ok := u.User.Password(); ok {
				all = append(all, written(password)...)
			}
			all = append(all, written(strings.Trim(u.Path, "/"))...)
			for _, values := range u.Query() {
				for _, x := range values {
					all = append(all, written(x)...)
				}
			}
		}
	}
	return all
}

func written(v string) []string {
	quoted := strconv.Quote(v)
	all := []string{v, url.PathEscape(v), url.QueryEscape(v), url.UserPassword("", v).String()[1:],
		(&url.URL{Path: "/" + v}).EscapedPath()[1:], quoted[1 : len(quoted)-1],
		strings.ReplaceAll(v, " ", "%20")}
	if shown, _, cut := strings.Cut(v, "#"); cut { // a URL ends there
		all = append(all, written(shown)...)
	}
	if plain, err := url.PathUnescape(v); err == nil {
		all = append(all, plain)
	}
	return all
}

// Mask is text without the values.
func (s *Set) Mask(text string) string {
	if s == nil {
		return text
	}
	if r := s.replacer.Load(); r != nil {
		return r.Replace(text)
	}
	return text
}

// Error is err, whose text is masked.
func (s *Set) Error(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if masked := s.Mask(text); masked != text {
		return &maskedError{masked, err}
	}
	return err
}

type maskedError struct {
	text string
	err  error
}

func (e *maskedError) Error() string { return e.text }
func (e *maskedError) Unwrap() error { return e.err }

// Logger is log, which is told nothing of the values.
func (s *Set) Logger(log *slog.Logger) *slog.Logger { return slog.New(&handler{log.Handler(), s}) }

type handler struct {
	next slog.Handler
	set  *Set
}

func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if h.set.replacer.Load() == nil {
		return h.next.Handle(ctx, r)
	}
	masked := slog.NewRecord(r.Time, r.Level, h.set.Mask(r.Message), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		masked.AddAttrs(h.attr(a))
		return true
	})
	return h.next.Handle(ctx, masked)
}

func (h *handler) WithAttrs(list []slog.Attr) slog.Handler {
	return &handler{h.next.WithAttrs(h.attrs(list)), h.set}
}

func (h *handler) WithGroup(name string) slog.Handler { return &handler{h.next.WithGroup(name), h.set} }

func (h *handler) attrs(list []slog.Attr) []slog.Attr {
	masked := make([]slog.Attr, len(list))
	for i, a := range list {
		masked[i] = h.attr(a)
	}
	return masked
}

func (h *handler) attr(a slog.Attr) slog.Attr {
	a.Value = a.Value.Resolve()
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(h.set.Mask(a.Value.String()))
	case slog.KindGroup:
		a.Value = slog.GroupValue(h.attrs(a.Value.Group())...)
	case slog.KindAny: // an error, a list: what says nothing of them stays what it is
		text := fmt.Sprint(a.Value.Any())
		if masked := h.set.Mask(text); masked != text {
			a.Value = slog.StringValue(masked)
		}
	}
	return a
}
