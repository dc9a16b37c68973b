package mount

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskStopDrains stops the daemon while copies wait in the queue: it stores
// them first, so that the next start has every block but those that the counters
// gave up.
func TestDiskStopDrains(t *testing.T) {
	// The test's disk may be slow, and the test fails where the harness loses patience.
	d := diskMount(t, harness.Options{Flags: []string{"--drain-timeout", (harness.Deadline - 5*time.Second).String()}})
	blocks := numbered(d.Dir, 50, mib)
	writeAll(t, blocks)
	s := diskStatus(t, d)
	given := s.CascadeDropped + s.CascadeSkipped + s.CascadeFailed
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	d.Restart()
	if found := survey(t, blocks); uint64(len(blocks)-found) > given {
		t.Errorf("%d of %d blocks are there, %d were given up", found, len(blocks), given)
	}
}

// TestDiskCoalesced opens many cold blocks at once: they are loaded in fewer
// batches than there are blocks (A19, A20, E13).
func TestDiskCoalesced(t *testing.T) {
	d := diskMount(t, harness.Options{Flags: []string{"--promotion-window", "200ms"}})
	blocks := numbered(d.Dir, 32, 16*kib)
	cold(t, d, blocks)
	before := diskStatus(t, d).Batches
	all := paths(blocks)
	parallel(len(all), func(i int) {
		got, err := readWhole(all[i])
		if err != nil {
			t.Errorf("read %s: %s", filepath.Base(all[i]), errnoName(err))
			return
		}
		sameBytes(t, filepath.Base(all[i]), got, blocks[all[i]])
	})
	s := diskStatus(t, d)
	if n := s.Batches - before; n == 0 || n >= 32 {
		t.Errorf("32 blocks at once: %d batches, want fewer than blocks", n)
	}
	if s.Promoted != 32 {
		t.Errorf("promoted: got %d, want 32", s.Promoted)
	}
}

// TestDiskStuck freezes the file system below the tier, so that writes do not come back. After --disk-stuck-timeout
// the tier is offline and says why. Stores go on, and so do reads of blocks in memory. An fsync fails and does not
// hang. The daemon ends once the writes do.
func TestDiskStuck(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	// In memory, where possible, and with seconds of patience: what is merely slow must
	// not count as stuck.
	loop := harness.LoopOptions{SizeBytes: 256 * mib}
	if roomInShm(256 * mib) {
		loop.Backing = shmDir(t)
	}
	l := harness.MountLoop(t, loop)
	d := diskMount(t, harness.Options{
		Disk: "128MiB", DiskDir: l.Dir, Flags: []string{"--disk-slab-size", "4MiB", "--disk-stuck-timeout", "5s"},
	})
	first := numbered(d.Path("first"), 10, 500_000)
	cold(t, d, first)
	for p := range first {
		fsyncPath(t, p)
	}
	thaw := l.Freeze()
	second := numbered(d.Path("second"), 20, mib)
	within(t, "stores and reads go on", func() {
		writeAll(t, second)
		wantBlocks(t, second)
	})
	within(t, "fsync returns", func() {
		f := open(t, paths(second)[0], unix.O_RDONLY, 0)
		defer f.close()
		err := again(func() error { return unix.Fsync(f.fd) })
		wantErrno(t, "fsync with a stuck device", err, unix.EIO, unix.ENOSPC, unix.ETIMEDOUT)
	})
	harness.Poll(t, "the tier is offline", func() bool { return diskStatus(t, d).State == "offline" })
	s := d.Status().Tier(t, "disk")
	if s.Reason == "" {
		t.Errorf("offline without a reason: %+v", s)
	}
	t.Logf("reason: %s", s.Reason)
	within(t, "the mount works without the tier", func() {
		wantBlocks(t, second)
		survey(t, first)
		more := numbered(d.Path("more"), 5, mib)
		writeAll(t, more)
		wantBlocks(t, more)
	})
	thaw()
	within(t, "the daemon stops", func() { d.Stop() })
	d.Restart()
	if found := survey(t, first); found != len(first) {
		t.Errorf("%d of %d blocks that fsync had confirmed are there again", found, len(first))
	}
	survey(t, second)
}
