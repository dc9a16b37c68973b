// Package store holds the black-box tests of mode standalone-store: one owner, kvfs serve, and
// mounts that attach to it (B1, B30). Owners and mounts are real processes; they are killed and
// started again while the mounts are in use.
package store

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
	harness.Helper(containerHelper, containerMain)
	harness.Helper(insideHelper, insideMain)
	os.Exit(harness.Main(m))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
