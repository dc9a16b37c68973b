package object

import (
	"slices"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestThreeTiers shows that a block that has left memory and SSD comes back from the bucket, and goes up (A1, G6).
func TestThreeTiers(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{Disk: "256MiB"})
	bs := numbered("g", 10, 100_000)
	bs["g/large"] = pattern("large", 12*mib)
	storeAll(t, d, bs)
	waitStored(t, d, bs)
	for name := range bs {
		harness.Poll(t, name+" is on disk", func() bool { return slices.Contains(tiersOf(d, name), "disk") })
	}
	evict(t, d, "memory", "disk")
	for name := range bs {
		if got := tiersOf(d, name); !slices.Equal(got, []string{"object"}) {
			t.Errorf("tiers of %s: got %q, want object", name, got)
		}
	}
	wantBlocks(t, d, bs)
	for name := range bs {
		harness.Poll(t, name+" is in memory again", func() bool { return slices.Contains(tiersOf(d, name), "memory") })
	}
	evict(t, d, "memory")
	wantBlocks(t, d, bs)
	d.Kill()
	d.DropMemory()
	d.Restart()
	waitListed(t, d)
	wantBlocks(t, d, bs)
}
