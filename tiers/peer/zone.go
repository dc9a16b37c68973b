package peer

import (
	"slices"
	"sync"
	"time"

	"github.com/kvfs/kvfs/cluster/location"
)

// A block that many nodes of a zone want crosses the boundary of the zone once. For each block one node of the zone, its
// keeper, knows who fetches it. The keeper sends no bytes that it does not have anyway.
//
//	reader   finds no holder in its zone: asks the keeper before a holder elsewhere (BlockRef.Claim)
//	keeper   gives the block if it has it by now; else tells the first reader to go on (rdma.ErrGone), and for claimTime
//	         the others to come back (rdma.ErrLater): they ask those in their zone that have the block then, as in
//	         spread.go
//
// The keeper follows from the names of the nodes in the zone. Nodes that do not agree on it, or get no answer from it,
// fetch for themselves. Blocks below spreadBytes do not ask: the question costs too much.
const (
	claimTime = 400 * time.Millisecond
	maxClaims = 4096 // beyond it each reader fetches for itself

	zoneAge = time.Second // of what zone knows of the members
)

// claims knows who was told to fetch a block for this zone.
type claims struct {
	mu sync.Mutex
	at map[lentBlock]time.Time
}

// enter reports whether a reader shall fetch a block, because none was told to within claimTime.
func (c *claims) enter(b lentBlock, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, claimed := c.at[b]; claimed && now.Sub(at) < claimTime {
		return false
	}
	if len(c.at) >= maxClaims {
		for old, at := range c.at {
			if now.Sub(at) >= claimTime {
				delete(c.at, old)
			}
		}
	}
	if c.at == nil {
		c.at = map[lentBlock]time.Time{}
	}
	if len(c.at) < maxClaims {
		c.at[b] = now
	}
	return true
}

// zone is what was known of this node's zone at a time.
type zone struct {
	at    time.Time
	self  uint64            // hash of this node's name
	peers map[member]uint64 // hashes of the names of those in the zone
}

// inZone returns the zone of this node. It is at most zoneAge old.
func (t *Tier) inZone() *zone {
	now, z := t.now(), t.zone.Load()
	if z != nil && now.Sub(z.at) < zoneAge {
		return z
	}
	z = &zone{at: now, peers: map[member]uint64{}}
	for _, m := range t.node.Members() {
		if m.Self {
			z.self = location.HashPath(m.Name)
		}
	}
	for _, p := range t.node.peers() {
		if p.Member().Zone == t.opts.Zone {
			z.peers[p] = location.HashPath(p.Name())
		}
	}
	t.zone.Store(z)
	return z
}

// keeper returns the keeper of a block, nil if that is this node.
func (z *zone) keeper(path string) (best member) {
	hash := location.HashPath(path)
	most := uniform(hash, z.self)
	for p, name := range z.peers {
		if u := uniform(hash, name); u > most {
			best, most = p, u
		}
	}
	return best
}

// near reports whether a peer is in the zone of this node. Without a zone all are.
func (t *Tier) near(m member) bool {
	return t.opts.Zone == "" || t.inZone().peers[m] != 0
}

// viaKeeper has the keeper of a block asked before its holders, if all of these are in other zones.
func (t *Tier) viaKeeper(p *piece) {
	if p.claimed || p.tr.Size < spreadBytes || len(p.holders) == 0 || !t.mayComeBack(p) {
		return
	}
	if slices.ContainsFunc(p.holders, func(h holder) bool { return t.near(h.peer) }) {
		return
	}
	switch keeper := t.inZone().keeper(p.path); {
	case keeper == nil && t.claims.enter(lentBlock{p.path, p.tr.Attrs.Seq}, t.now()):
		p.claimed = true
	case keeper == nil:
		p.later, p.holders = true, nil
	case keeper.Usable():
		p.asks = true
		p.holders = append([]holder{{keeper, p.holders[0].Entry}}, p.holders...)
	}
}
