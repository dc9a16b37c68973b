package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/owner"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// openScopes makes what decides which part of the peers' feeds this node follows.
func (n *Node) openScopes() {
	n.scopes = owner.NewScopes(owner.Options{
		Self: n.o.Gossip.Name, Members: n.owners, Covered: n.covered, Drop: n.index.Keep, Log: n.log,
		Settle: n.o.tuning.settle,
		Full: func() bool {
			return n.o.Locations == LocationsOwned || n.o.Locations == LocationsAuto && n.index.Full()
		},
		Spare: func(share float64) bool {
			if n.o.Locations == LocationsOwned {
				return false
			}
			st := n.index.Stats()
			return float64(st.Entries)*location.EntryBytes/share < float64(st.Limit)/2
		},
		Changed: func() {
			for _, p := range n.allPeers() {
				p.feed.again()
			}
		},
	})
}

// owners returns the names of the peers that gossip finds alive and that can be asked.
func (n *Node) owners() (names []string) {
	for _, p := range n.allPeers() {
		if t := p.target(); t != nil && t.meta.Offered()&n.self.Features&meta.FeatureFind != 0 {
			names = append(names, p.name)
		}
	}
	return names
}

// covered implements owner.Options.Covered. Of a peer that answers gossip but no calls only that counts which covers all that this
// node follows: the rest cannot be had from it.
func (n *Node) covered() (of []owner.Scope, all bool) {
	all = true
	follow := n.scopes.Follow()
	for _, p := range n.allPeers() {
		if p.target() == nil {
			continue
		}
		if c := p.feed.covered(); c != nil && (p.Callable() || owner.Within(follow, *c)) {
			of = append(of, *c)
		} else {
			all = false
		}
	}
	return of, all
}

// Knows reports whether the location index has all that is known of a hash. False: Ask.
func (n *Node) Knows(hash uint64) bool { return n.scopes.Knows(hash) }

// Ask asks the owners of paths what other nodes have there, and calls answer for each path about which one of them knows all,
// from this goroutine, with the live holders, the best first. It returns when all are answered or given up, after 0.4 s at
// most, or when ctx ends.
func (n *Node) Ask(ctx context.Context, paths []string, answer func(path string, holders []Location)) {
	t := n.scopes.Table()
	if t == nil {
		return
	}
	owner.Ask(ctx, t, n.o.Gossip.Name, paths, n.find, func(path string, holders []Location) {
		slices.SortFunc(holders, func(a, b Location) int { return cmp.Compare(a.rank, b.rank) })
		answer(path, holders)
	})
}

// find asks one owner. It returns the live holders, without this node.
func (n *Node) find(ctx context.Context, name string, paths []string) (found []owner.Holders[Location], unsure []uint32, err error) {
	p := n.peer(name)
	if p == nil {
		return nil, nil, fmt.Errorf("%w: %s is not live", rdma.ErrUnavailable, name)
	}
	req := &wire.FindRequest{}
	for _, path := range paths {
		req.Paths = append(req.Paths, []byte(path))
	}
	err = p.call(ctx, meta.FeatureFind, func(ctx context.Context, s *session) error {
		reply, err := s.control.Find(ctx, req)
		if err != nil {
			return control.Error(ctx, err)
		}
		unsure = reply.GetUnsure()
		found, err = owner.Found(reply, paths, func(name string, e location.Entry) (Location, bool) {
			p := n.peer(name)
			if p == nil || e.Seq > block.MaxSeq {
				return Location{}, false
			}
			return Location{Peer: p, Entry: e, rank: n.rank(p, &location.Holder{Entry: e})}, true
		})
		return err
	})
	return found, unsure, err
}

// Find implements wire.ControlServer.
func (v *service) Find(_ context.Context, req *wire.FindRequest) (*wire.FindReply, error) {
	n := v.n
	if n.self.Features&meta.FeatureFind == 0 {
		return nil, n.lacks(meta.FeatureFind)
	}
	b, err := v.ready()
	if err != nil {
		return nil, err
	}
	paths, err := pathsOf(req.GetPaths())
	if err != nil {
		return nil, err
	}
	var list []Location
	reply := n.scopes.Answer(paths, b.Stat(paths), func(path string, buf []owner.Holder) []owner.Holder {
		list = n.Locate(path, list[:0])
		for i := range list {
			buf = append(buf, owner.Holder{Node: list[i].Peer.name, Entry: list[i].Entry})
		}
		return buf
	})
	n.counters.found.Add(uint64(len(paths) - len(reply.Unsure)))
	return reply, nil
}
