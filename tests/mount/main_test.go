// Package mount holds the black-box tests of a kvfs mount: the contract with
// inference engines, row by row, their recorded sequences of system calls,
// POSIX conformance, crashes, and faulty inputs.
//
// The rows of a table test are named as "<priority> <property> (<clients>)":
// P0 breaks a main client, P1 another client or a mode that is not the default,
// P2 need only fail cleanly.
//
// KVFS_TEST_REFERENCE=1 runs what is plain POSIX on tmpfs, to check the tests.
package mount

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022)
	harness.Helper("private-dev", privateDev)
	harness.Helper(differHelper, differMain)
	os.Exit(harness.Main(m))
}
