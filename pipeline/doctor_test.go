package pipeline

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDoctorNamesARemedyForEveryFault(t *testing.T) {
	for _, f := range Doctor(DoctorOptions{RuntimeDir: t.TempDir()}) {
		require.NotEmpty(t, f.Name)
		require.NotEmpty(t, f.Detail, f.Name)
		if f.Status != FindingOK {
			require.NotEmpty(t, f.Remedy, f.Name)
		}
	}
}

func TestDoctorRuntimeDir(t *testing.T) {
	dir := t.TempDir()
	require.Equal(t, FindingOK, runtimeDirFinding(dir).Status)
	require.Equal(t, FindingOK, runtimeDirFinding(filepath.Join(dir, "not-yet")).Status)

	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	f := runtimeDirFinding(file)
	require.Equal(t, FindingFail, f.Status)
	require.Contains(t, f.Detail, "not a folder")
	require.Contains(t, f.Remedy, "--runtime-dir")

	f = runtimeDirFinding(filepath.Join(dir, "missing", "deep"))
	require.Equal(t, FindingFail, f.Status)
}

func TestDoctorSharedMemoryAbsent(t *testing.T) {
	f := shmFinding(filepath.Join(t.TempDir(), "no"))
	require.Equal(t, FindingFail, f.Status)
	require.Contains(t, f.Remedy, "tmpfs")
}

func TestDoctorKernelVersion(t *testing.T) {
	for _, c := range []struct {
		release string
		status  FindingStatus
	}{
		{"6.18.44-fc", FindingOK}, {"5.16.0", FindingOK}, {"5.15.0-91-generic", FindingWarn}, {"4.4.0", FindingWarn}, {"6.1-rc1", FindingOK},
	} {
		proc := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(proc, "sys/kernel"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(proc, "sys/kernel/osrelease"), []byte(c.release+"\n"), 0o600))
		require.Equal(t, c.status, kernelFinding(proc).Status, c.release)
	}
}

func TestDoctorUDPBuffers(t *testing.T) {
	proc := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "sys/net/core"), 0o755))
	path := filepath.Join(proc, "sys/net/core/rmem_max")
	require.NoError(t, os.WriteFile(path, []byte("212992\n"), 0o600))
	require.Equal(t, FindingWarn, udpFinding(proc).Status)
	require.NoError(t, os.WriteFile(path, []byte("8388608\n"), 0o600))
	require.Equal(t, FindingOK, udpFinding(proc).Status)
}
