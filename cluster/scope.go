package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/message"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/owner"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// maxFound is how many holders of a block an owner tells.
const maxFound = 8

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

// covered implements owner.Options.Covered.
func (n *Node) covered() (of []owner.Scope, all bool) {
	all = true
	for _, p := range n.allPeers() {
		if p.target() == nil {
			continue
		}
		if c := p.feed.covered.Load(); c != nil {
			of = append(of, *c)
		} else {
			all = false
		}
	}
	return of, all
}

// Knows reports whether the location index has all that is known of a hash. False: Ask.
func (n *Node) Knows(hash uint64) bool { return n.scopes.Knows(hash) }

// Ask asks the owners of paths what other nodes have there, and calls found for each live holder of each path, from this
// goroutine; of one path the best first. It returns when all are answered or given up, after 0.4 s at most, or when ctx ends.
func (n *Node) Ask(ctx context.Context, paths []string, found func(path string, l Location)) {
	t := n.scopes.Table()
	if t == nil {
		return
	}
	owner.Ask(ctx, t, n.o.Gossip.Name, paths, n.find, func(path string, holders []Location) {
		slices.SortFunc(holders, func(a, b Location) int { return cmp.Compare(a.rank, b.rank) })
		for _, l := range holders {
			found(path, l)
		}
	})
}

// find asks one owner.
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
		found, err = n.holders(reply, paths)
		return err
	})
	return found, unsure, err
}

// holders returns the live holders in a reply, without this node.
func (n *Node) holders(reply *wire.FindReply, paths []string) (found []owner.Holders[Location], err error) {
	latest := location.LatestVersion(time.Now())
	for _, w := range reply.GetFound() {
		if int(w.GetPath()) >= len(paths) || int(w.GetNode()) >= len(reply.GetNodes()) {
			return nil, fmt.Errorf("%w: holder %d of path %d", rdma.ErrProtocol, w.GetNode(), w.GetPath())
		}
		e, err := message.FoundFromWire(w, paths[w.GetPath()])
		if err != nil {
			return nil, err
		}
		p := n.peer(reply.GetNodes()[w.GetNode()])
		if p == nil || e.Seq > latest {
			continue
		}
		l := Location{Peer: p, Entry: e, rank: n.rank(p, &location.Holder{Entry: e})}
		if last := len(found) - 1; last >= 0 && found[last].Path == w.GetPath() {
			found[last].List = append(found[last].List, l)
		} else {
			found = append(found, owner.Holders[Location]{Path: w.GetPath(), List: []Location{l}})
		}
	}
	return found, nil
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
	if len(req.GetPaths()) > control.MaxStat {
		return nil, status.Errorf(codes.InvalidArgument, "%d paths, %d is the limit", len(req.GetPaths()), control.MaxStat)
	}
	paths := make([]string, len(req.GetPaths()))
	for i, p := range req.GetPaths() {
		paths[i] = string(p)
	}
	reply, numbers := &wire.FindReply{}, map[string]uint32{}
	number := func(name string) uint32 {
		k, ok := numbers[name]
		if !ok {
			k = uint32(len(reply.Nodes))
			numbers[name], reply.Nodes = k, append(reply.Nodes, name)
		}
		return k
	}
	var buf []Location
	for i, own := range b.Stat(paths) {
		hash := location.HashPath(paths[i])
		if !n.scopes.Knows(hash) {
			reply.Unsure = append(reply.Unsure, uint32(i))
			continue
		}
		buf = n.Locate(paths[i], buf[:0])
		if own != nil && (len(buf) == 0 || own.Seq >= buf[0].Seq) {
			e := location.Entry{Seq: own.Seq, Size: own.Size, Mode: own.Mode, UID: own.UID, GID: own.GID, Memory: true}
			reply.Found = append(reply.Found, message.FoundToWire(&e, uint32(i), number(n.o.Gossip.Name)))
			buf = slices.DeleteFunc(buf, func(l Location) bool { return l.Seq < own.Seq })
		} else if len(buf) == 0 && !n.scopes.Sure(hash) {
			reply.Unsure = append(reply.Unsure, uint32(i))
		}
		for _, l := range buf[:min(len(buf), maxFound)] {
			reply.Found = append(reply.Found, message.FoundToWire(&l.Entry, uint32(i), number(l.Peer.name)))
		}
	}
	n.counters.found.Add(uint64(len(paths) - len(reply.Unsure)))
	return reply, nil
}
