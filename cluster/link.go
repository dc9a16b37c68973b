package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/control"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/cluster/remote"
	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
)

// maxReason bounds the characters of an error in Member.PathReason: it may quote an address.
const maxReason = 500

// The ways of Member.Path.
const (
	pathRDMA = "rdma"
	pathTCP  = "tcp"
)

// link is a connection by the fabric over which the peer's memory has been read. A session has
// one link or none:
//
//	none   blocks come by the transport. links.watch asks for the address, connects, and reads
//	       the probe region, with a back-off after each failure
//	one    blocks come by the link. The first failed read closes it and wakes links.watch. If
//	       a read was cut off for lack of time, links.watch tests the link first
type link struct {
	*remote.Memory
	doubted chan struct{} // has one element if the link is to be tested
	partly  atomic.Bool   // not every network card reaches the peer
}

// Reasons for a peer without a link: the first words of Member.PathReason. The log gets each
// reason once in a session.
const (
	noRDMAHere      = "no RDMA here"
	noRDMAThere     = "no RDMA there"
	anotherProvider = "another provider"
	probeFailed     = "probe failed"
	readFailed      = "read failed"
	leaseFailed     = "lease failed"
	linkStalled     = "stalled"
	wrongBytes      = "wrong bytes"
	notAnswering    = "does not answer"
	notTriedYet     = "not tried yet"
	someCards       = "some devices do not reach it"
	allCards        = "all devices reach it"
)

// links makes the links of a peer, one after the other, and knows why there is none.
type links struct {
	p *Peer

	mu struct {
		sync.Mutex
		reason string          // why the session has no link
		told   map[string]bool // what the log has been told of the link in this session
	}
}

// watch makes the link of a session, and makes it again after a failure, until the session
// ends. It closes the link on return; its caller waits for it.
func (x *links) watch(s *session) {
	p := x.p
	if s.features&meta.FeatureRDMA == 0 {
		x.without(s, noRDMAThere, nil)
		return
	}
	p.fabric.Reset()
	defer func() {
		if l := s.link.Swap(nil); l != nil {
			x.close(l)
		}
	}()
	for {
		if l := x.open(s); l != nil && !x.keep(s, l) {
			return
		}
		if !p.fabric.Wait(s.ctx) {
			return
		}
	}
}

// keep tests the link when a reader doubts it. At intervals it tests the network cards
// that did not reach the peer. It returns true when the link is lost, false when the session
// has ended.
func (x *links) keep(s *session, l *link) bool {
	tick := time.NewTicker(x.p.n.o.tuning.cards)
	defer tick.Stop()
	for {
		select {
		case <-l.doubted:
			x.try(s, l)
		case <-tick.C: // also if all cards reached the peer: a card that failed since is not used before a test
			x.tryCards(s, l)
		case <-s.lost:
			return true
		case <-s.ctx.Done():
			return false
		}
	}
}

// try ends the link if the probe region cannot be read by it any more.
func (x *links) try(s *session, l *link) {
	ctx, cancel := context.WithTimeout(s.ctx, x.p.n.o.CallTimeout)
	defer cancel()
	if err := l.Test(ctx); err != nil && s.ctx.Err() == nil {
		x.lose(s, l, probeFailed, err)
	}
}

func (x *links) close(l *link) {
	p := x.p
	if err := l.Close(); err != nil {
		p.n.log.Debug("closing an RDMA connection", zap.String("peer", p.name), zap.Error(err))
	}
}

// open asks the peer for its fabric, connects, and reads its probe region. If the bytes
// are right, the session gets the link, and open returns it.
func (x *links) open(s *session) *link {
	p := x.p
	ctx, cancel := context.WithTimeout(s.ctx, p.n.o.CallTimeout)
	defer cancel()
	reply, err := s.control.Describe(ctx, &wire.DescribeRequest{})
	if err = control.Error(ctx, err); err == nil {
		err = remote.Check(reply)
	}
	if err != nil {
		kind := probeFailed
		if !errors.Is(err, rdma.ErrProtocol) {
			kind = notAnswering // the breaker of calls reports that
		}
		x.without(s, kind, err)
		return nil
	}
	if own := p.n.fabric.Proto; reply.GetFabricProto() != own {
		x.without(s, anotherProvider, fmt.Errorf("%q there, %q here", reply.GetFabricProto(), own))
		return nil
	}
	memory, err := p.n.fabric.Connect(ctx, reply)
	if err != nil {
		x.without(s, probeFailed, err)
		return nil
	}
	l := &link{Memory: memory, doubted: make(chan struct{}, 1)}
	x.setReason("") // first, since lose may set another
	s.link.Store(l)
	x.tryCards(s, l)
	if x.tells(pathRDMA) {
		p.n.log.Info("peer is read by RDMA", zap.String("peer", p.name), zap.String("proto", p.n.fabric.Proto))
	}
	return l
}

