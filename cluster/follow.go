package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// The states of a feed, for Member.Feed.
const (
	feedWaiting   = "waiting"
	feedSnapshot  = "snapshot"
	feedFollowing = "following"
)

// follow keeps following the peer's feed until the session ends. After a failure it starts
// again, after a pause that grows while nothing comes. It gives up if the peer has never
// answered in this session.
func (p *Peer) follow(s *session) {
	t := &p.n.o.tuning
	backoff := t.retryMin
	for s.ctx.Err() == nil {
		p.setFeed(feedWaiting)
		progress, err := p.subscribe(s)
		if s.ctx.Err() != nil {
			return
		}
		if progress {
			backoff = t.retryMin
		}
		if errors.Is(err, errResync) {
			continue
		}
		p.n.log.Debug("feed broke", zap.String("peer", p.name), zap.Error(err))
		p.outcome(p.control, err)
		if s.begin != nil {
			return
		}
		timer := time.NewTimer(breaker.Jitter(backoff))
		select {
		case <-timer.C:
		case <-s.ctx.Done():
		}
		timer.Stop()
		backoff = min(2*backoff, t.retryMax)
		s.conn.ResetConnectBackoff()
	}
}

// errResync ends a feed so that the next one begins with a new snapshot.
var errResync = errors.New("time for a new snapshot")

// subscribe follows the feed over one call. It reports whether anything came. From time to
// time it ends the call, so that the next one brings a new snapshot and corrects any mistake
// in what is known of the peer.
func (p *Peer) subscribe(s *session) (progress bool, err error) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	resync := time.AfterFunc(p.n.o.tuning.resync, cancel)
	defer resync.Stop()
	req := &wire.SubscribeRequest{Features: uint64(p.n.self.Features)}
	if d := time.Until(p.resyncAt); d > 0 && s.features&meta.FeatureResume != 0 {
		resync.Reset(d)
		at := p.follower.Position()
		req.Epoch, req.Next = at.Epoch, at.Next
	}
	// Only the beginning has a time limit. After it the pings of the connection find out
	// whether the peer is alive.
	tooLong := time.AfterFunc(p.n.o.CallTimeout, cancel)
	defer tooLong.Stop()
	stream, err := s.control.Subscribe(ctx, req)
	if err == nil {
		_, err = stream.Header()
	}
	if !tooLong.Stop() && s.ctx.Err() == nil {
		return false, fmt.Errorf("%w: no answer to subscribe: %w", rdma.ErrUnavailable, context.DeadlineExceeded)
	}
	if err != nil {
		err = control.Error(s.ctx, err)
		if errors.Is(err, rdma.ErrProtocol) || errors.Is(err, rdma.ErrBusy) {
			s.answered() // it answered that it has no feed for this node; other calls may still work
		}
		return false, err
	}
	s.answered()
	p.control.Kick()
	p.bulk.Kick()
	p.fabric.Kick()
	p.setFeed(feedFollowing)
	for {
		b, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return progress, fmt.Errorf("%w: feed ended", rdma.ErrUnavailable)
		}
		if err != nil && ctx.Err() != nil && s.ctx.Err() == nil {
			return progress, errResync
		}
		if err != nil {
			return progress, control.Error(s.ctx, err)
		}
		if err := p.apply(b); err != nil {
			return progress, fmt.Errorf("%w: feed: %w", rdma.ErrProtocol, err)
		}
		if b.GetBegin() || b.GetEnd() {
			d := breaker.Jitter(p.n.o.tuning.resync)
			resync.Reset(d)
			if b.GetEnd() {
				p.resyncAt = time.Now().Add(d)
			}
		}
		progress = true
	}
}

// apply processes a batch of the feed.
func (p *Peer) apply(b *wire.Batch) error {
	if b.GetBegin() {
		p.setFeed(feedSnapshot)
	}
	err := p.follower.Apply(&feed.Batch{
		Position: feed.Position{Epoch: b.GetEpoch(), Next: b.GetNext()},
		Begin:    b.GetBegin(), End: b.GetEnd(),
		Records: b.GetRecords(), Count: int(b.GetCount()),
	})
	if err == nil && b.GetEnd() {
		p.setFeed(feedFollowing)
		if b := p.n.backend.Load(); b != nil {
			(*b).Followed()
		}
	}
	return err
}

func (p *Peer) setFeed(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.feed = state
}

// buried is called for each new grave from a feed or an exchange.
func (n *Node) buried(r *feed.Record) {
	n.counters.gravesTaken.Add(1)
	n.bury(r.Path, dirMode(r.Mode), r.Seq)
}

// bury passes a grave to the backend.
func (n *Node) bury(path string, dir bool, seq uint64) {
	if b := n.backend.Load(); b != nil && n.self.Features&meta.FeatureBury != 0 {
		(*b).Bury(path, dir, seq)
	}
}

// tooFar counts a record of the peer whose version number is not believed.
func (p *Peer) tooFar() {
	p.n.counters.farVersion.Add(1)
	if !p.far {
		p.far = true
		p.n.log.Warn("ignored versions from the future that a peer told: compare its clock with the clock of this node",
			zap.String("peer", p.name))
	}
}

// observe passes a version number to the backend, unless it is not believed.
func (n *Node) observe(seq uint64) {
	if seq > location.LatestVersion(time.Now()) {
		n.counters.farVersion.Add(1)
		return
	}
	if b := n.backend.Load(); b != nil {
		(*b).Observe(seq)
	}
}
