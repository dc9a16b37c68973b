//go:build ofi && cgo

package fabric

import "testing"

// TestChoose shows that a read goes by the card that has the fewest bytes under way, of all peers, in turn where several
// have as few, and that a card which did not reach the peer is passed over (B28).
func TestChoose(t *testing.T) {
	a, b := &rail{name: "a"}, &rail{index: 1, name: "b"}
	tr := &Transport{rails: []*rail{a, b}}
	p := newPeer(tr, address{rails: make([]railAddr, 2)})
	chosen := func() (names string) {
		t.Helper()
		for range 4 {
			for _, pr := range p.choose(mib) {
				names += pr.rail.name
			}
		}
		return names
	}
	if got := chosen(); got != "abab" && got != "baba" {
		t.Errorf("with nothing under way: got %s, want each in turn", got)
	}
	done := newPeer(tr, address{rails: make([]railAddr, 2)}).rails[0].reads(8 * mib) // of another peer
	if got := chosen(); got != "bbbb" {
		t.Errorf("with a read under way by a: got %s, want bbbb", got)
	}
	more := p.rails[1].reads(9 * mib)
	if got := chosen(); got != "aaaa" {
		t.Errorf("with a longer one by b: got %s, want aaaa", got)
	}
	p.rails[0].mu.bad = true
	if got := chosen(); got != "bbbb" {
		t.Errorf("with a out of reach: got %s, want bbbb", got)
	}
	p.rails[0].mu.bad = false
	done()
	more()
	if x, y := a.reading.Load(), b.reading.Load(); x != 0 || y != 0 {
		t.Errorf("under way at the end: got %d and %d bytes, want none", x, y)
	}
}
