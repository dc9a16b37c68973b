package mount

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

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

// TestDiskTemporary shows that a block is not cascaded under its temporary name
// but once it has its own.
func TestDiskTemporary(t *testing.T) {
	d := diskMount(t, harness.Options{})
	p := d.Path("x")
	put(t, p+".tmp", pattern("x", mib))
	store(t, d.Path("other"), pattern("other", mib))
	waitOnDisk(t, d.Path("other"))
	waitDrained(t, d)
	if s := diskStatus(t, d); s.Blocks != 1 || s.Cascaded != 1 {
		t.Errorf("on disk: %d blocks, %d cascaded, want 1: the temporary name must wait", s.Blocks, s.Cascaded)
	}
	rename(t, p+".tmp", p)
	waitOnDisk(t, p)
	wantBytes(t, p, pattern("x", mib))
}

// TestDiskPrimaryFirst shows that what is in memory is served from there: a hot
// open asks nothing of the disk (A16).
func TestDiskPrimaryFirst(t *testing.T) {
	d := diskMount(t, harness.Options{})
	blocks := numbered(d.Dir, 10, 256*kib)
	writeAll(t, blocks)
	waitOnDisk(t, paths(blocks)...)
	before := diskStatus(t, d)
	for range 3 {
		wantBlocks(t, blocks)
	}
	after := diskStatus(t, d)
	if after.Loaded != before.Loaded || after.Promoted != before.Promoted || after.Batches != before.Batches {
		t.Errorf("hot reads used the disk: before %+v, after %+v", before, after)
	}
}

// TestDiskEmpty shows that the tier's edges are no errors: nothing to evict, an
// empty directory, no block at all across restarts (C18).
func TestDiskEmpty(t *testing.T) {
	d := diskMount(t, harness.Options{})
	evictMemory(t, d)
	mkdir(t, d.Path("empty"))
	_, stderr, code := harness.Kvfs(t, "evict", "--tier", "memory", d.Path("empty"))
	if code != 0 {
		t.Errorf("evict of an empty directory: exit code %d, %s", code, stderr)
	}
	d.Restart()
	if s := d.Status().Tier(t, "disk"); s.Blocks != 0 || s.State != "online" {
		t.Errorf("status of an empty disk tier after a restart: %+v", s)
	}
	d.Stop()
	fsck(t, d.DiskDir, false, 0)
	harness.Kvfs(t, "umount", d.Dir) // nothing mounted: must not hang
}

// TestDiskSecondDirectory shows that a tier over two directories uses both, and
// finds its blocks again in both after a restart.
func TestDiskSecondDirectory(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	second := harness.NewDiskDir(t, nil)
	d := diskMount(t, harness.Options{Disk: "128MiB", Flags: []string{"--disk", "path=" + second + ",size=128MiB", "--disk-slab-size", "4MiB"}})
	blocks := numbered(d.Dir, 40, mib)
	writeAll(t, blocks)
	waitOnDisk(t, paths(blocks)...)
	d.Restart()
	wantBlocks(t, blocks)
	if got := d.Status().Tier(t, "disk").CapacityBytes; got != 256*mib {
		t.Errorf("capacity: got %d, want 256 MiB", got)
	}
	d.Stop()
	for _, dir := range []string{d.DiskDir, second} {
		slabs, err := filepath.Glob(filepath.Join(dir, "slab-*"))
		if err != nil || len(slabs) == 0 {
			t.Errorf("%s: %d slabs, %v; want some in both directories", dir, len(slabs), err)
		}
		fsck(t, dir, false, 0)
	}
}

// TestDiskLookupPromotion shows --promotion-on lookup: a positive look-up
// brings the block into memory, without an open.
func TestDiskLookupPromotion(t *testing.T) {
	d := diskMount(t, harness.Options{Flags: []string{"--promotion-on", "lookup", "--mount-entry-timeout", "0s", "--mount-attr-timeout", "0s"}})
	p := d.Path("x")
	store(t, p, pattern(p, mib))
	waitOnDisk(t, p)
	evictMemory(t, d)
	if got := d.Status().Tier(t, "memory").Blocks; got != 0 { // asking for the block by its name would promote it
		t.Fatalf("%d blocks in memory, want none", got)
	}
	var st unix.Stat_t
	harness.Poll(t, "the block is in memory after a stat", func() bool {
		return unix.Stat(p, &st) == nil && tierOf(p) == "memory,disk"
	})
	wantBytes(t, p, pattern(p, mib))
	// A look-up of what does not exist promotes nothing and is a miss.
	wantAbsent(t, harness.Self(), d.Path("y"))
}

// TestDiskHotDuringCascade shows that readers see every block from the moment of
// its commit on, during a cascade, too.
func TestDiskHotDuringCascade(t *testing.T) {
	d := diskMount(t, harness.Options{})
	blocks := numbered(d.Dir, 64, mib)
	all := paths(blocks)
	parallel(4, func(w int) {
		for i := w; i < len(all); i += 4 {
			tmp := all[i] + ".tmp"
			if err := os.WriteFile(tmp, blocks[all[i]], 0o644); err != nil {
				t.Errorf("write: %v", err)
				return
			}
			if err := os.Rename(tmp, all[i]); err != nil {
				t.Errorf("rename: %v", err)
				return
			}
			for _, p := range all[w : i+1] {
				if (slices.Index(all, p)-w)%4 != 0 {
					continue
				}
				got, err := readWhole(p)
				if err != nil {
					t.Errorf("read %s: %s", filepath.Base(p), errnoName(err))
					return
				}
				sameBytes(t, filepath.Base(p), got, blocks[p])
			}
		}
	})
}
