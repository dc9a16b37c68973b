// Package run holds the black-box tests of kvfs run: real commands beside real
// mounts, with the signals, terminals and deaths that they meet.
package run

import (
	"os"
	"os/signal"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

func TestMain(m *testing.M) {
	unix.Umask(0o022)
	if harness.RaceEnabled {
		// A process with the race detector sleeps for a second before it exits.
		os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
	}
	if os.Getenv("KVFS_TEST_HELPER") == "" {
		for _, s := range []unix.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT} {
			if signal.Ignored(s) { // as nohup has it: a program that is started ignores none that this process takes
				signal.Notify(make(chan os.Signal, 1), s)
			}
		}
	}
	harness.Helper(targetHelper, target)
	harness.Helper(holderHelper, holder)
	os.Exit(harness.Main(m))
}
