package pipeline

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/packetring"
)

// PublishOptions describe a publication. Key must be set.
type PublishOptions struct {
	RuntimeDir string            // "" = $CUFRAMES_RUNTIME_DIR, else framering.DefaultRuntimeDir
	Key        string            // 1 to 63 of a-z, A-Z, 0-9, _ and -
	Group      string            // name or number of the group that may read; "" = the owner alone
	Protocol   uint32            // 4 or 2; 0 = 4. Protocol 1 has no packets
	Packets    packetring.Config // Mode, GID and Protocol are set from the fields above
	Logger     *slog.Logger      // nil = silent
}

// Publication is a key with its control socket and its packet ring. Methods may be called from any goroutine.
type Publication struct {
	control *framering.Publisher
	ring    *packetring.Writer
}

// Publish claims a key, makes its packet ring and lets subscribers in. It does not block. The error Is
// framering.ErrAlreadyExists when a living publisher has the key; *shm.SpaceError says that /dev/shm has no room.
func Publish(o PublishOptions) (*Publication, error) {
	gid, err := framering.GroupID(o.Group)
	if err != nil {
		return nil, fmt.Errorf("publish %s: %w", o.Key, err)
	}
	control, err := framering.NewPublisher(framering.PublisherOptions{
		RuntimeDir: o.RuntimeDir, Key: o.Key, GID: gid, Protocol: o.Protocol, Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	c := o.Packets
	c.Mode, c.GID, c.Protocol = 0, gid, o.Protocol
	ring, err := packetring.Create(o.Key, c)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("publish %s: %w", o.Key, err), control.Close(framering.ReasonError))
	}
	p := &Publication{control: control, ring: ring}
	control.EnablePackets(framering.PacketInfo{Path: ring.Path(), CodecID: c.CodecID, InitialSeq: ring.LastKeyframeSeq})
	if err := control.Serve(); err != nil {
		return nil, errors.Join(err, p.Close(framering.ReasonError))
	}
	return p, nil
}

// Packet publishes an access unit and returns its seq. It never blocks on readers and does not allocate. See
// packetring.Writer.Publish for the errors.
func (p *Publication) Packet(pkt packetring.Packet) (uint64, error) {
	seq, err := p.ring.Publish(pkt)
	if err == nil {
		p.control.PacketPublished()
	}
	return seq, err
}

// SetExtradata stores the codec's parameter sets, see packetring.Writer.SetExtradata. packetring.ErrExtradataFixed means that
// the stream has changed so much that a new publication is due.
func (p *Publication) SetExtradata(b []byte) error { return p.ring.SetExtradata(b) }

// Ring returns the packet ring, for its counters.
func (p *Publication) Ring() *packetring.Writer { return p.ring }

// Control returns the control socket's side, for the subscriber table and the frame ring.
func (p *Publication) Control() *framering.Publisher { return p.control }

// Close ends the publication: readers get what is in the ring and then learn the reason. Nothing is left behind. Calls after
// the first do nothing.
func (p *Publication) Close(reason framering.Reason) error {
	// The ring first: once the control side has given the key away, a successor makes its ring under the same name.
	return errors.Join(p.ring.Close(), p.control.Close(reason))
}
