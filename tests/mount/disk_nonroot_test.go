package mount

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskNonRoot runs TestDiskNonRootInside, where /dev/fuse is open to all.
func TestDiskNonRoot(t *testing.T) {
	harness.KvfsOnly(t, "a disk tier")
	if _, err := exec.LookPath("fusermount3"); err != nil {
		harness.Skip(t, "fusermount3 is not installed")
	}
	runInside(t, "TestDiskNonRootInside", "with")
}

// TestDiskNonRootInside runs the daemon as nobody with a disk tier of its own:
// reads go by splice, and all the rest is the same: cascade, eviction, promotion,
// fsync, crash, clean restart.
func TestDiskNonRootInside(t *testing.T) {
	insideOnly(t)
	d := harness.Mount(t, harness.Options{User: nobody, Disk: "128MiB"})
	a := harness.NewActor(t, nobody)
	tier := func(p string) string {
		t.Helper()
		value, err := a.Getxattr(p, "user.kvfs.tier")
		must(t, "getxattr", err)
		return value
	}
	blocks := make(map[string][]byte)
	for i, n := range diskSizes {
		p := d.Path(fmt.Sprintf("block%d", i))
		blocks[p] = pattern(p, n)
		must(t, "write", a.WriteFile(p+".tmp", blocks[p]))
		must(t, "rename", a.Rename(p+".tmp", p))
		fd, err := a.Open(p, unix.O_RDONLY, 0)
		must(t, "open", err)
		must(t, "fsync", a.Fsync(fd))
		must(t, "close", a.Close(fd))
		if got := tier(p); got != "memory,disk" {
			t.Errorf("%d bytes after fsync: tiers %q, want memory,disk", n, got)
		}
	}
	evict := func() {
		t.Helper()
		_, stderr, code := harness.KvfsAs(t, nobody, "evict", "--tier", "memory", "--all", d.Dir)
		if code != 0 {
			t.Fatalf("evict as nobody: exit code %d, %s", code, stderr)
		}
	}
	check := func(when string) {
		t.Helper()
		for p, b := range blocks {
			if !slices.Contains(strings.Split(tier(p), ","), "disk") {
				t.Errorf("%s: %s: tiers %q", when, p, tier(p))
			}
			wantSeen(t, a, p, b)
		}
	}
	evict()
	check("evicted")
	d.Kill()
	d.DropMemory()
	d.Restart()
	check("after a crash")
	if code := d.Stop(); code != 0 {
		t.Errorf("exit code: got %d, want 0", code)
	}
	d.Restart()
	check("after a restart")
	evict()
	check("evicted again")
}
