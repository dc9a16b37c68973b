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
	Share float64 `json:"followed_share" help:"part of all keys of which this node knows where they are: 1, or less with [owned locations](cluster.md#large-clusters)"`
	Found uint64  `json:"found_names" help:"names about which peers asked this node, and that it could answer"`

	Live    int    `json:"live" help:"peers that this node talks to"`
	Known   int    `json:"known" help:"peers seen lately"`
	Serving int    `json:"serving" help:"feeds of this node that peers follow"`
	FeedLag uint64 `json:"feed_lag_records" help:"records that the slowest of them has not been sent" kind:"gauge"`
	Leases  int    `json:"leases" help:"leases of blocks that peers read"`
	Conns   int    `json:"connections" help:"control connections from peers"`

	// Caused by strangers or by broken peers.
	Strangers  uint64 `json:"strangers" help:"connections that ended without a call of a peer: no TLS, foreign certificate, garbage"`
	TooMany    uint64 `json:"too_many" help:"connections, nodes and calls beyond the limits"`
	Unknown    uint64 `json:"unknown" help:"calls of unknown methods"`
	Malformed  uint64 `json:"malformed" help:"messages and names that were too large or made no sense"`
	Denied     uint64 `json:"denied" help:"calls by callers that are not peers, or not yet"`
	BadMeta    uint64 `json:"bad_meta" help:"descriptions of nodes that made no sense"`
	Refused    uint64 `json:"refused" help:"times that a node was refused as a peer"`
	FarVersion uint64 `json:"far_version" help:"version numbers that no clock gives, which were not believed"`

	GravesSent   uint64 `json:"graves_sent" help:"removals sent in exchanges"`
	GravesTaken  uint64 `json:"graves_taken" help:"new removals from feeds and exchanges"`
	Exchanges    uint64 `json:"exchanges" help:"exchanges of removals that succeeded"`
	LeaseGrants  uint64 `json:"lease_grants" help:"leases given to peers"`
	LeaseExpired uint64 `json:"lease_expired" help:"leases that were not released in time"`
	Lent         uint64 `json:"lent_blocks" help:"blocks lent by name"`
	Stored       uint64 `json:"stored_blocks" help:"blocks taken from peers that offered them"`

	FabricPeers     int    `json:"fabric_peers" help:"peers that are read by RDMA now"`
	FabricFetches   uint64 `json:"fabric_fetched_blocks" help:"blocks read by RDMA"`
	FabricBytes     uint64 `json:"fabric_fetched_bytes" help:"bytes of these blocks"`
	FabricFallbacks uint64 `json:"fabric_fallback_blocks" help:"blocks that RDMA did not bring and TCP was asked for"`
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
