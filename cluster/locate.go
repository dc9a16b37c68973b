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

	rank uint64 // lower is better to ask
}

// slotTable tells whose a slot of the index is. Look-ups read it without a lock.
type slotTable struct {
	peers [location.MaxSlots]atomic.Pointer[Peer]

	mu struct {
		sync.Mutex
		next int // where to look for a free one: the last that was given is reused late
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

// peerSlots gives the follower of one peer its slots.
type peerSlots struct{ p *Peer }

// TakeSlot implements feed.Slots.
func (s peerSlots) TakeSlot() (location.Slot, bool) {
	slot, ok := s.p.n.slots.take(s.p)
	if ok {
		s.p.mu.Lock()
		s.p.mu.slots = append(s.p.mu.slots, slot)
		s.p.mu.Unlock()
	}
	return slot, ok
}

// GiveSlot implements feed.Slots.
func (s peerSlots) GiveSlot(slot location.Slot) {
	s.p.mu.Lock()
	s.p.mu.slots = slices.DeleteFunc(s.p.mu.slots, func(x location.Slot) bool { return x == slot })
	s.p.mu.Unlock()
	s.p.n.slots.peers[slot].Store(nil)
}

// Locate appends the live holders of a path to buf, but not this node: of the latest
// version that any of them has, best first: those that answer fetches; of these those
// that have it in memory, then those in this zone, then those of whom least is being
// fetched. Nodes differ in the order of those that are equal, and so do blocks. It does
// not allocate but for buf and where there are many holders.
func (n *Node) Locate(path string, buf []Location) []Location {
	var few [16]location.Holder
	begin := len(buf)
	for _, h := range n.index.Lookup(location.HashPath(path), few[:0]) {
		p := n.slots.peers[h.Slot].Load()
		if p == nil || p.live() == nil {
			continue // lost since
		}
		buf = append(buf, Location{Peer: p, Entry: h.Entry, rank: n.rank(p, &h)})
	}
	slices.SortFunc(buf[begin:], func(a, b Location) int { return cmp.Compare(a.rank, b.rank) })
	return buf
}

// rank is lower for a holder that is better to ask. From the top: three bits for
// what matters most, 29 for the blocks under way, 32 that are as good as chance.
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

// blocks returns how many entries the index has of p. While a snapshot comes in that is
// what is shown, or the snapshot, whichever is more.
func (p *Peer) blocks() int64 {
	p.mu.Lock()
	slots := slices.Clone(p.mu.slots)
	p.mu.Unlock()
	var most int64
	for _, slot := range slots {
		most = max(most, p.n.index.Count(slot))
	}
	return most
}
