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

// TestDiskScrubber shows that the scrubber finds bad copies before any reader does. A block that memory has, too, is stored
// anew. Any other is a miss.
func TestDiskScrubber(t *testing.T) {
	d := diskMount(t, harness.Options{Disk: "64MiB", Flags: []string{"--disk-slab-size", "4MiB", "--disk-scrub-rate", "200MiB"}})
	blocks := numbered(d.Dir, 2, 300_000)
	writeAll(t, blocks)
	waitOnDisk(t, paths(blocks)...)
	evictMemory(t, d)
	bad, hot := paths(blocks)[0], paths(blocks)[1]
	wantBytes(t, hot, blocks[hot])
	flipOnDisk(t, d.DiskDir, blocks[bad])
	flipOnDisk(t, d.DiskDir, blocks[hot])
	harness.Poll(t, "the damaged block is a miss", func() bool {
		var st unix.Stat_t
		return unix.Stat(bad, &st) == unix.ENOENT
	})
	harness.Poll(t, "the block in memory is stored anew", func() bool {
		return diskStatus(t, d).Cascaded > uint64(len(blocks)) && tierOf(hot) == "memory,disk"
	})
	wantBytes(t, hot, blocks[hot])
}
