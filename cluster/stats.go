package cluster

import (
	"sync/atomic"

	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
)

// Stats are totals since Open, and what there is now.
type Stats struct {
	Gossip gossip.Stats   `json:"gossip"`
	Index  location.Stats `json:"index"`

	Live    int `json:"live"`    // peers that can be talked to
	Known   int `json:"known"`   // peers seen lately
	Serving int `json:"serving"` // feeds that peers follow here
	Leases  int `json:"leases"`  // held now
	Conns   int `json:"conns"`   // of the control channel, from peers

	// What came from strangers, or from a peer that is broken.
	Strangers  uint64 `json:"strangers"`   // connections that ended without a call of a peer: no TLS, foreign certificate, garbage
	TooMany    uint64 `json:"too_many"`    // connections, nodes and calls beyond the limits
	Unknown    uint64 `json:"unknown"`     // calls of methods that there are not
	Malformed  uint64 `json:"malformed"`   // messages and names too large or without sense
	Denied     uint64 `json:"denied"`      // calls by who is not, or not yet, a peer
	BadMeta    uint64 `json:"bad_meta"`    // metas without sense
	Refused    uint64 `json:"refused"`     // times a node was refused as peer
	FarVersion uint64 `json:"far_version"` // version numbers from too far in the future, not taken

	GravesSent   uint64 `json:"graves_sent"`   // in exchanges
	GravesTaken  uint64 `json:"graves_taken"`  // news from feeds and exchanges
	Exchanges    uint64 `json:"exchanges"`     // that ended well
	LeaseGrants  uint64 `json:"lease_grants"`  // to peers
	LeaseExpired uint64 `json:"lease_expired"` // not released in time
	Lent         uint64 `json:"lent"`          // blocks, by name
	Stored       uint64 `json:"stored"`        // blocks taken from peers that offered them

	FabricPeers     int    `json:"fabric_peers"`     // live, and read by RDMA now
	FabricFetches   uint64 `json:"fabric_fetches"`   // blocks that came by RDMA
	FabricBytes     uint64 `json:"fabric_bytes"`     // theirs
	FabricFallbacks uint64 `json:"fabric_fallbacks"` // blocks that RDMA did not bring and that were asked for by TCP
}

// counters are the totals of Stats.
type counters struct {
	strangers, tooMany, unknown, malformed, denied, badMeta, refused, farVersion atomic.Uint64
	gravesSent, gravesTaken, exchanges                                           atomic.Uint64
	leaseGrants, leaseExpired, lent, stored                                      atomic.Uint64
	fabricFetches, fabricBytes, fabricFallbacks                                  atomic.Uint64
}

// Stats returns them.
func (n *Node) Stats() Stats {
	c := &n.counters
	peers := n.allPeers()
	live, linked := 0, 0
	for _, p := range peers {
		if s := p.live(); s != nil {
			live++
			if s.link.Load() != nil {
				linked++
			}
		}
	}
	return Stats{
		Gossip: n.gossip.Stats(), Index: n.index.Stats(),
		Live: live, Known: len(peers), Serving: n.subs.count(), Leases: n.leases.count(), Conns: n.listener.open(),
		Strangers: c.strangers.Load(), TooMany: c.tooMany.Load(), Unknown: c.unknown.Load(), Malformed: c.malformed.Load(),
		Denied: c.denied.Load(), BadMeta: c.badMeta.Load(), Refused: c.refused.Load(), FarVersion: c.farVersion.Load(),
		GravesSent: c.gravesSent.Load(), GravesTaken: c.gravesTaken.Load(), Exchanges: c.exchanges.Load(),
		LeaseGrants: c.leaseGrants.Load(), LeaseExpired: c.leaseExpired.Load(), Lent: c.lent.Load(), Stored: c.stored.Load(),
		FabricPeers: linked, FabricFetches: c.fabricFetches.Load(), FabricBytes: c.fabricBytes.Load(),
		FabricFallbacks: c.fabricFallbacks.Load(),
	}
}
