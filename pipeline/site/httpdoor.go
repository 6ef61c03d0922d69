package site

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cfpipe/cfpipe/internal/lobby"
)

// door bounds the connections of the API. Those without a request that is allowed and read to its end, idle ones among them, hold nothing: the
// oldest goes when one more comes, so that whoever reaches the port without the token cannot shut it, nor a client that sends slowly.
type door struct {
	silent *lobby.Lobby[net.Conn]
	served chan struct{} // requests at work
}

func newDoor() *door {
	return &door{lobby.New(httpConns, func(c net.Conn) { c.Close() }), make(chan struct{}, httpConns)}
}

type connKey struct{}

// watch makes the connections of a server pass the door.
func (d *door) watch(s *http.Server) {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	s.ConnState = func(c net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew, http.StateIdle:
			d.silent.Enter(c)
		case http.StateClosed, http.StateHijacked:
			d.silent.Leave(c)
		}
	}
}

// admit serves a request that is allowed.
func (d *door) admit(h http.Handler, w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxTrigger)) // the longest that any path takes
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		fail(w, http.StatusRequestEntityTooLarge, "the body is too long")
		return
	case err != nil:
		w.Header().Set("Connection", "close")
		fail(w, http.StatusRequestTimeout, "the body has not come")
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	select {
	case d.served <- struct{}{}:
		defer func() { <-d.served }()
	case <-r.Context().Done():
		return
	}
	if c, ok := r.Context().Value(connKey{}).(net.Conn); ok {
		d.silent.Leave(c)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the request is read: what is read now tells that the client has gone
	h.ServeHTTP(w, r)
}
