package mem

import (
	"os"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers/driver"
)

// TestLeaseOnce shows that ids which are taken at the same time, across the end of a lease, are
// all different and below what kvfs-memory says, and that the next process goes on above them;
// and that an id that cannot be written down is not given out.
func TestLeaseOnce(t *testing.T) {
	root, err := os.Open(shmDir(t))
	must(t, err)
	defer root.Close()
	var l lease
	must(t, l.open(root, root.Name(), format{id: "x"}))
	const takers, each = 8, 100
	l.next.Store(l.limit.Load() - takers*each/2)
	got := make([]driver.BlobID, takers*each)
	var wg sync.WaitGroup
	for i := range takers {
		wg.Go(func() {
			for j := range each {
				id, err := l.take()
				if err != nil {
					t.Error(err)
				}
				got[i*each+j] = id
			}
		})
	}
	wg.Wait()
	f, err := readFormat(root)
	must(t, err)
	seen := make(map[driver.BlobID]bool)
	for _, id := range got {
		if seen[id] || id < l.first || uint64(id) >= f.next {
			t.Errorf("id %d: twice, or not within %d to %d", id, l.first, f.next)
		}
		seen[id] = true
	}
	var next lease
	if err := next.open(root, root.Name(), f); err != nil || uint64(next.first) != f.next {
		t.Errorf("the next process begins at %d (%v), want %d", next.first, err, f.next)
	}
	must(t, os.RemoveAll(root.Name()))
	next.next.Store(next.limit.Load())
	if id, err := next.take(); err == nil {
		t.Errorf("got %d without a directory", id)
	}
}
