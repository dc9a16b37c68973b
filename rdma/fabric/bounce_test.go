//go:build ofi && cgo

package fabric

import "testing"

// TestRings takes all buffers: the next read gets none, but still works. Few are kept afterwards.
func TestRings(t *testing.T) {
	const size = 3*ringSize + 5
	a, b := open(t, Options{}), open(t, Options{})
	want := pattern(1, size)
	r := register(t, a, file(t, want), size)
	p := connect(t, b, a.Addr())
	var taken [][]byte
	for ring := b.rings.take(); ring != nil; ring = b.rings.take() {
		if ring[0], ring[ringSize-1] = 1, 1; len(taken) == maxRings {
			t.Fatal("there is no bound")
		}
		taken = append(taken, ring)
	}
	if err := reads(t, p, r.Remote(), 1, size-1, want); err != nil {
		t.Errorf("read without a buffer: %v", err)
	}
	for _, ring := range taken {
		b.rings.give(ring)
	}
	if n := len(b.rings.mu.idle); n != idleRings {
		t.Errorf("%d buffers are kept, want %d", n, idleRings)
	}
	for _, n := range []int64{1, pieceSize - 1, pieceSize, pieceSize + 1, ringSize, ringSize + 1, size - 1} {
		if err := reads(t, p, r.Remote(), 1, n, want); err != nil {
			t.Errorf("read of %d bytes: %v", n, err)
		}
	}
}

// TestStuck has an endpoint that did not close: no buffer is used again.
func TestStuck(t *testing.T) {
	var r rings
	ring := r.take()
	r.stuck.Store(true)
	r.give(ring)
	if r.take() != nil {
		t.Error("a buffer that may be written to is used again")
	}
	ring[0] = 1 // it is still there
	if err := unmap(ring); err != nil {
		t.Error(err)
	}
}
