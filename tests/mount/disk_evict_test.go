package mount

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskEvictFromDisk shows that the only copy on disk stays too without
// --force, and is gone for good with it.
func TestDiskEvictFromDisk(t *testing.T) {
	d := diskMount(t, harness.Options{})
	p := coldOne(t, d, "x", 100_000)
	harness.Kvfs(t, "evict", "--tier", "disk", p)
	wantTier(t, p, "disk")
	harness.Kvfs(t, "evict", "--tier", "disk", "--force", p)
	wantAbsent(t, harness.Self(), p)
	d.Restart()
	wantAbsent(t, harness.Self(), p)
}
