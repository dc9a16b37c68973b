package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// request returns what to ask the peer for so that the feed goes on, and how it then begins. That
// takes another call to the peer if digests are to be compared.
func (f *following) request(s *session) (*wire.SubscribeRequest, beginning, error) {
	at, parts, how := f.follower.Position(), feed.Parts(nil), f.next
	resumes := s.features&meta.FeatureResume != 0
	compares := resumes && s.features&meta.FeatureDigest != 0
	due := time.Until(f.resyncAt) <= 0
	switch {
	case !resumes, at == feed.Position{}, (due || how > fromPosition) && !compares:
		how = withSnapshot
	case due && how == fromPosition:
		how = withDigests
	}
	switch how {
	case withSnapshot:
		at = feed.Position{}
	case withDigests, withDigestsAgain:
		var err error
		if at, parts, err = f.compare(s); err != nil {
			return nil, how, err
		}
	}
	return &wire.SubscribeRequest{
		Features: uint64(f.p.n.self.Features), Epoch: at.Epoch, Next: at.Next, Compares: compares, Parts: parts, Scope: f.asks(s),
	}, how, nil
}

// asks returns the scope that the peer is told: one without FeatureFind would not understand it, and sends everything.
func (f *following) asks(s *session) feed.Parts {
	if s.features&meta.FeatureFind == 0 {
		return nil
	}
	return f.scope
}

// compare compares digests with the peer. It returns the parts that the peer must send, and the
// position behind them. If there are none, this node knows all that the peer holds. After a failure
// that another try does not mend, the feed begins with a snapshot.
func (f *following) compare(s *session) (feed.Position, feed.Parts, error) {
	f.set(feedSnapshot)
	own := f.follower.Digests()
	ctx, cancel := context.WithTimeout(s.ctx, control.MaxCallTime) // the peer looks at all that it holds
	defer cancel()
	reply, err := s.control.Digest(ctx, &wire.DigestRequest{Parts: uint32(len(own)), Shards: own.Shards(), Scope: f.asks(s)})
	if err = control.Error(ctx, err); err != nil {
		if !errors.Is(err, rdma.ErrUnavailable) {
			f.next = withSnapshot
		}
		return feed.Position{}, nil, fmt.Errorf("digests: %w", err)
	}
	s.answered()
	at := feed.Position{Epoch: reply.GetEpoch(), Next: reply.GetNext()}
	parts, err := f.follower.Compare(own, &feed.Difference{Position: at, Shards: reply.GetShards(), Sums: reply.GetSums()})
	if err != nil {
		f.next = withSnapshot
		return feed.Position{}, nil, fmt.Errorf("%w: digests: %w", rdma.ErrProtocol, err)
	}
	if f.next != fromPosition {
		notify(s.missed) // graves: digests do not tell of them. From this position on, the feed does
	}
	if parts == nil {
		f.complete()
	}
	return at, parts, nil
}

// gap notes that the log of the peer has gone past this node, or that the peer is another process
// now. It returns the error with which the feed ends: errResync if the next one may begin at once.
func (f *following) gap(how beginning, progress bool, err error) error {
	switch {
	case progress:
		f.next = withDigests
		return errGap
	case how < withSnapshot:
		f.next = how + 1
		return errResync
	}
	return fmt.Errorf("%w: feed: %w", rdma.ErrProtocol, err)
}
