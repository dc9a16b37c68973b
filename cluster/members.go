package cluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/gossip"
	"github.com/kvfs/kvfs/cluster/meta"
)

// maxPeers bounds the nodes that are remembered, live or not. Gossip has the same limit.
const maxPeers = 1 << 14

// events receives the events of gossip. It passes them on and returns at once; the goroutine
// of each peer makes the sessions.
type events struct{ n *Node }

// ready waits until the node can judge other nodes. After a restart, gossip may report nodes
// while the node still opens. It returns false if the node closes first.
func (e events) ready() bool {
	select {
	case <-e.n.ready:
		return true
	case <-e.n.ctx.Done():
		return false
	}
}

// Joined implements gossip.Events.
func (e events) Joined(g gossip.Node) {
	if e.ready() {
		e.n.seen(g)
	}
}

// Updated implements gossip.Events.
func (e events) Updated(g gossip.Node) {
	if e.ready() {
		e.n.seen(g)
	}
}

// Left implements gossip.Events.
func (e events) Left(g gossip.Node, failed bool) {
	n := e.n
	state, reason := stateLeft, ""
	if failed {
		state, reason = stateFailed, "does not answer gossip"
	}
	n.mu.Lock()
	p := n.mu.peers[g.Name]
	known := p != nil && !n.mu.closed
	if known {
		p.setTarget(state, reason, "", nil)
	}
	n.mu.Unlock()
	if known {
		n.scopes.Kick()
		n.log.Info("peer lost", zap.String("peer", g.Name), zap.String("state", state))
	}
}

// seen processes a node that is present now.
func (n *Node) seen(g gossip.Node) {
	if g.Name == n.o.Gossip.Name || g.Name == "" || len(g.Name) > control.MaxName {
		return
	}
	m, err := meta.Decode(g.Meta)
	target, state, reason, lacks := &m, stateAlive, "", meta.Feature(0)
	if err != nil {
		reason = err.Error()
		if !errors.Is(err, meta.ErrNone) {
			n.counters.badMeta.Add(1)
		}
	} else {
		reason, lacks = n.judge(&m)
	}
	if reason != "" {
		target, state = nil, stateRefused
	}
	missing, changed := n.enter(g, &m, target, state, reason)
	n.scopes.Kick()
	if !changed && missing == 0 || errors.Is(err, meta.ErrNone) {
		return
	}
	about := []zap.Field{zap.String("peer", g.Name), zap.String("version", m.Version), zap.String("addr", g.Addr)}
	if target == nil {
		n.counters.refused.Add(1)
		n.log.Warn("peer refused", append(about, zap.String("reason", reason))...)
		n.die(g.Name, &m, lacks)
		return
	}
	if changed {
		n.log.Info("peer joined", about...)
	}
	for _, feature := range meta.FeatureNames(missing) {
		n.log.Warn("peer lacks a feature, which is not used with it: upgrade the peer",
			append([]zap.Field{zap.String("feature", feature)}, about...)...)
	}
}

// enter stores what gossip tells of a node. It returns the missing features of which the log
// has not been told, and whether the state of the node has changed.
func (n *Node) enter(g gossip.Node, m, target *meta.Meta, state, reason string) (missing meta.Feature, changed bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		return 0, false
	}
	p := n.mu.peers[g.Name]
	if p == nil {
		if len(n.mu.peers) >= maxPeers {
			n.counters.TooMany.Add(1)
			return 0, false
		}
		p = n.newPeer(g.Name)
		n.mu.peers[g.Name] = p
		if n.mu.started {
			n.wg.Go(p.run) // ends when the node closes or the peer is forgotten
		}
	}
	changed = p.stateIs() != state
	missing = p.setTarget(state, reason, g.Addr, target)
	if target == nil {
		p.setMeta(*m)
	}
	return missing, changed
}

// die reports to Fatal a peer that lacks a required feature, while the node starts.
func (n *Node) die(name string, m *meta.Meta, lacks meta.Feature) {
	until := n.initial.Load() // 0: before Start
	if lacks == 0 || until != 0 && time.Now().UnixNano() > until {
		return
	}
	err := fmt.Errorf("cluster: peer %s (version %s) lacks required feature %s", name, m.Version, meta.FeatureNames(lacks)[0])
	select {
	case n.fatal <- err:
	default: // one error is enough
	}
}

// forget removes a peer that has been away for long. It returns false if the peer is back.
func (n *Node) forget(p *Peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if state := p.stateIs(); state != stateLeft && state != stateFailed {
		return false
	}
	delete(n.mu.peers, p.name)
	return true
}

