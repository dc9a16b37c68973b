package cluster

import (
	"context"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// exchange sends the peer the graves that it may not know, and takes the graves of the peer.
// It returns false on failure. It tells the breaker nothing: the feed does that.
func (p *Peer) exchange(s *session) bool {
	if s.features&meta.FeatureBury == 0 {
		return true
	}
	n, err := p.n.graves.With(s.ctx, s.control, p.marks)
	p.n.counters.exchanges.Add(n)
	if err != nil && s.ctx.Err() == nil {
		p.n.log.Debug("exchange of graves", zap.String("peer", p.name), zap.Error(err))
	}
	return err == nil
}

// Remove implements wire.ControlServer.
func (v *service) Remove(stream wire.Control_RemoveServer) error {
	if v.n.self.Features&meta.FeatureBury == 0 {
		return v.n.lacks(meta.FeatureBury)
	}
	return v.n.graves.Serve(stream)
}

// openGraves enters the graves of this node's last process into the index.
// Without a file the node still works, but its next process does not know the removals.
func (n *Node) openGraves() {
	if n.o.GraveFile == "" {
		return
	}
	if err := n.graveFile.Open(n.index); err != nil {
		n.log.Warn("file of removals cannot be used: a restart of this node forgets them", zap.String("file", n.o.GraveFile), zap.Error(err))
	}
}

// buryAgain has the backend drop what the graves of the file make void: its devices may have
// brought it back.
func (n *Node) buryAgain() {
	n.index.Graves(0, func(g location.Grave) bool {
		n.observe(g.Seq, n.o.Gossip.Name)
		n.bury(g.Path, g.Dir, g.Seq)
		return true
	})
}

// keepGraves writes new graves to the file until the node closes.
func (n *Node) keepGraves() {
	if err := n.graveFile.Keep(n.ctx); err != nil {
		n.log.Error("file of removals cannot be written any more: a restart of this node forgets them",
			zap.String("file", n.o.GraveFile), zap.Error(err))
	}
}

// exchangeGraves exchanges graves with a random live peer at intervals. So a node that was
// away during a removal learns of it from any node that knows it.
func (n *Node) exchangeGraves() {
	for {
		timer := time.NewTimer(breaker.Jitter(n.o.tuning.exchange))
		select {
		case <-timer.C:
		case <-n.ctx.Done():
			timer.Stop()
			return
		}
		peers := n.Peers()
		if len(peers) == 0 {
			continue
		}
		p := peers[rand.IntN(len(peers))]
		if s := p.live(); s != nil && p.control.Closed() {
			p.exchange(s)
		}
	}
}

// exchangeFirst exchanges graves with a peer that has just come, and again whenever this node has
// missed records of its feed. It repeats each exchange until it works. It ends with the session.
func (p *Peer) exchangeFirst(s *session) {
	t := &p.n.o.tuning
	for {
		for backoff := t.retryMin; !p.exchange(s); backoff = min(2*backoff, t.retryMax) {
			timer := time.NewTimer(breaker.Jitter(backoff))
			select {
			case <-timer.C:
			case <-s.ctx.Done():
				timer.Stop()
				return
			}
		}
		select {
		case <-s.missed:
		case <-s.ctx.Done():
			return
		}
	}
}

// snapshot calls fn for all that this node holds and for all graves that it knows.
func (n *Node) snapshot(ctx context.Context, fn func(r *feed.Record) error) error {
	b := n.backend.Load()
	if b == nil {
		return rdma.ErrBusy
	}
	tell := fn
	if n.self.Features&meta.FeatureMemory == 0 {
		tell = func(r *feed.Record) error {
			masked := *r
			masked.Memory = false
			return fn(&masked)
		}
	}
	if err := (*b).Snapshot(ctx, tell); err != nil {
		return err
	}
	var err error
	n.index.Graves(0, func(g location.Grave) bool {
		r := feed.Record{Op: feed.Bury, Hash: g.Hash, Seq: g.Seq, Path: g.Path, Time: g.At, Mode: 0o100000}
		if g.Dir {
			r.Mode = 0o040000
		}
		err = fn(&r)
		return err == nil
	})
	return err
}
