// Package takeover holds the black-box tests of kvfs mount --takeover: a daemon replaces another
// one of the same mount while that is in use.
package takeover

import (
	"os"
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
	os.Exit(harness.Main(m))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
