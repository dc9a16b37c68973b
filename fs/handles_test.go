package fs

import (
	"fmt"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/fs/device"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestHandleTable shows that numbers carry their kind, are never used again, and
// that a handle can be taken once.
func TestHandleTable(t *testing.T) {
	var table handleTable
	table.init()
	a, b := &handle{id: 1}, &handle{id: 2}
	fa, fb := table.add(a, fhHandle), table.add(b, fhControl)
	if fa == fb || fa&fhMask != fhHandle || fb&fhMask != fhControl {
		t.Errorf("numbers %#x and %#x", fa, fb)
	}
	if table.get(fa) != a || table.get(fb) != b {
		t.Error("get returns another handle")
	}
	if table.take(fa) != a || table.get(fa) != nil || table.take(fa) != nil {
		t.Error("a handle can be taken twice")
	}
	if fc := table.add(a, fhHandle); fc == fa {
		t.Errorf("number %#x is used again", fc)
	}
	// A passthrough number has no entry, whatever its blob.
	for _, blob := range []driver.BlobID{1, 2, 1 << 40} {
		if fh := uint64(blob)<<fhBits | fhBlob; table.get(fh) != nil || table.take(fh) != nil {
			t.Errorf("blob %d has an entry", blob)
		}
	}
}

// TestHandleTableParallel uses the table from many goroutines.
func TestHandleTableParallel(t *testing.T) {
	var table handleTable
	table.init()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				h := &handle{}
				fh := table.add(h, fhHandle)
				if table.get(fh) != h || table.take(fh) != h {
					t.Error("got another handle")
				}
			}
		})
	}
	wg.Wait()
	if n := len(table.mu.table); n != 0 {
		t.Errorf("%d handles left", n)
	}
}

// TestOpCounters shows that a snapshot holds the operations that occurred.
func TestOpCounters(t *testing.T) {
	var c opCounters
	if got := c.snapshot(); len(got) != 0 {
		t.Errorf("at first: got %v", got)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				c.add(device.OpOpen)
				c.add(device.OpRelease)
			}
		})
	}
	wg.Wait()
	c.add(device.OpOther)
	if got, want := fmt.Sprint(c.snapshot()), "map[OPEN:4000 OTHER:1 RELEASE:4000]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
