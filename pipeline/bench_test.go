package pipeline

import (
	"context"
	"testing"

	"github.com/cfpipe/cfpipe/packetring"
)

// BenchmarkNext compares a subscription with the bare reader under it: publish and read one packet of 1000 bytes.
func BenchmarkNext(b *testing.B) {
	dir, key := place(b)
	p := mustPublish(b, dir, key)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	s, err := Subscribe(ctx, SubscribeOptions{RuntimeDir: dir, Key: key})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	r, err := packetring.Open(p.Ring().Path(), packetring.ReaderOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	data := make([]byte, 1000)
	for name, next := range map[string]func(context.Context) (packetring.Packet, error){"subscription": s.Next, "reader": r.Next} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := p.Packet(packetring.Packet{Flags: packetring.FlagKey, Data: data}); err != nil {
					b.Fatal(err)
				}
				if _, err := next(ctx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
