package location

import "testing"

// TestEntryDigest shows that entries that differ in one field have different digests.
func TestEntryDigest(t *testing.T) {
	base := Entry{Hash: 1, Seq: 2, Size: 3, Mode: 0o100644, UID: 5, GID: 6}
	seen := map[uint64]int{base.Digest(): 0}
	for i, change := range []func(e *Entry){
		func(e *Entry) { e.Hash++ }, func(e *Entry) { e.Seq++ }, func(e *Entry) { e.Size++ }, func(e *Entry) { e.Mode++ },
		func(e *Entry) { e.UID++ }, func(e *Entry) { e.GID++ }, func(e *Entry) { e.Memory = true },
		func(e *Entry) { e.Hash, e.Seq = e.Seq, e.Hash }, func(e *Entry) { *e = Entry{} },
	} {
		e := base
		change(&e)
		if before, ok := seen[e.Digest()]; ok {
			t.Errorf("changes %d and %d have one digest", before, i+1)
		}
		seen[e.Digest()] = i + 1
	}
}