func (p *Peer) stateIs() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.state
}

// refusal returns why the node of that name is refused as a peer, or "" if it is not.
func (n *Node) refusal(name string) string {
	n.mu.Lock()
	p := n.mu.peers[name]
	n.mu.Unlock()
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.state != stateRefused {
		return ""
	}
	return p.mu.reason
}

// setMeta stores the meta of a refused peer, for Members.
func (p *Peer) setMeta(m meta.Meta) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.meta = m
}

// allPeers returns the peers seen lately, sorted by name.
func (n *Node) allPeers() []*Peer {
	n.mu.Lock()
	list := make([]*Peer, 0, len(n.mu.peers))
	for _, p := range n.mu.peers {
		list = append(list, p)
	}
	n.mu.Unlock()
	slices.SortFunc(list, func(a, b *Peer) int { return strings.Compare(a.name, b.name) })
	return list
}

// Peers returns the live peers that this node talks to, sorted by name.
func (n *Node) Peers() []*Peer {
	return slices.DeleteFunc(n.allPeers(), func(p *Peer) bool { return p.live() == nil })
}

// PeerBy returns the live peer with this name, or with this gossip, control or bulk address.
// It returns nil if there is none.
func (n *Node) PeerBy(nameOrAddr string) *Peer {
	n.mu.Lock()
	p := n.mu.peers[nameOrAddr]
	n.mu.Unlock()
	if p != nil && p.live() != nil {
		return p
	}
	for _, p := range n.Peers() {
		if p.hasAddr(nameOrAddr) {
			return p
		}
	}
	return nil
}

// BulkNames returns the names of the talked-to nodes that announce this bulk address: usually
// one.
func (n *Node) BulkNames(addr string) []string {
	var names []string
	for _, p := range n.allPeers() {
		if t := p.target(); t != nil && t.meta.Bulk == addr {
			names = append(names, p.name)
		}
	}
	return names
}

func (p *Peer) hasAddr(addr string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return addr != "" && (addr == p.mu.gossipAddr || addr == p.mu.meta.Control || addr == p.mu.meta.Bulk)
}

// Members returns all nodes seen lately: this one first, then the others sorted by name.
func (n *Node) Members() []Member {
	s := &n.self
	list := []Member{{
		Name: n.o.Gossip.Name, State: stateAlive, Self: true, GossipAddr: n.gossip.Self().Addr,
		ControlAddr: s.Control, BulkAddr: s.Bulk, Zone: s.Zone, Version: s.Version, Protocol: int(s.Protocol),
		Features: meta.FeatureNames(s.Features), TotalBytes: n.total.Load(), FreeBytes: n.free.Load(), Since: n.opened,
		Breaker: "closed",
	}}
	for _, p := range n.allPeers() {
		list = append(list, p.Member())
	}
	return list
}

// Member returns what is known of the peer.
func (p *Peer) Member() Member {
	blocks, followed := p.feed.blocks(), p.feed.follower.Stats()
	state := p.feed.state()
	path, reason := p.links.path()
	var ahead, within float64
	if c := p.marks.Clock(); c != nil {
		ahead, within = c.Ahead.Seconds(), c.Error.Seconds()
	}
	ours := p.n.self.Settings
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.mu.meta
	return Member{
		SettingsDiffer: ours != 0 && s.Settings != 0 && s.Settings != ours, ClockAhead: ahead, ClockError: within,
		Name: p.name, State: p.mu.state, Reason: p.mu.reason, GossipAddr: p.mu.gossipAddr,
		ControlAddr: s.Control, BulkAddr: s.Bulk, Zone: s.Zone, Version: s.Version, Protocol: int(s.Protocol),
		Features: meta.FeatureNames(s.Offered()), Missing: meta.FeatureNames(p.n.wanted() &^ s.Features),
		TotalBytes: s.Total, FreeBytes: s.Free, Since: p.mu.since, Path: path, PathReason: reason,
		Feed: state, FeedRecords: followed.Records, FeedBytes: followed.Bytes, Snapshots: followed.Snapshots,
		Compared: followed.Compared, SnapshotBytes: followed.SnapshotBytes, DigestBytes: followed.DigestBytes,
		Breaker: breaker.Worse(p.control, p.bulk), Failures: p.failures.Load(), LastError: p.mu.lastError,
		FetchedKeys: p.fetchedKeys.Load(), FetchedSize: p.fetchedSize.Load(), Blocks: blocks,
	}
}
