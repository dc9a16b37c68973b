package mount

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestReuseMetrics shows that each metric of package reuse moves when blocks are read, evicted, removed, or asked for
// when they are gone.
func TestReuseMetrics(t *testing.T) {
	d := diskMount(t, harness.Options{})
	const n = 10
	blocks := numbered(d.Path("g"), n, 64<<10)
	before := metrics(t, d)
	moved := func(name string, want float64) {
		t.Helper()
		harness.Poll(t, fmt.Sprintf("%s rises by %v from %v", name, want, before[name]), func() bool {
			return metrics(t, d)[name]-before[name] >= want
		})
	}
	writeAll(t, blocks)
	wantBlocks(t, blocks)
	for _, tier := range []string{"memory", "ssd"} {
		moved(`kvfs_reuse_sampled_asks_total{tier="`+tier+`"}`, n)
		for _, scale := range []string{"0.5", "1", "2", "4"} {
			moved(`kvfs_reuse_sampled_hits_total{scale="`+scale+`",tier="`+tier+`"}`, n)
			moved(`kvfs_reuse_estimated_hit_ratio{scale="`+scale+`",tier="`+tier+`"}`, 0.1)
		}
		if got := metrics(t, d)[`kvfs_reuse_sample_ratio{tier="`+tier+`"}`]; got != 1 {
			t.Errorf("the sample of %s has a share of %v of few names", tier, got)
		}
	}
	waitOnDisk(t, paths(blocks)...)
	evictMemory(t, d)
	moved(`kvfs_reuse_lifetime_seconds_count{end="evicted"}`, n)
	moved(`kvfs_reuse_idle_before_eviction_seconds_count`, n)

	gone := paths(blocks)[0]
	if out, stderr, code := harness.Kvfs(t, "evict", "--tier", "disk", "--force", gone); code != 0 {
		t.Fatalf("evict: code %d\n%s%s", code, out, stderr)
	}
	if _, err := os.Stat(gone); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an evicted block: %v", err)
	}
	moved(`kvfs_reuse_return_seconds_count`, 1)

	kept := paths(blocks)[1]
	_, err := os.ReadFile(kept) // into memory
	must(t, "read", err)
	must(t, "remove", os.Remove(kept))
	moved(`kvfs_reuse_lifetime_seconds_count{end="removed"}`, 1)
}
