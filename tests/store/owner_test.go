package store

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// serve starts an owner.
func serve(tb testing.TB, flags ...string) *harness.Daemon {
	tb.Helper()
	return harness.Serve(tb, harness.Options{MemorySize: "64MiB", Flags: flags})
}

// patient are the flags of a mount whose operations wait for the next owner as long as a test does.
var patient = []string{"--store-owner-timeout", "300s"}

// statusOf asks an owner over its socket.
func statusOf(tb testing.TB, o *harness.Daemon) harness.Status {
	tb.Helper()
	return harness.StatusOf(tb, "--store", o.Socket)
}

// block returns the bytes of block i.
func block(i int) []byte {
	b := make([]byte, 64<<10)
	for j := range b {
		b[j] = byte(i*31 + j + j>>8)
	}
	return b
}

// write commits block i below a mount as an engine does: a temporary file, then rename.
func write(tb testing.TB, d *harness.Daemon, i int) {
	tb.Helper()
	name := d.Path("g", fmt.Sprintf("%04d", i))
	must(tb, os.MkdirAll(d.Path("g"), 0o755))
	must(tb, os.WriteFile(name+".tmp", block(i), 0o644))
	must(tb, os.Rename(name+".tmp", name))
}

// check reads block i.
func check(tb testing.TB, d *harness.Daemon, i int) {
	tb.Helper()
	got, err := os.ReadFile(d.Path("g", fmt.Sprintf("%04d", i)))
	if err != nil {
		tb.Errorf("block %d: %v", i, err)
	} else if string(got) != string(block(i)) {
		tb.Errorf("block %d: wrong bytes", i)
	}
}
