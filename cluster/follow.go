package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/owner"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// The states of a feed, for Member.Feed.
const (
	feedWaiting   = "waiting"
	feedSnapshot  = "snapshot"
	feedFollowing = "following"
)

// following is the feed of a peer, as this node follows it.
type following struct {
	p *Peer

	// Used by Peer.run alone.
	follower *feed.Follower
	far      bool      // the log has been told of versions from the future
	resyncAt time.Time // when all that is known is to be compared again
	next     beginning
	scope    owner.Scope // of the call

	mu struct {
		sync.Mutex
		// covered is what the feed has been complete of since the peer's entries were last deleted; nil: it has not. Both it
		// and whole, which this call makes complete, are without what was out of the scope since: its entries were dropped.
		covered  *owner.Scope
		whole    owner.Scope
		moved    bool // the scope has changed since the call began
		catching bool // the call has not come to what is known already: a change of the scope waits for that

		state  string             // for Member.Feed
		slots  []location.Slot    // given to the follower
		cancel context.CancelFunc // ends the call; nil: there was none
	}
}

// beginning is how a feed begins.
type beginning uint8

// The beginnings. Without FeatureDigest in the peer there is no comparison but always a snapshot.
const (
	fromPosition beginning = iota // of the follower
	withDigests                   // with what differs, as digests say
	withDigestsAgain
	withSnapshot
)

func newFollowing(p *Peer) *following {
	f := &following{p: p}
	f.mu.moved = true
	f.follower = feed.NewFollower(p.n.index, f, f.buried, func(seq uint64) { p.n.observe(seq, p.name) })
	f.follower.OnFar(f.tooFar)
	f.follower.Clock(func(told int64) int64 { return p.marks.Ours(told, p.n.graves.Now()) })
	f.follower.Scope(p.n.scopes.Wants)
	return f
}

// again follows each change of the scope. It ends the call, so that the next one has the scope of now.
func (f *following) again() {
	now := f.p.n.scopes.Follow()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.moved, f.mu.whole = true, owner.And(f.mu.whole, now)
	if f.mu.covered != nil {
		both := owner.And(*f.mu.covered, now)
		f.mu.covered = &both
	}
	if f.mu.cancel != nil && !f.mu.catching {
		f.mu.cancel()
	}
}

// rescope begins a call, which cancel ends, with the scope of now. If that has changed, also if it has changed back, the feed
// begins by comparing digests.
func (f *following) rescope(cancel func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.cancel, f.mu.catching = cancel, true
	if f.mu.moved {
		f.scope, f.resyncAt = f.p.n.scopes.Follow(), time.Time{}
		f.mu.moved, f.mu.whole = false, f.scope
	}
}

// caughtUp notes that the call goes on from what is known. complete: that is all that the peer holds.
func (f *following) caughtUp(complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.catching = false
	if complete {
		whole := f.mu.whole
		f.mu.covered = &whole
	}
	if f.mu.moved {
		f.mu.cancel()
	}
}

// covered returns what the feed has been complete of, nil if it has not.
func (f *following) covered() *owner.Scope {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.covered
}

// drop forgets what the peer holds.
func (f *following) drop() {
	f.follower.Drop()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.covered = nil
}

