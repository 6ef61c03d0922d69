package site

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

const (
	// strayTime is how long --check looks for recordings of no camera: a folder may be that of years, and on a slow disk.
	strayTime = 10 * time.Second
	// maxStrays is how many of them a warning names.
	maxStrays = 10
)

// Strays warns of files that lie where the site's recordings do, under keys of cameras that the file does not record: of one that was renamed, taken
// out or switched off. It reads the folders, for 10 s at most.
func (c *Config) Strays(ctx context.Context) (list []string) {
	ctx, cancel := context.WithTimeout(ctx, strayTime)
	defer cancel()
	found, err := c.strays(ctx)
	if list = tellStrays(found); errors.Is(err, context.DeadlineExceeded) {
		list = append(list, fmt.Sprintf("the folders were not looked through for recordings of other cameras within %v", strayTime))
	}
	return list
}

// strays looks below the folders of all names that the file has, those of defaults included.
func (c *Config) strays(ctx context.Context) ([]recordings.Stray, error) {
	var patterns []string
	files := c.fileSets()
	for _, f := range files {
		patterns = append(patterns, f.out)
	}
	for _, r := range []*Record{c.Defaults.Record, c.Defaults.Events} {
		if r != nil {
			patterns = append(patterns, r.Out)
		}
	}
	return recordings.Strays(ctx, patterns, placesOf(files))
}

// tellStrays is a line for each folder.
func tellStrays(found []recordings.Stray) (list []string) {
	for len(found) > 0 {
		var names []string
		dir, n := found[0].Dir, 0
		for ; n < len(found) && found[n].Dir == dir; n++ {
			if n < maxStrays {
				names = append(names, fmt.Sprintf("%s (%d files, %d MB)", found[n].Key, found[n].Files, found[n].Bytes/1e6))
			}
		}
		if n > maxStrays {
			names = append(names, fmt.Sprintf("%d more", n-maxStrays))
		}
		list = append(list, fmt.Sprintf("%s holds recordings that no camera of this file makes: %s; no retention removes or counts them, and recordings list finds "+
			"them with --dir alone: delete them, or give them the key of a camera by renaming, where no other site records them", dir, strings.Join(names, ", ")))
		found = found[n:]
	}
	return list
}

// lookForStrays tells the log of them. It may take long, and reads beside everything else: the context of the search before ends with this call.
func (s *Site) lookForStrays(c *Config) {
	if s.endStrays != nil {
		s.endStrays()
	}
	var ctx context.Context
	ctx, s.endStrays = context.WithCancel(context.Background())
	go func() {
		found, err := c.strays(ctx)
		if err != nil {
			return
		}
		for _, w := range tellStrays(found) {
			s.log.Warn(w)
		}
	}()
}
