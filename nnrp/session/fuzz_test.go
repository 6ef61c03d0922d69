package session

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/cfpipe/cfpipe/nnrp"
)

// FuzzServe: whatever a peer writes on its streams, a server neither crashes nor hangs, ends the session with its connection, and calls
// its handler in pairs.
func FuzzServe(f *testing.F) {
	wire := func(m nnrp.Message, h nnrp.Header) []byte {
		b, err := m.Append(nil, h)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	o := ClientOptions{}
	h := o.hello()
	hello := wire(&h, nnrp.Header{})
	frame := wire(picture("payload", nnrp.ClassKeyframe, 0), nnrp.Header{SessionID: 1, FrameID: 1})
	object := []byte("object")
	for _, m := range []nnrp.Message{&nnrp.SessionPatch{PatchMask: nnrp.PatchAll}, &nnrp.CachePut{ObjectKind: 1, CacheKey: nnrp.KeyOf(object), Object: object},
		&nnrp.CacheInvalidate{}, &nnrp.Close{}, &nnrp.ErrorMessage{Code: nnrp.CodeInternalError, IsFatal: 1}, &nnrp.Bare{Msg: nnrp.MsgPing}, &nnrp.Bare{Msg: nnrp.MsgFrameCancel}} {
		f.Add(append(append([]byte{}, hello...), wire(m, nnrp.Header{SessionID: 1, FrameID: 1})...), frame, wire(&nnrp.Bare{Msg: nnrp.MsgFrameCancel}, nnrp.Header{SessionID: 1, FrameID: 1}))
	}
	f.Add(hello[:50], frame[:50], []byte{})
	f.Fuzz(func(t *testing.T, control, stream, datagram []byte) {
		synctest.Test(t, func(t *testing.T) {
			client, server := memPair()
			e := &engine{instant: true}
			done := make(chan error, 1)
			go func() {
				done <- Serve(context.Background(), server, e, ServerOptions{Policy: Policy{Cache: CachePolicy{Entries: 2, Bytes: 100, Objects: 1, Namespaces: 1}}})
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
