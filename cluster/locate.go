package cluster

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvfs/kvfs/cluster/location"
)

// Location is one live holder of a key.
type Location struct {
	Peer *Peer
	location.Entry

	rank uint64 // lower is better
}

// slotTable maps the slots of the index to peers. Look-ups read it without a lock.
type slotTable struct {
	peers [location.MaxSlots]atomic.Pointer[Peer]

	mu struct {
		sync.Mutex
		next int // where to look for a free slot: the latest free one is used last
	}
}

func (t *slotTable) take(p *Peer) (location.Slot, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range t.peers {
		i := t.mu.next
		t.mu.next = (i + 1) % len(t.peers)
		if t.peers[i].CompareAndSwap(nil, p) {
			return location.Slot(i), true
		}
	}
	return 0, false
}

// Locate appends the live holders of a path to buf, without this node. It takes the holders of
// the latest version that any of them has, best first (none if this node does not know all of the key: see Ask): holders that answer fetches, then those
// with the block in memory, then those in this zone, then those with the fewest blocks being
// fetched. Equal holders come in an order that differs between nodes and blocks. It allocates
// only to grow buf, or if there are many holders.
func (n *Node) Locate(path string, buf []Location) []Location {
	var few [16]location.Holder
	begin, hash := len(buf), location.HashPath(path)
	if !n.scopes.Knows(hash) {
		return buf
	}
	for _, h := range n.index.Lookup(hash, few[:0]) {
		p := n.slots.peers[h.Slot].Load()
		if p == nil || p.live() == nil {
			continue // the peer has been lost meanwhile
		}
		buf = append(buf, Location{Peer: p, Entry: h.Entry, rank: n.rank(p, &h)})
	}
	slices.SortFunc(buf[begin:], func(a, b Location) int { return cmp.Compare(a.rank, b.rank) })
	return buf
}

// rank is lower for a better holder. Its top three bits hold what matters most; 29 bits count
// the blocks being fetched; the lowest 32 bits are pseudo-random.
func (n *Node) rank(p *Peer, h *location.Holder) uint64 {
	const chanceBits, inflightBits = 32, 29
	mixed := (h.Hash ^ n.epoch ^ uint64(h.Slot)<<32) * 0x9e3779b97f4a7c15
	r := mixed>>(64-chanceBits) | uint64(min(max(p.inflight.Load(), 0), 1<<inflightBits-1))<<chanceBits
	if z := p.zone.Load(); z == nil || *z != n.o.Zone {
		r |= 1 << (chanceBits + inflightBits)
	}
	if !h.Memory {
		r |= 2 << (chanceBits + inflightBits)
	}
	if !p.Usable() {
		r |= 4 << (chanceBits + inflightBits)
	}
	return r
}
