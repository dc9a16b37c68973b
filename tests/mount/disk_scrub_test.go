package mount

import (
	"fmt"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskCorruptCounted flips a bit below a running daemon: the reader gets a
// miss, the copy is dropped, and it is counted and logged with key and slot; a
// block that memory holds too stays good.
func TestDiskCorruptCounted(t *testing.T) {
	d := diskMount(t, harness.Options{Disk: "64MiB", Flags: []string{"--disk-slab-size", "4MiB", "--disk-scrub-rate", "0"}})
	for i, size := range []int{5000, 100_000, 300_000, 3 * mib} { // staged, and straight into memory
		corruptOne(t, d, size, uint64(i+1))
	}
}

func corruptOne(t *testing.T, d *harness.Daemon, size int, sofar uint64) {
	t.Helper()
	blocks := numbered(d.Path(fmt.Sprint(size)), 6, size)
	cold(t, d, blocks)
	all := paths(blocks)
	bad, hot := all[2], all[4]
	wantBytes(t, hot, blocks[hot])
	flipOnDisk(t, d.DiskDir, blocks[bad])
	flipOnDisk(t, d.DiskDir, blocks[hot])
	_, err := readWhole(bad)
	wantErrno(t, "read of the damaged block", err, unix.ENOENT)
	wantAbsent(t, harness.Self(), bad)
	s := diskStatus(t, d)
	if s.Corrupt != sofar || s.PromoteCorrupt != sofar {
		t.Errorf("blocks of %d bytes: corrupt: %d in the tier, %d in promotions, want %d", size, s.Corrupt, s.PromoteCorrupt, sofar)
	}
	wantInLog(t, d.LastLog(), filepath.Base(bad), "slot")
	wantBytes(t, hot, blocks[hot])
	store(t, bad, blocks[bad])
	waitOnDisk(t, bad)
	harness.Kvfs(t, "evict", "--tier", "memory", bad)
	delete(blocks, hot)
	wantBlocks(t, blocks)
}
