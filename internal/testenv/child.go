package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// roleVar names what a test binary is to be in place of a run of its tests.
const roleVar = "CFPIPE_TEST_ROLE"

// Roles are what a test binary can be as its own child process: functions of the child's arguments. An error ends it with status 1.
type Roles map[string]func(args []string) error

// Main is the package's TestMain: it plays the role that a test has started this process for, else it runs the tests.
func (r Roles) Main(m *testing.M) {
	role := os.Getenv(roleVar)
	if role == "" {
		os.Exit(m.Run())
	}
	play, ok := r[role]
	if !ok {
		fmt.Fprintf(os.Stderr, "there is no role %q\n", role)
		os.Exit(2)
	}
	if err := play(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Child is the command that runs this test binary in a role, for StartCmd. Its package's TestMain must be Roles.Main.
func Child(role string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	return cmd
}
