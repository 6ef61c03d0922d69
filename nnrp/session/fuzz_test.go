package session

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// wire are the bytes of a message.
func wire(t testing.TB, m nnrp.Message, h nnrp.Header) []byte {
	t.Helper()
	b, err := m.Append(nil, h)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzServe: whatever a peer writes on its streams, a server neither crashes nor hangs, ends the session with its connection, and calls
// its handler in pairs.
func FuzzServe(f *testing.F) {
	o := ClientOptions{}
	h := o.hello()
	hello := wire(f, &h, nnrp.Header{})
	frame := wire(f, picture("payload", nnrp.ClassKeyframe, 0), nnrp.Header{SessionID: 1, FrameID: 1})
	object := []byte("object")
	first := nnrp.Header{SessionID: 1, FrameID: 1}
	cancel := &nnrp.Bare{Msg: nnrp.MsgFrameCancel}
	for _, m := range []nnrp.Message{
		&nnrp.SessionPatch{PatchMask: nnrp.PatchAll}, &nnrp.CachePut{ObjectKind: 1, CacheKey: nnrp.KeyOf(object), Object: object},
		&nnrp.CacheInvalidate{}, &nnrp.Close{}, &nnrp.ErrorMessage{Code: nnrp.CodeInternalError, IsFatal: 1}, &nnrp.Bare{Msg: nnrp.MsgPing}, cancel,
	} {
		f.Add(slices.Concat(hello, wire(f, m, first)), frame, wire(f, cancel, first))
	}
	f.Add(hello[:50], frame[:50], []byte{})
	f.Fuzz(func(t *testing.T, control, stream, datagram []byte) {
		synctest.Test(t, func(t *testing.T) {
			client, server := memPair()
			e := &engine{instant: true}
			done := make(chan error, 1)
			go func() {
				policy := Policy{Cache: CachePolicy{Entries: 2, Bytes: 100, Objects: 1, Namespaces: 1}}
				done <- Serve(context.Background(), server, e, ServerOptions{Policy: policy})
			}()
			go func() {
				if c, err := client.OpenControl(context.Background()); err == nil {
					go func() { // read what comes
						b := make([]byte, 4096)
						for err := error(nil); err == nil; {
							_, err = c.Read(b)
						}
					}()
					_, _ = c.Write(control)
					_ = client.SendDatagram(datagram)
					if w, err := client.OpenSend(context.Background()); err == nil {
						_, _ = w.Write(stream)
						_ = w.Close()
					}
				}
			}()
			go func() { // results are read, too
				for {
					r, err := client.AcceptReceive(context.Background())
					if err != nil {
						return
					}
					b := make([]byte, 4096)
					for err == nil {
						_, err = r.Read(b)
					}
				}
			}()
			synctest.Wait()
			_ = client.CloseWithError(0, "")
			<-done
			synctest.Wait()
			if e.opened != e.ended {
				t.Fatalf("%d sessions opened, %d ended", e.opened, e.ended)
			}
		})
	})
}

// FuzzOpen: whatever a server writes, a client with a frame under way neither crashes nor hangs, and the frame has one end at most.
func FuzzOpen(f *testing.F) {
	o := ClientOptions{}
	h := o.hello()
	ack, _, err := Negotiate(&h, &Policy{}, 1)
	if err != nil {
		f.Fatal(err)
	}
	hello := wire(f, ack, nnrp.Header{SessionID: 1})
	result := wire(f, &nnrp.ResultPush{ActiveProfileID: 1, Sections: []nnrp.Section{{RoleID: 1}}}, nnrp.Header{SessionID: 1, FrameID: 1})
	drop := wire(f, &nnrp.Bare{Msg: nnrp.MsgResultDrop}, nnrp.Header{SessionID: 1, FrameID: 1})
	for _, m := range []nnrp.Message{
		&nnrp.ErrorMessage{Code: nnrp.CodeServerBusy, Scope: nnrp.ScopeFrame, FrameID: 1}, &nnrp.Close{}, &nnrp.SessionPatchAck{},
		&nnrp.CacheAck{}, &nnrp.CachePut{ObjectKind: 1}, &nnrp.Bare{Msg: nnrp.MsgPing}, &nnrp.ErrorMessage{Code: nnrp.CodeInternalError, IsFatal: 1},
	} {
		f.Add(slices.Concat(hello, wire(f, m, nnrp.Header{SessionID: 1})), result, drop)
	}
	f.Add(wire(f, &nnrp.ErrorMessage{Code: nnrp.CodeAuthFailed, IsFatal: 1}, nnrp.Header{}), result[:60], []byte{})
	f.Fuzz(func(t *testing.T, control, stream, datagram []byte) {
		synctest.Test(t, func(t *testing.T) {
			client, server := memPair()
			defer func() {
				_ = client.CloseWithError(0, "")
				synctest.Wait()
			}()
			go func() {
				c, err := server.AcceptControl(context.Background())
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(io.Discard, c) }()
				_, _ = c.Write(control)
			}()
			go func() { // when the frame comes, its answer goes
				r, err := server.AcceptReceive(context.Background())
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r)
				_ = server.SendDatagram(datagram)
				if w, err := server.OpenSend(context.Background()); err == nil {
					_, _ = w.Write(stream)
					_ = w.Close()
				}
			}()
			c, err := Open(context.Background(), client, ClientOptions{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				return
			}
			ends := 0
			if _, err := c.TrySubmit(context.Background(), picture("x", nnrp.ClassKeyframe, 100), SubmitOptions{}); err == nil {
				for {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					o, err := c.Next(ctx)
					cancel()
					if err != nil {
						break
					}
					o.Release()
					ends++
				}
			}
			_ = c.Close(context.Background())
			if ends > 1 {
				t.Fatalf("%d ends of one frame", ends)
			}
		})
	})
}
