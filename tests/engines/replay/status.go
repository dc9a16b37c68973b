package replay

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// Summary is what a daemon says about the opens that it has served, by the tier
// that had the block.
type Summary struct {
	MemoryKeys, DiskKeys, FailedKeys int64
	BytesByTier                      map[string]int64
}

// Counters are those of its engine that the replays look at.
type Counters struct {
	Evicted, Lost, NoSpace, Poisoned, Adopted int64
}

// Figures returns both.
func Figures(tb testing.TB, d *harness.Daemon) (Summary, Counters) {
	tb.Helper()
	b, err := os.ReadFile(d.Path(".kvfs", "status"))
	if err != nil {
		tb.Fatal(err)
	}
	var s struct {
		Summary  Summary  `json:"summary"`
		Counters Counters `json:"counters"`
	}
	if err := json.Unmarshal(b, &s); err != nil {
		tb.Fatalf("status: %v\n%s", err, b)
	}
	return s.Summary, s.Counters
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
