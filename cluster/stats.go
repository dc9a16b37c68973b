package cluster

import (
	"sync/atomic"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/location"
)

// Stats holds totals since Open, and current numbers.
type Stats struct {
	Gossip gossip.Stats   `json:"gossip"`
	Index  location.Stats `json:"index"`

	// Share is the part of all keys that this node follows in the feeds of its peers, from 0 to 1. It asks peers about the rest.
	Share float64 `json:"followed_share"`
	Found uint64  `json:"found_names"` // names about which peers asked this node, and that it could answer

	Live    int    `json:"live"`             // peers that this node talks to
	Known   int    `json:"known"`            // peers seen lately
	Serving int    `json:"serving"`          // feeds of this node that peers follow
	FeedLag uint64 `json:"feed_lag_records"` // records that the slowest of them has not been sent
	Leases  int    `json:"leases"`           // held now
	Conns   int    `json:"connections"`      // of the control channel, from peers

	// Caused by strangers or by broken peers.
	Strangers  uint64 `json:"strangers"`   // connections that ended without a call of a peer: no TLS, foreign certificate, garbage
	TooMany    uint64 `json:"too_many"`    // connections, nodes and calls beyond the limits
	Unknown    uint64 `json:"unknown"`     // calls of unknown methods
	Malformed  uint64 `json:"malformed"`   // messages and names that were too large or made no sense
	Denied     uint64 `json:"denied"`      // calls by callers that are not peers, or not yet
	BadMeta    uint64 `json:"bad_meta"`    // metas that made no sense
	Refused    uint64 `json:"refused"`     // times a node was refused as peer
	FarVersion uint64 `json:"far_version"` // version numbers that no clock gives, not believed

	GravesSent   uint64 `json:"graves_sent"`   // in exchanges
	GravesTaken  uint64 `json:"graves_taken"`  // new graves, from feeds and exchanges
	Exchanges    uint64 `json:"exchanges"`     // that succeeded
	LeaseGrants  uint64 `json:"lease_grants"`  // to peers
	LeaseExpired uint64 `json:"lease_expired"` // not released in time
	Lent         uint64 `json:"lent_blocks"`   // blocks lent by name
	Stored       uint64 `json:"stored_blocks"` // blocks taken from peers that offered them

	FabricPeers     int    `json:"fabric_peers"`           // live, and read by RDMA now
	FabricFetches   uint64 `json:"fabric_fetched_blocks"`  // blocks
	FabricBytes     uint64 `json:"fabric_fetched_bytes"`   // their bytes
	FabricFallbacks uint64 `json:"fabric_fallback_blocks"` // blocks that RDMA did not bring and that TCP was asked for
}

// counters are the totals of Stats.
type counters struct {
	control.Counters
	badMeta, refused, farVersion                atomic.Uint64
	gravesSent, gravesTaken, exchanges          atomic.Uint64
	leaseGrants, leaseExpired, lent, stored     atomic.Uint64
	found                                       atomic.Uint64
	fabricFetches, fabricBytes, fabricFallbacks atomic.Uint64
}

// Stats returns the totals and current numbers of this node.
func (n *Node) Stats() Stats {
	c := &n.counters
	peers := n.allPeers()
	live, linked := 0, 0
	leases, _ := n.leases.Held()
	for _, p := range peers {
		if s := p.live(); s != nil {
			live++
			if s.link.Load() != nil {
				linked++
			}
		}
	}
	return Stats{
		Gossip: n.gossip.Stats(), Index: n.index.Stats(), Share: n.scopes.Share(), Found: c.found.Load(),
		Live: live, Known: len(peers), Serving: n.followers.Count(), FeedLag: n.feed.Lag(), Leases: leases, Conns: n.server.Conns(),
		Strangers: c.Strangers.Load(), TooMany: c.TooMany.Load(), Unknown: c.Unknown.Load(), Malformed: c.Malformed.Load(),
		Denied: c.Denied.Load(), BadMeta: c.badMeta.Load(), Refused: c.refused.Load(), FarVersion: c.farVersion.Load(),
		GravesSent: c.gravesSent.Load(), GravesTaken: c.gravesTaken.Load(), Exchanges: c.exchanges.Load(),
		LeaseGrants: c.leaseGrants.Load(), LeaseExpired: c.leaseExpired.Load(), Lent: c.lent.Load(), Stored: c.stored.Load(),
		FabricPeers: linked, FabricFetches: c.fabricFetches.Load(), FabricBytes: c.fabricBytes.Load(),
		FabricFallbacks: c.fabricFallbacks.Load(),
	}
}
