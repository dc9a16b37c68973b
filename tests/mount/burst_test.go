package mount

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tests/harness"
)

// TestChain shows that of a chain of 90 blocks that a process stores in memory for 60 the head stays (G8): all but the
// last, which is the newcomer. The gap is long, so that a busy machine ends no burst.
func TestChain(t *testing.T) {
	harness.KvfsOnly(t, "order of eviction")
	d := harness.Mount(t, harness.Options{
		MemorySize: "60MiB", Flags: []string{"--memory-burst-gap", "1h", "--memory-high-watermark", "1"},
	})
	p := pattern("chain", mib)
	for i := range 90 {
		store(t, d.Path(fmt.Sprint("chain", i)), p)
	}
	head, all := 0, 0
	for i := range 90 {
		var st unix.Stat_t
		if unix.Stat(d.Path(fmt.Sprint("chain", i)), &st) != nil {
			continue
		}
		if all++; head == i {
			head++
		}
	}
	if head != 59 || all != 60 {
		t.Errorf("%d blocks from the head, %d in all, want 59 and 60", head, all)
	}
}
