package object

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/s3test"
)

// TestCatchUp shows that the bucket gets, when its store is back, the blocks that were stored while that was away: the status
// counts them, kvfs drain waits for them, and no more than catch_up_rate goes up at a time (G6).
func TestCatchUp(t *testing.T) {
	s := s3test.Start(t, s3test.Options{})
	d := mount(t, s.URL, "", harness.Options{Flags: []string{"--catch-up-rate", "1MiB"}})
	before := numbered("before", 2, 100_000)
	storeAll(t, d, before)
	waitStored(t, d, before)

	s.Kill()
	missed := numbered("missed", 8, 200_000)
	names := slices.Sorted(maps.Keys(missed))
	for _, name := range names {
		storeAll(t, d, blocks{name: missed[name]})
	}
	harness.Poll(t, "the blocks are counted", func() bool {
		return d.Status().Secondaries[0].MissedBlocks == 8
	})
	drained := make(chan struct{})
	go func() { // ends with the command, at the latest when the daemon ends
		defer close(drained)
		if _, said, code := harness.Kvfs(t, "drain", d.Path()); code != 0 {
			t.Errorf("kvfs drain: %d: %s", code, said)
		}
	}()
	wantBlocks(t, d, missed)

	began := time.Now()
	s.Run(false)
	select {
	case <-drained:
	case <-time.After(harness.Deadline):
		t.Fatal("the drain does not end")
	}
	for name := range missed {
		if !slices.Contains(tiersOf(d, name), "object") {
			t.Errorf("%s is not in the bucket after the drain: %v", name, tiersOf(d, name))
		}
	}
	// 8 blocks at 1 MiB a second: the last begins 1.3 s after the first.
	if took := time.Since(began); took < time.Second {
		t.Errorf("1.6 MB went up in %v", took)
	}
	if st := d.Status(); st.Secondaries[0].MissedBlocks != 0 {
		t.Errorf("%d blocks are missing", st.Secondaries[0].MissedBlocks)
	}
	verify(t, s)
}
