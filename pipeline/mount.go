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
	return fmt.Sprintf("key %q: its publisher answers, but %s/%s is not here: this process has another %[2]s than the publisher (see findmnt %[2]s). %[4]s",
		e.Key, shm.Dir, e.Name, shareMount)
}

const shareMount = "Share the publisher's: docker -v /dev/shm:/dev/shm or one tmpfs volume for all, Kubernetes one emptyDir with medium Memory"

// ListElsewhere returns the keys that ListKeys cannot see, sorted: their publishers answer in runtimeDir, and their memory is not where this process
// looks. Nothing else is known of them; Error is that of a MountError. It blocks for 200 ms where there are such keys.
func ListElsewhere(runtimeDir string) ([]KeyStatus, error) {
	keys, err := framering.Elsewhere(runtimeDir)
	var list []KeyStatus
	for _, key := range keys {
		list = append(list, KeyStatus{
			Key: key, Alive: true, Elsewhere: true, Socket: framering.SocketPath(runtimeDir, key), Readers: []ReaderStatus{}, Error: mountError(key).Error(),
		})
	}
	return list, err
}

func mountError(key string) *MountError { return &MountError{Key: key, Name: framering.ShmName(key)} }

// ElsewhereText says in one line that so many keys are ListElsewhere's, and what to do.
func ElsewhereText(keys int) string {
	return fmt.Sprintf("the publishers of %d keys answer, but their rings are not here: this process has another %s than they (see findmnt %[2]s). %s", keys, shm.Dir, shareMount)
}

// mountFinding: sockets that are shared and memory that is not look like no publisher at all.
func mountFinding(runtimeDir string) Finding {
	f := Finding{Name: "shared rings", Status: FindingOK, Detail: "every publisher that answers has its rings here"}
	switch keys, err := framering.Elsewhere(runtimeDir); {
	case err != nil:
		f.Status, f.Detail, f.Remedy = FindingWarn, err.Error(), "run cfpipe doctor as a user who may read the folder"
	case len(keys) > 0:
		f.Status, f.Remedy = FindingFail, shareMount
		f.Detail = fmt.Sprintf("%d publishers answer in %s, such as %s, and their rings are not in this %s: the two are of different mounts (see findmnt %[4]s)",
			len(keys), framering.RuntimeDir(runtimeDir), keys[0], shm.Dir)
	}
	return f
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
