package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
//	none   blocks come by the transport. watchLink asks for the address, connects, and reads
//	       the probe region, with a back-off after each failure
//	one    blocks come by the link. The first failed read closes it and wakes watchLink. If
//	       a read was cut off for lack of time, watchLink tests the link first
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

// watchLink makes the link of a session, and makes it again after a failure, until the session
// ends. It closes the link on return; its caller waits for it.
func (p *Peer) watchLink(s *session) {
	if s.features&meta.FeatureRDMA == 0 {
		p.without(s, noRDMAThere, nil)
		return
	}
	p.fabric.Reset()
	defer func() {
		if l := s.link.Swap(nil); l != nil {
			p.closeLink(l)
		}
	}()
	for {
		if l := p.makeLink(s); l != nil && !p.keepLink(s, l) {
			return
		}
		if !p.fabric.Wait(s.ctx) {
			return
		}
	}
}

// keepLink tests the link when a reader doubts it. At intervals it tests the network cards
// that did not reach the peer. It returns true when the link is lost, false when the session
// has ended.
func (p *Peer) keepLink(s *session, l *link) bool {
	tick := time.NewTicker(p.n.o.tuning.cards)
	defer tick.Stop()
	for {
		select {
		case <-l.doubted:
			p.tryLink(s, l)
		case <-tick.C: // also if all cards reached the peer: a card that failed since is not used before a test
			p.tryCards(s, l)
		case <-s.lost:
			return true
		case <-s.ctx.Done():
			return false
		}
	}
}

// tryLink ends the link if the probe region cannot be read by it any more.
func (p *Peer) tryLink(s *session, l *link) {
	ctx, cancel := context.WithTimeout(s.ctx, p.n.o.CallTimeout)
	defer cancel()
	if err := l.Test(ctx); err != nil && s.ctx.Err() == nil {
		p.lose(s, l, probeFailed, err)
	}
}

func (p *Peer) closeLink(l *link) {
	if err := l.Close(); err != nil {
		p.n.log.Debug("closing an RDMA connection", zap.String("peer", p.name), zap.Error(err))
	}
}

// makeLink asks the peer for its fabric, connects, and reads its probe region. If the bytes
// are right, the session gets the link, and makeLink returns it.
func (p *Peer) makeLink(s *session) *link {
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
		p.without(s, kind, err)
		return nil
	}
	if own := p.n.fabric.Proto; reply.GetFabricProto() != own {
		p.without(s, anotherProvider, fmt.Errorf("%q there, %q here", reply.GetFabricProto(), own))
		return nil
	}
	memory, err := p.n.fabric.Connect(ctx, reply)
	if err != nil {
		p.without(s, probeFailed, err)
		return nil
	}
	l := &link{Memory: memory, doubted: make(chan struct{}, 1)}
	p.setPathReason("") // first, since lose may set another
	s.link.Store(l)
	p.tryCards(s, l)
	if p.tells(pathRDMA) {
		p.n.log.Info("peer is read by RDMA", zap.String("peer", p.name), zap.String("proto", p.n.fabric.Proto))
	}
	return l
}

// tryCards finds out which cards do not reach a peer that can be read. It sets
// Member.PathReason and writes to the log.
func (p *Peer) tryCards(s *session, l *link) {
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
	if !p.setCardsReason(s, l, reason) {
		return // no change
	}
	was := l.partly.Swap(err != nil)
	switch {
	case err != nil && p.tells(someCards):
		p.n.log.Warn("not every RDMA device reaches a peer: it is read over the others", zap.String("peer", p.name), zap.String("reason", reason))
	case err == nil && was && p.tells(allCards):
		p.n.log.Info("every RDMA device reaches a peer again", zap.String("peer", p.name))
	}
}

// setCardsReason says which cards do not reach the peer. If the link is lost, the reason for
// that stays.
func (p *Peer) setCardsReason(s *session, l *link, reason string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.ended.Load() || s.link.Load() != l {
		return false
	}
	p.mu.pathReason = reason
	return true
}

// lose ends a link after a failed read, unless it has ended already. Other reads by the link
// fail.
func (p *Peer) lose(s *session, l *link, kind string, err error) {
	if !s.link.CompareAndSwap(l, nil) {
		return
	}
	p.without(s, kind, err)
	p.closeLink(l)
	notify(s.lost)
}

// without sets the reason for the missing link, and writes it to the log if it is new in this
// session.
func (p *Peer) without(s *session, kind string, err error) {
	if s.ended.Load() {
		return // no change
	}
	reason := kind
	if err != nil {
		reason = fmt.Sprintf("%s: %.*s", kind, maxReason, err)
	}
	p.setPathReason(reason)
	if !p.tells(kind) {
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
func (p *Peer) tells(what string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.told[what] {
		return false
	}
	p.mu.told[what] = true
	return true
}

func (p *Peer) setPathReason(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.pathReason = reason
}

// forgetPath clears what an earlier session knew of the path.
func (p *Peer) forgetPath() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.told = map[string]bool{}
	p.mu.pathReason = notTriedYet
}

// pathLocked returns Member.Path and Member.PathReason. p.mu is held.
func (p *Peer) pathLocked() (path, reason string) {
	s := p.live()
	if s == nil {
		return "", ""
	}
	if s.link.Load() != nil {
		return pathRDMA, p.mu.pathReason
	}
	if p.n.fabric == nil {
		if err := p.n.fabricErr; err != nil {
			reason = fmt.Sprintf("%s: %.*s", noRDMAHere, maxReason, err)
		}
		return pathTCP, reason
	}
	if p.n.o.Path == PathRDMA {
		return "", p.mu.pathReason
	}
	return pathTCP, p.mu.pathReason
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
	return nil, p.noLink()
}

// readable reports whether there is a link, and whether the breaker lets calls for leases
// through now.
func (p *Peer) readable(s *session) bool { return s.link.Load() != nil && p.control.Closed() }

// noLink returns the error of a fetch that only a link could make.
func (p *Peer) noLink() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("%w: %s is not read by RDMA: %s", rdma.ErrUnavailable, p.name, p.mu.pathReason)
}

// Usable reports whether the peer is live and answers fetches now.
func (p *Peer) Usable() bool {
	s := p.live()
	return s != nil && (p.readable(s) || p.n.o.Path != PathRDMA && p.bulk.Closed())
}
