package control

import (
	"testing"

	"github.com/kvfs/kvfs/tests/harness"
	"github.com/kvfs/kvfs/tests/harness/gate"
)

// TestGate shows that a read waits at the gate, that blocks are whole afterwards, and that a failing read is a miss.
func TestGate(t *testing.T) {
	d, g := gate.Mount(t, harness.Options{})
	coldBlocks(t, d, mib, "g/a", "g/b")
	g.Hold()
	got := make(chan error, 1)
	go func() { // Ends with the gate.
		_, err := readBlock(d.Path("g/a"))
		got <- err
	}()
	g.Await(t)
	select {
	case err := <-got:
		t.Fatalf("the read is back before its device: %v", err)
	default:
	}
	g.Release()
	must(t, "read", receive(t, "the read", got))
	wantBytes(t, d.Path("g/a"), pattern("g/a", mib))
	g.Fail(true)
	wantMiss(t, d.Path("g/b"))
}
