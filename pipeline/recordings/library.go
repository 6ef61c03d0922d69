package recordings

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// IndexName is the name of an index where none is given.
const IndexName = "recordings.db"

// Library is where recordings are looked up: in an index, or else in the files themselves.
type Library struct {
	Index  string  // "" = there is none
	Places []Place // none = the index alone
}

// List returns the files that match, by key and time. Where there is no index, or it cannot be read, the files themselves are read, which log tells.
func (l Library) List(ctx context.Context, q Query, log *slog.Logger, progress func(files int)) ([]File, error) {
	q.Places = l.Places
	if l.Index != "" {
		list, err := indexed(l.Index, func(x *Index) ([]File, error) { return x.List(ctx, q) })
		switch {
		case err == nil:
			return list, nil
		case len(l.Places) == 0 || errors.Is(err, ErrNewer) || errors.Is(err, ErrForeign) || ctx.Err() != nil:
			return nil, err
		}
		log.Info("the index cannot be used, so every file is read; cfpipe recordings rebuild makes it", "error", err)
	}
	return Scan(ctx, l.Places, q, progress)
}

// Span is from when until when there are recordings of a key; there may be gaps between.
type Span struct {
	Key      string
	From, To time.Time
}

// Spans returns what there is of each key, sorted. It asks the index as List does.
func (l Library) Spans(ctx context.Context, progress func(files int)) ([]Span, error) {
	if l.Index != "" {
		spans, err := indexed(l.Index, func(x *Index) ([]Span, error) { return x.spans(ctx, l.Places) })
		if err == nil {
			return slices.DeleteFunc(spans, func(s Span) bool {
				return len(l.Places) > 0 && !slices.ContainsFunc(l.Places, func(p Place) bool { return p.Key == "" || p.Key == s.Key })
			}), nil
		} else if len(l.Places) == 0 {
			return nil, err
		}
	}
	list, err := Scan(ctx, l.Places, Query{}, progress)
	if err != nil {
		return nil, err
	}
	var spans []Span
	for _, f := range list {
		if n := len(spans); n == 0 || spans[n-1].Key != f.Key {
			spans = append(spans, Span{f.Key, f.Start, f.End})
		} else if f.End.After(spans[n-1].To) {
			spans[n-1].To = f.End
		}
	}
	return spans, nil
}

func indexed[T any](path string, ask func(*Index) (T, error)) (T, error) {
	x, err := OpenIndex(path)
	if err != nil {
		var none T
		return none, err
	}
	defer x.Close()
	return ask(x)
}
