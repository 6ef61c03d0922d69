// Package clients_test runs the tests of the clients in other languages, against this build's cfpipe.
package clients_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestPython(t *testing.T) {
	testenv.Watchdog(t, 3*time.Minute)
	interpreter, bin := testenv.Python(t), testenv.Binary(t)
	if testenv.Strict() {
		out, err := exec.Command(interpreter, "-c", "import numpy").CombinedOutput()
		require.NoError(t, err, "NumPy is missing: %s", out)
	}
	dir, err := filepath.Abs("python/tests")
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, "test_*.py"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	lib := filepath.Join(testenv.StandInCUDA(t), "libcuda.so.1")
	ran := regexp.MustCompile(`(?m)^Ran ([1-9]\d*) tests? in`)
	for _, f := range files {
		name := filepath.Base(f)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Warnings are errors: a socket or file that is left to the garbage collector is one.
			cmd := exec.Command(interpreter, "-X", "dev", "-W", "error", "-B", "-m", "unittest", "-v", name)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "CFPIPE_BIN="+bin, "CFPIPE_STANDIN_CUDA="+lib)
			p := testenv.StartCmd(t, cmd)
			require.NoError(t, p.WaitFor(t, 2*time.Minute))
			require.Regexp(t, ran, p.Stderr())
			require.NotContains(t, p.Stderr(), "Exception ignored")
		})
	}
}

// The package names no version of Python that it does not run on: its sources compile under the grammar of 3.9.
func TestPythonGrammar(t *testing.T) {
	script := `import ast, pathlib, sys
for f in pathlib.Path("python/src/cfpipe").glob("*.py"):
    ast.parse(f.read_text(), str(f), feature_version=(3, 9))
    print(f)`
	out, err := exec.Command(testenv.Python(t), "-c", script).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "_packets.py")
}
