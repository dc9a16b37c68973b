package object

import (
	"slices"
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestReadOnly shows that read_only: true writes nothing, not even a removal, and reads all (G6).
func TestReadOnly(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{})
	bs := numbered("g", 5, 50_000)
	storeAll(t, d, bs)
	waitStored(t, d, bs)
	d.Stop()
	before := s.Names(prefix)
	reader := mount(t, s.URL, ",read_only=true", harness.Options{})
	waitListed(t, reader)
	wantBlocks(t, reader, bs)
	more := numbered("more", 3, 50_000)
	storeAll(t, reader, more)
	wantBlocks(t, reader, more)
	remove(t, reader, "g/0002")
	wantAbsent(t, reader, "g/0002")
	reader.Stop()
	if after := s.Names(prefix); !slices.Equal(after, before) {
		t.Errorf("the bucket has changed: got %q, want %q", after, before)
	}
}

// TestOnEvict shows that with cascade: on_evict a block goes to the bucket when memory gives it up, and not before (G6).
func TestOnEvict(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, ",cascade=on_evict", harness.Options{MemorySize: "64MiB"})
	first := numbered("first", 10, mib)
	storeAll(t, d, first)
	wantBlocks(t, d, first)
	if got := packs(s); len(got) > 0 {
		t.Errorf("the bucket has %d packs before memory was full", len(got))
	}
	more := numbered("more", 100, mib)
	storeAll(t, d, more)
	harness.Poll(t, "a block of the first has left memory", func() bool { return slices.Equal(tiersOf(d, "first/0000"), []string{"object"}) })
	wantBlocks(t, d, first)
	verify(t, s)
}

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
