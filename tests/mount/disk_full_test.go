package mount

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskFull writes more than memory and disk hold together: both keep to
// their capacities, the disk evicts, no store fails, and what can be read is
// right (A31, G4).
func TestDiskFull(t *testing.T) {
	d := diskMount(t, harness.Options{Disk: "64MiB", MemorySize: "64MiB", Flags: []string{"--disk-slab-size", "4MiB"}})
	blocks := numbered(d.Dir, 150, 2*mib)
	for _, p := range paths(blocks) {
		store(t, p, blocks[p])
		if s := d.Status().Tier(t, "disk"); s.UsedBytes > 64*mib {
			t.Fatalf("disk: %d bytes used of 64 MiB", s.UsedBytes)
		}
	}
	waitDrained(t, d)
	found := survey(t, blocks)
	s := diskStatus(t, d)
	t.Logf("%d of %d blocks are left; %+v", found, len(blocks), s)
	if found < 20 {
		t.Errorf("%d blocks of 2 MiB are left in 64 + 64 MiB", found)
	}
	if s.Evicted == 0 && s.SkippedNoSpace == 0 {
		t.Errorf("300 MiB in 64 MiB, and nothing was evicted or skipped: %+v", s)
	}
	var used int64
	slabs, _ := filepath.Glob(filepath.Join(d.DiskDir, "*"))
	for _, f := range slabs {
		st := stat(t, f)
		used += st.Blocks * 512
	}
	if used > 70*mib {
		t.Errorf("the directory takes %d bytes on disk, its size is 64 MiB: %s", used, strings.Join(slabs, " "))
	}
	d.Stop()
	fsck(t, d.DiskDir, false, 0)
}