// tryCards finds out which cards do not reach a peer that can be read. It sets
// Member.PathReason and writes to the log.
func (x *links) tryCards(s *session, l *link) {
	p := x.p
	ctx, cancel := context.WithTimeout(s.ctx, p.n.o.CallTimeout)
	defer cancel()
	ok, err := l.TestCards(ctx)
	if !ok {
		return
	}
	reason := ""
	if err != nil {
		reason = fmt.Sprintf("%s: %.*s", someCards, maxReason, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if !x.setCardsReason(s, l, reason) {
		return // no change
	}
	was := l.partly.Swap(err != nil)
	switch {
	case err != nil && x.tells(someCards):
		p.n.log.Warn("not every RDMA device reaches a peer: it is read over the others", zap.String("peer", p.name), zap.String("reason", reason))
	case err == nil && was && x.tells(allCards):
		p.n.log.Info("every RDMA device reaches a peer again", zap.String("peer", p.name))
	}
}

// setCardsReason says which cards do not reach the peer. If the link is lost, the reason for
// that stays.
func (x *links) setCardsReason(s *session, l *link, reason string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s.ended.Load() || s.link.Load() != l {
		return false
	}
	x.mu.reason = reason
	return true
}

// lose ends a link after a failed read, unless it has ended already. Other reads by the link
// fail.
func (x *links) lose(s *session, l *link, kind string, err error) {
	if !s.link.CompareAndSwap(l, nil) {
		return
	}
	x.without(s, kind, err)
	x.close(l)
	notify(s.lost)
}

// without sets the reason for the missing link, and writes it to the log if it is new in this
// session.
func (x *links) without(s *session, kind string, err error) {
	p := x.p
	if s.ended.Load() {
		return // no change
	}
	reason := kind
	if err != nil {
		reason = fmt.Sprintf("%s: %.*s", kind, maxReason, err)
	}
	x.setReason(reason)
	if !x.tells(kind) {
		return
	}
	message, level := "peer without RDMA: TCP instead", zap.WarnLevel
	if p.n.o.Path == PathRDMA {
		message = "peer without RDMA: nothing is fetched from it"
	}
	if kind == notAnswering {
		level = zap.DebugLevel
	}
	p.n.log.Log(level, message, zap.String("peer", p.name), zap.String("reason", reason))
}

// tells reports whether what is new in this session, so that the log is told once.
func (x *links) tells(what string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.told[what] {
		return false
	}
	x.mu.told[what] = true
	return true
}

func (x *links) setReason(reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.reason = reason
}

// forget clears what an earlier session knew of the path.
func (x *links) forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.mu.told = map[string]bool{}
	x.mu.reason = notTriedYet
}

// path returns Member.Path and Member.PathReason.
func (x *links) path() (path, reason string) {
	p := x.p
	x.mu.Lock()
	defer x.mu.Unlock()
	s := p.live()
	if s == nil {
		return "", ""
	}
	if s.link.Load() != nil {
		return pathRDMA, x.mu.reason
	}
	if p.n.fabric == nil {
		if err := p.n.fabricErr; err != nil {
			reason = fmt.Sprintf("%s: %.*s", noRDMAHere, maxReason, err)
		}
		return pathTCP, reason
	}
	if p.n.o.Path == PathRDMA {
		return "", x.mu.reason
	}
	return pathTCP, x.mu.reason
}

// fetchable returns the session if blocks can be fetched in it now.
func (p *Peer) fetchable() (*session, error) {
	s := p.live()
	switch {
	case s != nil && p.readable(s):
		return s, nil
	case s == nil || p.n.o.Path != PathRDMA:
		return p.usable(p.bulk)
	case s.link.Load() != nil:
		return nil, p.tooOften()
	}
	return nil, p.links.none()
}

// readable reports whether there is a link, and whether the breaker lets calls for leases
// through now.
func (p *Peer) readable(s *session) bool { return s.link.Load() != nil && p.control.Closed() }

// none returns the error of a fetch that only a link could make: there is none.
func (x *links) none() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return fmt.Errorf("%w: %s is not read by RDMA: %s", rdma.ErrUnavailable, x.p.name, x.mu.reason)
}

// Usable reports whether the peer is live and answers fetches now.
func (p *Peer) Usable() bool {
	s := p.live()
	return s != nil && (p.readable(s) || p.n.o.Path != PathRDMA && p.bulk.Closed())
}