// run keeps following the peer's feed until the session ends. After a failure it starts
// again, after a pause that grows while nothing comes. It gives up if the peer has never
// answered in this session.
func (f *following) run(s *session) {
	p, t := f.p, &f.p.n.o.tuning
	backoff := t.retryMin
	for s.ctx.Err() == nil {
		f.set(feedWaiting)
		progress, err := f.subscribe(s)
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
		if !errors.Is(err, errGap) {
			p.outcome(p.control, err)
		}
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

// errResync ends a feed so that the next one begins at once, in another way.
var errResync = errors.New("time to compare all")

// errGap says that the log of the peer has gone past this node while it followed.
var errGap = errors.New("the peer's log has gone past this node")

// subscribe follows the feed over one call. It reports whether anything came. From time to
// time it ends the call, so that the next one corrects any mistake in what is known of the peer.
func (f *following) subscribe(s *session) (progress bool, err error) {
	p := f.p
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	f.rescope(cancel)
	req, how, err := f.request(s)
	if err != nil {
		return false, err
	}
	if how == fromPosition {
		f.caughtUp(false)
	}
	resync := time.AfterFunc(p.n.o.tuning.resync, cancel)
	defer resync.Stop()
	if d := time.Until(f.resyncAt); d > 0 {
		resync.Reset(d)
	}
	stream, err := f.begin(ctx, cancel, s, req)
	if err != nil {
		return false, err
	}
	s.answered()
	p.control.Kick()
	p.bulk.Kick()
	p.fabric.Kick()
	f.set(feedFollowing)
	for {
		b, err := stream.Recv()
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return progress, fmt.Errorf("%w: feed ended", rdma.ErrUnavailable)
		case ctx.Err() != nil && s.ctx.Err() == nil:
			return progress, errResync
		case req.GetCompares() && control.Gap(err):
			return progress, f.gap(how, progress, err)
		default:
			return progress, control.Error(s.ctx, err)
		}
		if err := f.apply(b); err != nil {
			return progress, fmt.Errorf("%w: feed: %w", rdma.ErrProtocol, err)
		}
		if b.GetBegin() {
			resync.Reset(p.n.o.tuning.resync)
		}
		if b.GetEnd() {
			resync.Reset(f.complete())
		}
		progress = true
	}
}

// begin makes the call of a feed. ctx is the call's, and cancel ends it.
func (f *following) begin(
	ctx context.Context, cancel func(), s *session, req *wire.SubscribeRequest,
) (wire.Control_SubscribeClient, error) {
	// Only the beginning has a time limit. After it the pings of the connection find out
	// whether the peer is alive.
	tooLong := time.AfterFunc(f.p.n.o.CallTimeout, cancel)
	defer tooLong.Stop()
	stream, err := s.control.Subscribe(ctx, req)
	if err == nil {
		_, err = stream.Header()
	}
	switch {
	case !tooLong.Stop() && s.ctx.Err() == nil:
		return nil, fmt.Errorf("%w: no answer to subscribe: %w", rdma.ErrUnavailable, context.DeadlineExceeded)
	case err != nil && ctx.Err() != nil && s.ctx.Err() == nil:
		return nil, errResync
	case err != nil:
		err = control.Error(s.ctx, err)
		if errors.Is(err, rdma.ErrProtocol) || errors.Is(err, rdma.ErrBusy) {
			s.answered() // it answered that it has no feed for this node; other calls may still work
		}
		return nil, err
	}
	return stream, nil
}

// apply processes a batch of the feed.
func (f *following) apply(b *wire.Batch) error {
	if b.GetBegin() {
		f.set(feedSnapshot)
	}
	err := f.follower.Apply(&feed.Batch{
		Position: feed.Position{Epoch: b.GetEpoch(), Next: b.GetNext()},
		Begin:    b.GetBegin(), End: b.GetEnd(), Partial: b.GetPartial(),
		Records: b.GetRecords(), Count: int(b.GetCount()), Skipped: b.GetSkipped(),
	})
	return err
}

// complete notes that the index knows all that the peer holds. It returns after which time that is
// to be compared again.
func (f *following) complete() time.Duration {
	f.set(feedFollowing)
	f.caughtUp(true)
	f.p.n.scopes.Kick()
	if b := f.p.n.backend.Load(); b != nil {
		(*b).Followed()
	}
	d := breaker.Jitter(f.p.n.o.tuning.resync)
	if f.p.n.index.Full() {
		d *= 24 // what has no room would come again and again
	}
	f.resyncAt, f.next = time.Now().Add(d), fromPosition
	return d
}

func (f *following) set(state string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.state = state
}

// state returns Member.Feed.
func (f *following) state() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.state
}

// TakeSlot implements feed.Slots.
func (f *following) TakeSlot() (location.Slot, bool) {
	slot, ok := f.p.n.slots.take(f.p)
	if ok {
		f.mu.Lock()
		f.mu.slots = append(f.mu.slots, slot)
		f.mu.Unlock()
	}
	return slot, ok
}

// GiveSlot implements feed.Slots.
func (f *following) GiveSlot(slot location.Slot) {
	f.mu.Lock()
	f.mu.slots = slices.DeleteFunc(f.mu.slots, func(x location.Slot) bool { return x == slot })
	f.mu.Unlock()
	f.p.n.slots.peers[slot].Store(nil)
}

// blocks returns how many blocks the peer has according to the index: an estimate if the index has only a part of them. During a
// snapshot it returns the entries shown or those of the snapshot, whichever are more.
func (f *following) blocks() int64 {
	f.mu.Lock()
	slots := slices.Clone(f.mu.slots)
	f.mu.Unlock()
	var most int64
	for _, slot := range slots {
		most = max(most, f.p.n.index.Blocks(slot))
	}
	return int64(float64(most) / f.p.n.scopes.Share())
}

// buried takes a new grave of the feed.
func (f *following) buried(r *feed.Record) { f.p.n.taken(r.Path, dirMode(r.Mode), r.Seq, f.p.name) }

// taken counts a new grave of another node and passes it to the backend. from is the name of that node, "" if it is not known.
func (n *Node) taken(path string, dir bool, seq uint64, from string) {
	n.counters.gravesTaken.Add(1)
	n.observe(seq, from)
	n.bury(path, dir, seq)
}

// bury passes a grave to the backend.
func (n *Node) bury(path string, dir bool, seq uint64) {
	if b := n.backend.Load(); b != nil && n.self.Features&meta.FeatureBury != 0 {
		(*b).Bury(path, dir, seq)
	}
}

// tooFar counts a record of the peer whose version number is not believed.
func (f *following) tooFar() {
	p := f.p
	p.n.counters.farVersion.Add(1)
	if !f.far {
		f.far = true
		p.n.log.Warn("ignored versions that a peer told: their numbers are higher than any clock gives",
			zap.String("peer", p.name))
	}
}

// observe passes a version number of a node to the backend, unless it is not believed.
func (n *Node) observe(seq uint64, from string) {
	if seq > block.MaxSeq {
		n.counters.farVersion.Add(1)
		return
	}
	if b := n.backend.Load(); b != nil {
		(*b).Observe(seq, from)
	}
}
