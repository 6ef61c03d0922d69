package testenv

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// StandInCUDA builds the stand-in for the CUDA driver, whose GPU memory is files, and returns the folder of its libcuda.so.1. A process
// that has it as LD_LIBRARY_PATH finds a GPU.
func StandInCUDA(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(Root(t), "cudavmm/testdata/libcuda.c")
	out, err := exec.Command(NeedTool(t, "cc"), "-shared", "-fPIC", "-O2", "-Wall", "-o", filepath.Join(dir, "libcuda.so.1"), source).CombinedOutput()
	if err != nil {
		t.Fatalf("build the stand-in for libcuda: %v\n%s", err, out)
	}
	return dir
}
