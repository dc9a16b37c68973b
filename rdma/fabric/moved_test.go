//go:build ofi && cgo

package fabric

import (
	"hash"
	"hash/crc64"
	"testing"

	"github.com/kvfs/kvfs/rdma"
)

// watched is a hash that asks at each piece how many bytes have come.
type watched struct {
	hash.Hash64
	p     *Peer
	moved []int64
}

// Write implements io.Writer.
func (w *watched) Write(p []byte) (int, error) {
	w.moved = append(w.moved, w.p.Moved())
	return w.Hash64.Write(p)
}

// TestMoved shows that a peer reports how much has come before the read is over, and all of it
// then.
func TestMoved(t *testing.T) {
	const size = 3*ringSize + 5
	a, b := open(t, Options{}), open(t, Options{})
	r := register(t, a, file(t, pattern(1, size)), size)
	p, other := connect(t, b, a.Addr()), connect(t, b, a.Addr())
	w := &watched{Hash64: crc64.New(crc64.MakeTable(crc64.ECMA)), p: p}
	must(t, p.Read(t.Context(), r.Remote(), 0, size, rdma.Dest{File: file(t, nil), Hash: w}))
	if len(w.moved) == 0 || w.moved[0] <= 0 || w.moved[0] >= size {
		t.Errorf("in the middle of the read %d bytes have come", w.moved)
	}
	if p.Moved() != size || other.Moved() != 0 {
		t.Errorf("%d and %d bytes have come, want %d and none", p.Moved(), other.Moved(), size)
	}
}
