package mount

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskRoundTrip shows the whole way of a block: memory, cascaded to disk,
// evicted from memory, promoted by an open, and each time the same bytes (A2,
// A13, A14).
func TestDiskRoundTrip(t *testing.T) {
	d := diskMount(t, harness.Options{})
	blocks := sizedBlocks(d.Dir)
	writeAll(t, blocks)
	for p, b := range blocks {
		waitOnDisk(t, p)
		wantTier(t, p, "memory,disk")
		wantBytes(t, p, b)
	}
	s := d.Status()
	disk := s.Tier(t, "disk")
	if disk.State != "online" || disk.Blocks != int64(len(blocks)) || disk.UsedBytes == 0 || disk.CapacityBytes == 0 {
		t.Errorf("status of the disk tier: got %+v, want %d blocks online", disk, len(blocks))
	}

	evictMemory(t, d)
	if got := d.Status().Tier(t, "memory").Blocks; got != 0 {
		t.Errorf("blocks in memory after the eviction: got %d, want 0", got)
	}
	for p, b := range blocks {
		wantTier(t, p, "disk")
		wantBytes(t, p, b)
		wantTier(t, p, "memory,disk")
		wantBytes(t, p, b)
	}
	after := diskStatus(t, d)
	if after.Promoted != uint64(len(blocks)) || after.PromoteFailed+after.PromoteCorrupt+after.PromoteAbsent != 0 {
		t.Errorf("promotions: got %+v, want %d, none failed", after, len(blocks))
	}
	if got := d.Status().Secondary(t, "disk").Stored; got != uint64(len(blocks)) {
		t.Errorf("stored on disk: got %d blocks, want %d, none a second time", got, len(blocks))
	}
	// Once more, now that the disk copies are known to be good: nothing is
	// moved by an eviction of what the disk has already.
	evictMemory(t, d)
	wantBlocks(t, blocks)
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	fsck(t, d.DiskDir, false, 0)
}
