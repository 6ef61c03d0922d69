package faults

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// frameTime is that of the built-in camera.
const frameTime = 40

// frames are the times (Unix ms) of all pictures in the files of a camera, whose names are %s-%f, in order and each once: files that
// overlap hold the same pictures.
func (r *rig) frames(name string, without ...string) (list []int64) {
	r.t.Helper()
	files := r.files(name)
	require.NotEmpty(r.t, files)
	for _, f := range files {
		info, err := os.Stat(f)
		require.NoError(r.t, err)
		if info.Size() < 512 || slices.Contains(without, f) { // killed before the first fragment was whole: there is the file type alone
			continue
		}
		out, err := exec.Command(testenv.NeedTool(r.t, "ffprobe"), "-v", "error", "-select_streams", "v",
			"-show_entries", "packet=pts_time", "-of", "csv=p=0",
			f).Output()
		require.NoError(r.t, err, f)
		base := strings.Split(strings.TrimSuffix(filepath.Base(f), ".mp4"), "-")
		sec, err := strconv.ParseInt(base[0], 10, 64)
		require.NoError(r.t, err)
		ms, err := strconv.ParseInt(base[1], 10, 64)
		require.NoError(r.t, err)
		var times []float64
		for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
			s, err := strconv.ParseFloat(strings.Trim(lines.Text(), ", "), 64)
			require.NoError(r.t, err, "%s: %q", f, lines.Text())
			times = append(times, s)
		}
		for _, s := range times {
			list = append(list, 1000*sec+ms+int64((s-times[0])*1000+0.5))
		}
	}
	slices.Sort(list)
	return slices.CompactFunc(list, func(a, b int64) bool { return max(a-b, b-a) < frameTime/2 })
}

// files are all files of a camera.
func (r *rig) files(name string) []string {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.dir, "rec", r.key(name), "*.mp4"))
	require.NoError(r.t, err)
	return files
}

// requireNoHole checks that no more than so many pictures are missing in a row.
func requireNoHole(t *testing.T, list []int64, most int) {
	t.Helper()
	require.NotEmpty(t, list)
	for i := 1; i < len(list); i++ {
		missing := int((list[i]-list[i-1]+frameTime/2)/frameTime) - 1
		require.LessOrEqual(t, missing, most, "pictures missing after %v", time.UnixMilli(list[i-1]))
	}
}
