// Package control holds the black-box tests of the control surface: the questions of engines, routers and operators
// to the files of .kvfs, and the commands that use these files. The tests are written against docs/control.md and run
// on real daemons, mounts and disks.
//
// A device that answers late, or not at all, is a file system of the test itself below the SSD tier (tests/harness/gate). Its reads
// wait until the test lets them go.
package control

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022)
	if harness.RaceEnabled {
		// A process with the race detector sleeps for a second before it exits, and the tests
		// run very many commands.
		os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
	}
	harness.Helper(askerHelper, asker)
	os.Exit(harness.Main(m))
}
