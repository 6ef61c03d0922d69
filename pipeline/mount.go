package pipeline

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
)

// MountError says that a key's publisher lives and answers, and that its memory is not where this process looks: the two have
// different file systems on /dev/shm, as containers have unless told otherwise.
type MountError struct {
	Key  string
	Name string // of the ring, directly in /dev/shm
}

func (e *MountError) Error() string {
	return fmt.Sprintf("key %q: its publisher answers, but %s/%s is not here: this process has another %s than the publisher (see findmnt %[2]s). "+
		"Share the publisher's: docker -v /dev/shm:/dev/shm or one tmpfs volume for all, Kubernetes one emptyDir with medium Memory",
		e.Key, shm.Dir, e.Name, shm.Dir)
}

// ringMissing is how long a ring may be missing while its publisher's connection stands: one that ends removes its files and
// its connection a moment apart.
const ringMissing = 200 * time.Millisecond

// explainMissing turns the error of opening a ring into a MountError where that is what it means.
func explainMissing(control *framering.Subscriber, name string, err error) error {
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	select {
	case <-control.Done():
		return err
	case <-time.After(ringMissing):
	}
	if _, serr := os.Lstat(shm.Dir + "/" + name); !errors.Is(serr, os.ErrNotExist) {
		return err // come meanwhile: the next attempt finds it
	}
	return &MountError{Key: control.Key, Name: name}
}
