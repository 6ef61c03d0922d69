package recordings

import (
	"context"
	"errors"
	"log/slog"
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
	if l.Index != "" {
		list, err := l.indexed(ctx, q)
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

func (l Library) indexed(ctx context.Context, q Query) ([]File, error) {
	x, err := OpenIndex(l.Index)
	if err != nil {
		return nil, err
	}
	defer x.Close()
	return x.List(ctx, q)
}
