package replay

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// Figures returns the figures of a daemon: the opens that it has served, and its counters.
func Figures(tb testing.TB, d *harness.Daemon) (harness.StatusReads, harness.StatusCounters) {
	tb.Helper()
	s := d.Status()
	return s.Reads, s.Counters
}

// Settle waits until nothing waits to be copied to the SSD.
func Settle(tb testing.TB, d *harness.Daemon) {
	tb.Helper()
	harness.Poll(tb, "the copies to the SSD are made", func() bool {
		s := d.Status().Secondary(tb, "disk")
		return s.QueuedBlocks == 0 && s.QueuedBytes == 0
	})
}

// Evict drops from memory what the SSD has too.
func Evict(tb testing.TB, d *harness.Daemon) {
	tb.Helper()
	out, errs, code := harness.Kvfs(tb, "evict", "--tier", "memory", "--all", d.Dir)
	if code != 0 {
		tb.Fatalf("kvfs evict: exit code %d\n%s%s", code, out, errs)
	}
}
