package mount

import (
	"strings"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestDiskEvictCommand shows what kvfs evict drops and keeps: paths and
// directories; the only copy stays without --force.
func TestDiskEvictCommand(t *testing.T) {
	d := diskMount(t, harness.Options{})
	a, b := numbered(d.Path("a"), 5, 100_000), numbered(d.Path("b"), 5, 100_000)
	writeAll(t, a)
	writeAll(t, b)
	waitOnDisk(t, append(paths(a), paths(b)...)...)

	evict := func(code int, args ...string) string {
		t.Helper()
		stdout, stderr, got := harness.Kvfs(t, append([]string{"evict"}, args...)...)
		if got != code && !(code < 0 && got != 0) {
			t.Errorf("kvfs evict %q: exit code %d, want %d\n%s%s", args, got, code, stdout, stderr)
		}
		return stdout + stderr
	}
	first := paths(a)[0]
	evict(0, "--tier", "memory", first)
	wantTier(t, first, "disk")
	wantTier(t, paths(a)[1], "memory,disk")
	evict(0, "--tier", "memory", d.Path("a"))
	for p := range a {
		wantTier(t, p, "disk")
	}
	for p := range b {
		wantTier(t, p, "memory,disk")
	}
	// From the disk: memory has them still, so that only the copy goes.
	evict(0, "--tier", "disk", paths(b)[0])
	wantTier(t, paths(b)[0], "memory")
	wantBlocks(t, a)
	wantBlocks(t, b)

	evict(-1, "--tier", "none", first)
	evict(-1, "--tier", "memory")
	evict(-1, "--tier", "memory", "/")
	if out := evict(-1, "--tier", "memory", d.Path("a", "none")); !strings.Contains(out, "not found") && !strings.Contains(out, "no such") {
		t.Errorf("evict of what is not there: got %q, want it to say so", out)
	}
}

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
