package pipeline

import (
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
	path := shm.Dir + "/" + framering.PacketShmName(in.o.Key)
	free, total, err := shm.Free()
	if st, serr := os.Stat(path); serr == nil {
		free += st.Size() // a dead publisher's, which is replaced
	}
	if err == nil && free < int64(in.o.PacketBytes) {
		return &shm.SpaceError{Path: path, Asked: int64(in.o.PacketBytes), Free: free, Total: total}
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
