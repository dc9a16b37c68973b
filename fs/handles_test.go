package fs

import (
	"testing"

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
