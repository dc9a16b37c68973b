package mount

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskSizes fills the SSD with blocks of one size and goes on with blocks of another, as a new model
// does: the old ones removed or not used since, with and without a restart in between. All new blocks
// that fit are on the SSD at the end, and have their bytes (A28).
func TestDiskSizes(t *testing.T) {
	for _, row := range []struct {
		name             string
		old, oldN        int
		size, n          int
		removed, restart bool
	}{
		{"smaller, removed", mib, 60, 64_000, 500, true, false},
		{"smaller, cold", mib, 60, 64_000, 500, false, false},
		{"smaller, removed, restart", mib, 60, 64_000, 500, true, true},
		{"larger, removed", 100_000, 600, mib, 55, true, false},
		{"larger, cold, restart", 100_000, 600, mib, 55, false, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := diskMount(t, harness.Options{Disk: "64MiB"})
			must(t, "mkdir", os.Mkdir(d.Path("old"), 0o755))
			blocks := numbered(d.Path("old"), row.oldN, row.old)
			writeAll(t, blocks)
			waitDrained(t, d)
			if row.removed {
				for p := range blocks {
					must(t, "remove", os.Remove(p))
				}
				harness.Poll(t, "the SSD is empty", func() bool { return d.Status().Tier(t, "disk").UsedBytes == 0 })
			}
			if row.restart {
				d.Restart()
			}
			must(t, "mkdir", os.Mkdir(d.Path("new"), 0o755))
			blocks = numbered(d.Path("new"), row.n, row.size)
			for part := range slices.Chunk(paths(blocks), 50) {
				for _, p := range part {
					store(t, p, blocks[p])
				}
				waitDrained(t, d)
			}
			on := 0
			for p := range blocks {
				if strings.Contains(tierOf(p), "disk") {
					on++
				}
			}
			if on != row.n {
				t.Errorf("%d of %d new blocks are on the SSD: %+v", on, row.n, diskStatus(t, d))
			}
			evictMemory(t, d)
			wantBlocks(t, blocks)
		})
	}
}
