package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/breaker"
	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/feed"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// maxGraveBytes bounds the paths of one message of an exchange.
const maxGraveBytes = 256 << 10

// maxGraveTime bounds the time of one exchange: a million graves over a slow link.
const maxGraveTime = time.Minute

// graveMarks says how far the exchange with one peer has come. Only one exchange with a peer
// runs at a time.
type graveMarks struct {
	turn   chan struct{} // has one element while an exchange is under way
	epoch  uint64        // incarnation of the peer to which the marks belong
	pulled int64         // the peer's mark: what the peer learned before it is here
	pushed int64         // what this node learned before it is at the peer
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

// exchangeFirst exchanges graves with a peer that has just come. It repeats that until it
// works or the session ends.
func (p *Peer) exchangeFirst(s *session) {
	t := &p.n.o.tuning
	for backoff := t.retryMin; !p.exchange(s); backoff = min(2*backoff, t.retryMax) {
		timer := time.NewTimer(breaker.Jitter(backoff))
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
			return
		}
	}
}

// exchange sends the peer the graves that it may not know, and takes the graves of the peer.
// It returns false on failure. It tells the breaker nothing: the feed does that.
func (p *Peer) exchange(s *session) bool {
	if s.features&FeatureBury == 0 {
		return true
	}
	select {
	case p.marks.turn <- struct{}{}:
		defer func() { <-p.marks.turn }()
	case <-s.ctx.Done():
		return false
	}
	for again := true; again; { // twice if the peer turns out to be a new incarnation
		var err error
		if again, err = p.exchangeOnce(s); err != nil {
			if s.ctx.Err() == nil {
				p.n.log.Debug("exchange of graves", zap.String("peer", p.name), zap.Error(err))
			}
			return false
		}
		p.n.counters.exchanges.Add(1)
	}
	return true
}

// exchangeOnce makes one exchange. again says that the peer is another incarnation than the
// one that got the earlier graves.
func (p *Peer) exchangeOnce(s *session) (again bool, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, maxGraveTime)
	defer cancel()
	m := &p.marks
	stream, err := s.control.Remove(ctx)
	if err != nil {
		return false, control.Error(s.ctx, err)
	}
	if err := stream.Send(&wire.Graves{Epoch: m.epoch, Since: m.pulled}); err != nil && !errors.Is(err, io.EOF) {
		return false, control.Error(s.ctx, err)
	}
	// The peer sends all of its graves before it reads, so this node sends and receives at the
	// same time. Sending ends with ctx at the latest.
	sent := make(chan error, 1)
	pushed := m.pushed
	go func() {
		err := p.n.sendGraves(m.pushed, &pushed, stream.Send)
		sent <- errors.Join(err, stream.CloseSend())
	}()
	epoch, pulled, err := p.receiveGraves(stream)
	if err != nil {
		cancel()
	}
	if e := <-sent; err == nil && e != nil && !errors.Is(e, io.EOF) {
		err = e
	}
	if err != nil {
		return false, control.Error(s.ctx, err)
	}
	again = m.epoch != epoch && m.pushed != 0
	if again {
		pushed = 0
	}
	m.epoch, m.pulled, m.pushed = epoch, pulled, pushed
	return again, nil
}

// receiveGraves takes all that the peer sends.
func (p *Peer) receiveGraves(stream wire.Control_RemoveClient) (epoch uint64, mark int64, err error) {
	for {
		g, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			if epoch == 0 {
				return 0, 0, fmt.Errorf("%w: exchange of graves without an end", rdma.ErrProtocol)
			}
			return epoch, mark, nil
		}
		if err != nil {
			return 0, 0, err
		}
		p.n.takeGraves(g)
		if g.GetEpoch() != 0 {
			epoch, mark = g.GetEpoch(), g.GetMark()
		}
	}
}

// sendGraves sends the graves learned at or after the time since. It sets mark to the time of
// the last one.
func (n *Node) sendGraves(since int64, mark *int64, send func(*wire.Graves) error) error {
	msg, size := &wire.Graves{}, 0
	var err error
	flush := func() bool {
		if len(msg.Graves) > 0 {
			n.counters.gravesSent.Add(uint64(len(msg.Graves)))
			err = send(msg)
			msg, size = &wire.Graves{}, 0
		}
		return err == nil
	}
	n.index.Graves(since, func(g location.Grave) bool {
		*mark = max(*mark, g.Learned)
		msg.Graves = append(msg.Graves, &wire.Grave{Path: []byte(g.Path), Dir: g.Dir, Seq: g.Seq, At: g.At})
		size += len(g.Path)
		return len(msg.Graves) < control.MaxGraves && size < maxGraveBytes || flush()
	})
	flush()
	return err
}

// takeGraves enters the graves of a message from another node.
func (n *Node) takeGraves(msg *wire.Graves) {
	latest := LatestVersion(time.Now())
	for _, g := range msg.GetGraves() {
		path := string(g.GetPath())
		if _, err := block.ParseKey(path); err != nil {
			n.counters.Malformed.Add(1)
			continue
		}
		if g.GetSeq() > latest {
			n.counters.farVersion.Add(1)
			continue
		}
		if n.index.Bury(location.HashPath(path), g.GetSeq(), g.GetDir(), path, g.GetAt()) {
			n.counters.gravesTaken.Add(1)
			n.observe(g.GetSeq())
			n.bury(path, g.GetDir(), g.GetSeq())
		}
	}
}

// Remove implements wire.ControlServer: it is the other side of exchangeOnce.
func (v *service) Remove(stream wire.Control_RemoveServer) error {
	n := v.n
	if n.self.features&FeatureBury == 0 {
		return n.lacks(FeatureBury)
	}
	ctx, cancel := context.WithTimeout(stream.Context(), maxGraveTime)
	defer cancel()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	since := first.GetSince()
	if first.GetEpoch() != n.epoch {
		since = 0
	}
	mark := since
	if err := n.sendGraves(since, &mark, stream.Send); err != nil {
		return err
	}
	if err := stream.Send(&wire.Graves{Epoch: n.epoch, Mark: mark}); err != nil {
		return err
	}
	for msg := first; ; {
		n.takeGraves(msg)
		if ctx.Err() != nil {
			return control.Status(ctx.Err())
		}
		if msg, err = stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
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
	if n.self.features&FeatureMemory == 0 {
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
