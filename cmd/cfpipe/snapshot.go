package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/pipeline"
)

// snapshotOld is the age from which a picture is worth a warning: cameras send many a second.
const snapshotOld = 5 * time.Second

// oldPictureError: there is no picture as new as --max-age asks for. It is os.ErrDeadlineExceeded.
type oldPictureError struct {
	key         string
	age, maxAge time.Duration
}

func (e oldPictureError) Error() string {
	return fmt.Sprintf("snapshot of %s: the newest picture is %v old, older than --max-age %v", e.key, e.age.Round(10*time.Millisecond), e.maxAge)
}

func (oldPictureError) Unwrap() error { return os.ErrDeadlineExceeded }

func newSnapshotCommand(o *globalOptions) *cobra.Command {
	var s pipeline.SnapshotOptions
	var out string
	var asJSON bool
	var maxAge time.Duration
	c := &cobra.Command{
		Use:   "snapshot KEY -o FILE",
		Short: "Save the newest picture of a camera as JPEG or PNG",
		Long: `Snapshot takes the newest picture of KEY: from its frame ring, where that lies in host memory; from the publisher, which hands out
its newest frame where that lies on a GPU; else by decoding from the last keyframe in the packet ring (which is sooner done than CUDA
is started); else from frames in GPU memory. The file's name chooses the format (.jpg, .jpeg or .png); "-" writes a JPEG to standard
output. The file appears in one step, a reader never sees half of it. When the camera is silent the picture is an old one: see
--max-age.` + "\n" + waitStatusHelp,
		Example: "  cfpipe snapshot cam1 -o cam1.jpg\n  cfpipe snapshot cam1 -o - | curl -T - https://…",
		Args:    oneKey,
		RunE: func(cmd *cobra.Command, a []string) error {
			switch ext := strings.ToLower(filepath.Ext(out)); {
			case out == "-", ext == ".jpg", ext == ".jpeg":
				s.Format = av.JPEG
			case ext == ".png":
				s.Format = av.PNG
			case out == "":
				return usageError{fmt.Errorf("-o is missing (see %s --help)", cmd.CommandPath())}
			default:
				return usageError{fmt.Errorf("-o %q: the name must end in .jpg or .png", out)}
			}
			if s.Quality < 1 || s.Quality > 31 {
				return usageError{fmt.Errorf("--quality %d: want 1 (best) to 31", s.Quality)}
			}
			if out == "-" && isTerminal(cmd.OutOrStdout()) {
				return usageError{errBinary}
			}
			av.SetLogger(o.Logger)
			s.RuntimeDir, s.Key, s.Logger = o.RuntimeDir, a[0], o.Logger
			b, info, err := pipeline.Snapshot(cmd.Context(), s)
			if err != nil {
				return err
			}
			age := time.Since(time.Unix(0, info.PTS))
			if maxAge > 0 && age > maxAge {
				return oldPictureError{s.Key, age, maxAge}
			}
			if maxAge == 0 && age > snapshotOld {
				o.Logger.Warn("the newest picture is old: the camera is silent", "key", s.Key, "age", age.Round(time.Second))
			}
			about := cmd.OutOrStdout()
			if out == "-" {
				_, err = cmd.OutOrStdout().Write(b)
				about = cmd.ErrOrStderr()
			} else {
				err = writeWhole(out, b)
				var cause *fs.PathError
				if errors.As(err, &cause) { // of a name that nobody gave, and no missing input
					err = fmt.Errorf("write %s: %v", out, cause.Err) //nolint:errorlint // see above
				}
			}
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(about).Encode(map[string]any{
					"path": out, "bytes": len(b), "width": info.Width, "height": info.Height, "pts_ns": info.PTS, "age_seconds": age.Seconds(), "seq": info.Seq, "from": info.From,
				})
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVarP(&out, "output", "o", "", "file to write, or - for standard output")
	f.IntVar(&s.Quality, "quality", 3, "JPEG: 1 (best) to 31")
	f.DurationVar(&s.WaitForKey, "wait", 0, "how long to wait for KEY, and for a picture; 0 = not for KEY, 5s for a picture")
	f.DurationVar(&maxAge, "max-age", 0, "exit with status 4 when the newest picture is older; 0 = warn when it is older than 5s")
	f.IntVar(&s.Device, "device", 0,
		"GPU on which frames in GPU memory are read, where their publisher hands out none and the key has no packets to decode")
	f.BoolVar(&asJSON, "json", false, "print a line of JSON about the picture (to standard error with -o -)")
	return c
}

// writeWhole puts a file in its place in one step, and makes missing folders. Who may read it is the umask's to say.
func writeWhole(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+rand.Text()[:10])
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp)
	}
	return err
}
