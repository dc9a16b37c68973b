package peer

import (
	"math"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/location"
)

// candidate is a peer that may take copies.
type candidate struct {
	peer      member
	hash      uint64 // of its name
	weight    float64
	near      bool // in the zone of this node
	preferred bool
}

// candidates returns the peers that can take copies now, the preferred segment first.
func (t *Tier) candidates() []candidate {
	preferred := t.preferred()
	var list []candidate
	for _, p := range t.node.peers() {
		if !p.Usable() || !p.Can(cluster.FeatureStore) {
			continue
		}
		m := p.Member()
		c := candidate{
			peer: p, hash: location.HashPath(p.Name()), weight: float64(m.FreeBytes),
			near: t.opts.Zone == "" || m.Zone == t.opts.Zone, preferred: p.Name() == preferred,
		}
		if m.TotalBytes == 0 {
			c.weight = 1 // it does not tell: after all who do
		}
		if c.weight > 0 || c.preferred {
			list = append(list, c)
		}
	}
	return list
}

// rank orders candidates for one block, best first: the preferred segment, then the
// peers of this zone, then the others; each group by weighted rendezvous hashing. A block
// comes to a peer with a probability in proportion to the peer's weight, and a peer that
// comes or goes moves only blocks that it gets or had.
func rank(hash uint64, list []candidate) []candidate {
	type scored struct {
		candidate
		score float64
	}
	order := make([]scored, len(list))
	for i, c := range list {
		order[i] = scored{c, -c.weight / math.Log(uniform(hash, c.hash))}
	}
	slices.SortFunc(order, func(a, b scored) int {
		switch {
		case a.preferred != b.preferred:
			return first(a.preferred)
		case a.near != b.near:
			return first(a.near)
		case a.score != b.score:
			return first(a.score > b.score)
		}
		return first(a.hash < b.hash)
	})
	ranked := make([]candidate, len(order))
	for i := range order {
		ranked[i] = order[i].candidate
	}
	return ranked
}

func first(a bool) int {
	if a {
		return -1
	}
	return 1
}

// uniform returns a number in (0, 1) that depends on both hashes: the finalizer of
// splitmix64 over their mix.
func uniform(block, peer uint64) float64 {
	x := block ^ (peer*0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return (float64(x>>11) + 0.5) / (1 << 53)
}

// segmentState is whether the preferred segment was there when it was last asked for.
// Its lock is a leaf.
type segmentState struct {
	mu struct {
		sync.Mutex
		missing bool // and a warning told of it
	}
}

// preferred returns the name of the peer that is the preferred segment, "" if none is
// set or it cannot take copies now, of which one warning tells until it can.
func (t *Tier) preferred() string {
	want := t.opts.PreferredSegment
	if want == "" {
		return ""
	}
	p, reason := t.node.peerBy(want), ""
	switch {
	case p == nil && t.isSelf(want):
		return "" // this node has its blocks anyway
	case p == nil:
		reason = "no such live peer"
	case !p.Can(cluster.FeatureStore):
		reason = "it takes no copies"
	case !p.Usable():
		reason = "it does not answer"
	}
	s := &t.segment
	s.mu.Lock()
	warn := reason != "" && !s.mu.missing
	s.mu.missing = reason != ""
	s.mu.Unlock()
	if warn {
		t.log.Warn("preferred segment cannot be used: copies go to other peers",
			zap.String("segment", want), zap.String("reason", reason))
	}
	if reason != "" {
		return ""
	}
	return p.Name()
}

// isSelf reports whether a member's name or address is this node's.
func (t *Tier) isSelf(nameOrAddr string) bool {
	for _, m := range t.node.Members() {
		if m.Self {
			return slices.Contains([]string{m.Name, m.GossipAddr, m.ControlAddr, m.BulkAddr}, nameOrAddr)
		}
	}
	return false
}
