package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/wire"
	"github.com/kvfs/kvfs/rdma"
	"github.com/kvfs/kvfs/tiers/block"
)

// Limits of what a peer tells of its fabric.
const (
	maxFabricAddr = 16 << 10 // bytes; it names each network card
	maxProbe      = 1 << 20  // bytes
	maxReason     = 500      // characters of an error in Member.PathReason: it may quote an address
)

// The ways of Member.Path.
const (
	pathRDMA = "rdma"
	pathTCP  = "tcp"
)

// link is a peer of the fabric whose memory has been read. A session has one, or none:
//
//	none   blocks come by the transport; watchLink asks, connects, and reads the probe
//	       region, with a back-off after each failure
//	one    blocks come by it; the first failure of a read closes it and wakes watchLink
type link struct{ peer rdma.Peer }

// Why a peer is without a link: the first words of Member.PathReason. The log is told once
// of each in a session.
const (
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
)

// watchLink makes the link of a session, and makes it anew after it failed, until the
// session ends. Its caller ends with it, which closes the link.
func (p *Peer) watchLink(s *session) {
	if s.features&FeatureRDMA == 0 {
		p.without(s, noRDMAThere, nil)
		return
	}
	p.fabric.reset()
	defer func() {
		if l := s.link.Swap(nil); l != nil {
			p.closeLink(l)
		}
	}()
	for {
		if p.makeLink(s) {
			select {
			case <-s.lost:
			case <-s.ctx.Done():
				return
			}
		}
		if !p.fabric.wait(s.ctx) {
			return
		}
	}
}

func (p *Peer) closeLink(l *link) {
	if err := l.peer.Close(); err != nil {
		p.n.log.Debug("closing an RDMA connection", zap.String("peer", p.name), zap.Error(err))
	}
}

// makeLink asks the peer for its fabric, connects, and reads its probe region. If the bytes
// are right the session has a link.
func (p *Peer) makeLink(s *session) bool {
	ctx, cancel := context.WithTimeout(s.ctx, p.n.o.CallTimeout)
	defer cancel()
	reply, err := s.control.Describe(ctx, &wire.DescribeRequest{})
	if err = callError(ctx, err); err == nil {
		err = checkDescription(reply)
	}
	if err != nil {
		kind := probeFailed
		if !errors.Is(err, rdma.ErrProtocol) {
			kind = notAnswering // which the breaker of calls tells of
		}
		p.without(s, kind, err)
		return false
	}
	if own := p.n.fabric.proto; reply.GetFabricProto() != own {
		p.without(s, anotherProvider, fmt.Errorf("%q there, %q here", reply.GetFabricProto(), own))
		return false
	}
	peer, err := p.n.fabric.transport.Connect(reply.GetFabricAddr())
	if err == nil {
		if err = readProbe(ctx, peer, reply); err != nil {
			err = errors.Join(err, peer.Close())
		}
	}
	if err != nil {
		p.without(s, probeFailed, err)
		return false
	}
	p.setPathReason(p.tryCards(ctx, peer)) // before lose can say another
	s.link.Store(&link{peer})
	if p.tells(pathRDMA) {
		p.n.log.Info("peer is read by RDMA", zap.String("peer", p.name), zap.String("proto", p.n.fabric.proto))
	}
	return true
}

// prober is an rdma.Peer that can be tried over each network card, of which some may not
// reach it while it is read over the others.
type prober interface {
	Probe(ctx context.Context) error // what each says that fails
}

// tryCards returns which cards do not reach a peer that can be read, "" if all do, and tells
// the log.
func (p *Peer) tryCards(ctx context.Context, peer rdma.Peer) string {
	all, ok := peer.(prober)
	if !ok {
		return ""
	}
	err := all.Probe(ctx)
	if err == nil {
		return ""
	}
	reason := someCards + ": " + strings.ReplaceAll(err.Error(), "\n", "; ")
	if p.tells(someCards) {
		p.n.log.Warn("not every RDMA device reaches a peer: it is read over the others", zap.String("peer", p.name), zap.String("reason", reason))
	}
	return reason
}

// checkDescription tells what makes no sense in an answer.
func checkDescription(r *wire.DescribeReply) error {
	switch {
	case r.GetFabricProto() == "" || len(r.GetFabricProto()) > maxMetaText || !printable(r.GetFabricProto()):
		return fmt.Errorf("%w: fabric of the kind %.100q", rdma.ErrProtocol, r.GetFabricProto())
	case r.GetFabricAddr() == "" || len(r.GetFabricAddr()) > maxFabricAddr:
		return fmt.Errorf("%w: fabric address of %d bytes", rdma.ErrProtocol, len(r.GetFabricAddr()))
	case len(r.GetProbeKey()) == 0 || len(r.GetProbeKey()) > rdma.MaxKey:
		return fmt.Errorf("%w: probe region with a key of %d bytes", rdma.ErrProtocol, len(r.GetProbeKey()))
	case r.GetProbeSize() <= 0 || r.GetProbeSize() > maxProbe:
		return fmt.Errorf("%w: probe region of %d bytes", rdma.ErrProtocol, r.GetProbeSize())
	}
	return nil
}

// readProbe reads the probe region and compares what came with what the peer says is there.
func readProbe(ctx context.Context, peer rdma.Peer, r *wire.DescribeReply) error {
	file, err := memoryFile("kvfs-probe")
	if err != nil {
		return err
	}
	defer file.Close()
	sum := block.NewChecksum()
	region := rdma.RemoteRegion{Key: r.GetProbeKey(), Size: r.GetProbeSize()}
	if err := peer.Read(ctx, region, 0, r.GetProbeSize(), rdma.Dest{File: file, Hash: sum}); err != nil {
		return err
	}
	if sum.Sum64() != r.GetProbeSum() {
		return fmt.Errorf("%w: what was read is not what the peer has there", rdma.ErrProtocol)
	}
	return nil
}

// lose ends a link by which a read failed, unless somebody else has. What else is being read
// by it fails.
func (p *Peer) lose(s *session, l *link, kind string, err error) {
	if !s.link.CompareAndSwap(l, nil) {
		return
	}
	p.without(s, kind, err)
	p.closeLink(l)
	notify(s.lost)
}

// without says why there is no link, and tells the log if it was not told of that yet.
func (p *Peer) without(s *session, kind string, err error) {
	if s.ended.Load() {
		return // that is why
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

// tells reports whether the log is to be told of something: for the first time in the session.
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

// forgetPath begins a session, of whose path nothing is known yet.
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
		return pathTCP, ""
	}
	if p.n.o.Path == PathRDMA {
		return "", p.mu.pathReason
	}
	return pathTCP, p.mu.pathReason
}

// fetchable returns the session if something can be fetched in it now.
func (p *Peer) fetchable() (*session, error) {
	s := p.live()
	if s != nil && s.link.Load() != nil {
		return s, nil
	}
	if s != nil && p.n.o.Path == PathRDMA {
		return nil, p.noLink()
	}
	return p.usable(p.bulk)
}

// noLink is the error of a fetch that only a link could do.
func (p *Peer) noLink() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("%w: %s is not read by RDMA: %s", rdma.ErrUnavailable, p.name, p.mu.pathReason)
}

// Usable reports whether it is live and fetches get through now.
func (p *Peer) Usable() bool {
	s := p.live()
	return s != nil && (s.link.Load() != nil || p.n.o.Path != PathRDMA && p.bulk.closed.Load())
}
