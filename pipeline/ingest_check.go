package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/packetring"
)

const (
	// An owner that is shutting down has takeOverPatience to finish. One that has got its signal a moment ago does not show it yet:
	// any owner is looked at again for takeOverGrace.
	takeOverPatience = 2 * time.Second
	takeOverGrace    = 200 * time.Millisecond
	takeOverPace     = 10 * time.Millisecond

	// minIngestBytes is the smallest ring of a video: it takes at least one unit of a small picture.
	minIngestBytes = 64 << 10
)

// KeyTakenError says that a living publisher has the key. errors.Is(err, framering.ErrAlreadyExists).
type KeyTakenError struct {
	Key  string
	PID  uint64
	Path string // of its control socket; "" when it is not in the runtime folder that was asked for
}

func (e *KeyTakenError) Error() string {
	where := "perhaps with another --runtime-dir: keys are those of the whole host"
	if e.Path != "" {
		where = "at " + e.Path
	}
	return fmt.Sprintf("key %q is published by pid %d (%s): stop it, or choose another --key", e.Key, e.PID, where)
}

func (e *KeyTakenError) Unwrap() error { return framering.ErrAlreadyExists }

// check finds out what cannot work before the source is connected to: cameras count connections, some lock accounts.
func (in *Ingest) check(ctx context.Context) error {
	if _, err := framering.GroupID(in.o.Group); err != nil {
		return err
	}
	if err := framering.CheckRuntimeDir(in.o.RuntimeDir); err != nil {
		return err
	}
	if err := framering.CheckSocket(in.o.RuntimeDir, in.o.Key); err != nil {
		return err
	}
	if err := awaitKey(ctx, in.o.RuntimeDir, in.o.Key); err != nil {
		return err
	}
	if !in.o.NoAudio {
		var taken *KeyTakenError // matters when the source has audio
		if err := awaitKey(ctx, in.o.RuntimeDir, in.o.Key+AudioSuffix); err != nil && !errors.As(err, &taken) {
			return err
		}
	}
	return in.checkSpace()
}

// ShmBytes is how much of /dev/shm the publication takes: the rings of video and audio and a control block for each key. The pictures of
// a frame ring are not there, they are memory of their own (memfd) or the GPU's.
func (o IngestOptions) ShmBytes() int64 {
	var sum int64
	add := func(slots, bytes int) {
		n, err := packetring.Config{Slots: slots, DataSize: bytes}.Size()
		if err == nil { // else the ring is refused anyway
			sum += n + framering.ControlBytes
		}
	}
	add(cmp.Or(o.PacketSlots, defaultIngestSlots), cmp.Or(o.PacketBytes, defaultIngestBytes))
	if !o.NoAudio {
		add(defaultIngestSlots, audioBytes)
	}
	if o.Decode != nil { // another generation of the frame ring stands beside the one before for a moment
		sum += framering.ControlBytes
	}
	return sum
}

func (in *Ingest) checkSpace() error {
	free, total, err := shm.Free()
	if err != nil {
		return nil // creating the ring says what is wrong
	}
	keys := []string{in.o.Key}
	if !in.o.NoAudio {
		keys = append(keys, in.o.Key+AudioSuffix)
	}
	for _, key := range keys { // what a dead publisher has left is replaced
		for _, name := range []string{framering.ShmName(key), framering.PacketShmName(key)} {
			if st, err := os.Stat(shm.Dir + "/" + name); err == nil {
				free += st.Size()
			}
		}
	}
	if asked := in.o.ShmBytes(); free < asked {
		return &shm.SpaceError{Path: shm.Dir + "/" + framering.PacketShmName(in.o.Key), Asked: asked, Free: free, Total: total}
	}
	return nil
}

// awaitKey returns once key is free: a publisher that is shutting down is waited for, any other one is a *KeyTakenError.
func awaitKey(ctx context.Context, runtimeDir, key string) error {
	begun := time.Now()
	for {
		p, err := framering.Inspect(runtimeDir, key)
		switch {
		case errors.Is(err, os.ErrPermission):
			return fmt.Errorf("key %q belongs to another user: choose another --key: %w", key, err)
		case err != nil, !p.Alive:
			return nil // what is wrong with it shows when it is replaced
		}
		patience := takeOverGrace
		if p.Header.ShutDown {
			patience = takeOverPatience
		}
		if time.Since(begun) >= patience {
			taken := &KeyTakenError{Key: key, PID: p.Header.ProducerPID}
			if _, err := os.Lstat(p.SocketPath); err == nil {
				taken.Path = p.SocketPath
			}
			return taken
		}
		if err := sleep(ctx, takeOverPace); err != nil {
			return err
		}
	}
}

// checkRing says what no packet ring of a video can be.
func checkRing(slots, bytes int) error {
	if slots < 0 || slots > packetring.MaxSlots {
		return fmt.Errorf("--packet-slots %d: want 1 to %d: %w", slots, packetring.MaxSlots, framering.ErrInvalidArg)
	}
	if bytes != 0 && (bytes < minIngestBytes || bytes > math.MaxUint32) {
		return fmt.Errorf("--packet-bytes %d: want 64KiB to 4 GiB less a byte: %w", bytes, framering.ErrInvalidArg)
	}
	return nil
}
