package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/packetring"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// An event whose reading fails goes on behind what is written: nothing is written twice, and what is left out ends at a keyframe.
func TestRecordEventResumes(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	dir, key := place(t)
	n := publishNumbered(t, dir, key, 0)
	n.older(t, 2*time.Second)
	var files []Recorded
	over := make(chan trigger.Event, 1)
	ready := make(chan struct{})
	r := &recorder{
		log: slog.New(slog.DiscardHandler),
		o: RecordOptions{
			RuntimeDir: dir, Key: key, Format: mux.FMP4, Pre: time.Second, NoAudio: true, WaitForKey: 5 * time.Second, Counter: &RecordCounter{},
			OnEvent: &EventOptions{Post: 6 * time.Second, Ready: func() { close(ready) }},
			Done: func(f Recorded) {
				files = append(files, f)
				if f.Event.End != nil {
					over <- *f.Event
				}
			},
		},
	}
	var err error
	r.pattern, err = mux.ParsePattern(filepath.Join(t.TempDir(), "%s-%f.mp4"), key)
	require.NoError(t, err)
	read := 0
	r.on.next = func(ctx context.Context, in *interleaver) (item, error) {
		if read++; read == 8 || read == 80 || read == 150 {
			return item{}, errors.New("the ring cannot be read")
		}
		return in.next(ctx)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.events(ctx) }()
	<-ready
	_, err = trigger.Send(ctx, dir, key, trigger.Request{Action: trigger.Momentary})
	require.NoError(t, err)
	event := <-over
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	n.stop()
	require.Len(t, files, 4)
	last, units := -1, n.published()
	for _, f := range files {
		numbers := n.fileNumbers(t, f.Path, false)
		require.Greater(t, numbers[0], last, "nothing is written twice")
		require.True(t, units[numbers[0]].key)
		for i := last + 1; last >= 0 && i < numbers[0]; i++ {
			require.False(t, units[i].key, "it goes on with the next keyframe")
		}
		last = numbers[len(numbers)-1]
		requireNumbers(t, numbers, numbers[0], last)
	}
	require.Equal(t, n.lastAt(*event.End), last)
	require.Equal(t, n.keyAt(t, event.Start), n.fileNumbers(t, files[0].Path, false)[0])
}

// A clock that was set back does not keep an event from going on.
func TestResumes(t *testing.T) {
	at := func(dts time.Duration, flags packetring.Flags) item {
		return item{Packet: packetring.Packet{DTS: int64(dts), Flags: flags}}
	}
	written := int64(time.Hour)
	require.False(t, resumes(at(time.Hour, packetring.FlagKey), written))
	require.False(t, resumes(at(time.Hour+1, 0), written))
	require.True(t, resumes(at(time.Hour+1, packetring.FlagKey), written))
	require.True(t, resumes(at(time.Minute, packetring.FlagKey), written))
}

// What no attempt can mend ends a recorder, one that waits for events too.
func TestRecordCannotHold(t *testing.T) {
	for _, on := range []*EventOptions{nil, {}} {
		r := &recorder{o: RecordOptions{Key: "k", Format: mux.TS, OnEvent: on, Counter: &RecordCounter{}}, log: slog.New(slog.DiscardHandler), described: true}
		r.video = media.Track{Kind: media.Video, CodecID: media.VP9}
		made := 0
		r.segmenter = mux.NewSegmenter(mux.SegmenterOptions{Format: mux.TS, Create: func(time.Time) (mux.File, error) {
			made++
			return nil, errors.New("a file was made")
		}}, r.video, nil)
		now := time.Now().UnixNano()
		err := r.write(item{Packet: packetring.Packet{PTS: now, DTS: now, Flags: packetring.FlagKey, Data: []byte{1}}, Track: videoTrack})
		require.ErrorIs(t, err, mux.ErrCannotHold)
		require.Zero(t, made)
	}
}
