package testenv

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// FFmpeg runs the distribution's ffmpeg, which shares no code with the one that is linked, and returns what it writes to standard output.
func FFmpeg(t testing.TB, arg ...string) []byte {
	t.Helper()
	cmd := exec.Command(NeedTool(t, "ffmpeg"), append([]string{"-nostdin", "-v", "error", "-y"}, arg...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("ffmpeg %s: %v\n%s", strings.Join(arg, " "), err, stderr.String())
	}
	return out
}
