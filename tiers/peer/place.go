package peer

import (
	"context"
	"math"
	"net"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster"
	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/cluster/meta"
	"github.com/kvfs/kvfs/tiers/peer/pace"
)

// candidate is a peer that may take copies.
type candidate struct {
	peer      member
	hash      uint64 // of its name
	weight    float64
	near      bool // in the zone of this node
	preferred bool
}

// candidates returns the peers that can take copies now, the preferred segment marked. away: there are none now, but one
// that does not answer may.
func (t *Tier) candidates() (list []candidate, away bool) {
	now := t.now()
	wanted := t.segment.names(now)
	reason := "no such live peer"
	peers := t.node.peers()
	away = len(peers) == 0
	for _, p := range peers {
		m := p.Member()
		c := candidate{
			peer: p, hash: location.HashPath(p.Name()), weight: float64(m.FreeBytes),
			near: t.opts.Zone == "" || m.Zone == t.opts.Zone, preferred: isNamed(&m, wanted),
		}
		why := ""
		switch {
		case !p.Can(meta.FeatureStore), t.declined.Has(pace.Copy{Peer: p.Name()}, now):
			why = "it takes no copies"
		case !p.Callable():
			why, away = "it does not answer", true
		}
		if c.preferred {
			reason = why
		}
		if m.TotalBytes == 0 {
			c.weight = 1 // it does not announce it: last
		}
		if why == "" && (c.weight > 0 || c.preferred) {
			list = append(list, c)
		}
	}
	t.segment.warn(wanted, reason)
	return list, away && len(list) == 0
}

// isNamed reports whether one of the names is the member's name or address.
func isNamed(m *cluster.Member, names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return name == m.Name || name == m.GossipAddr || name == m.ControlAddr || name == m.BulkAddr
	})
}

// rank orders candidates for one block, best first: the preferred segment, then the peers of this
// zone, then the others; each group by weighted rendezvous hashing. The probability that a block
// comes to a peer is proportional to the peer's weight. A peer that comes or goes moves only blocks
// that it gets or had.
func rank(hash uint64, list []candidate) []candidate {
	type scored struct {
		candidate
		score float64
	}
	order := make([]scored, len(list))
	for i, c := range list {
		order[i] = scored{c, -c.weight / math.Log(uniform(hash, c.hash))}
	}
	slices.SortFunc(order, func(a, b scored) int {
		switch {
		case a.preferred != b.preferred:
			return first(a.preferred)
		case a.near != b.near:
			return first(a.near)
		case a.score != b.score:
			return first(a.score > b.score)
		}
		return first(a.hash < b.hash)
	})
	ranked := make([]candidate, len(order))
	for i := range order {
		ranked[i] = order[i].candidate
	}
	return ranked
}

func first(a bool) int {
	if a {
		return -1
	}
	return 1
}

// uniform returns a number in (0, 1) that depends on both hashes: the finalizer of
// splitmix64 over their mix.
func uniform(block, peer uint64) float64 {
	x := block ^ (peer*0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return (float64(x>>11) + 0.5) / (1 << 53)
}

// resolveEvery is how long the addresses of the preferred segment's host are valid.
const resolveEvery = 30 * time.Second

// segment finds the member that is the preferred segment. Its lock is a leaf.
type segment struct {
	t      *Tier
	lookup func(ctx context.Context, host string) ([]string, error) // of addresses
	mu     struct {
		sync.Mutex
		missing   bool     // at the last request, and a warning was logged
		addrs     []string // host:port, if its host is a network name
		resolving bool
		resolved  time.Time // time of the last attempt
	}
}

func newSegment(t *Tier) *segment { return &segment{t: t, lookup: net.DefaultResolver.LookupHost} }

// names returns the names and addresses of the preferred segment; none if none is set. A
// host is resolved in the background. Until that is done, and while it fails, the earlier addresses
// count.
func (s *segment) names(now time.Time) []string {
	want := s.t.opts.PreferredSegment
	if want == "" {
		return nil
	}
	names := []string{want}
	host, port, err := net.SplitHostPort(want)
	if err != nil || net.ParseIP(host) != nil {
		return names
	}
	s.mu.Lock()
	names = append(names, s.mu.addrs...)
	begin := !s.mu.resolving && (s.mu.resolved.IsZero() || now.Sub(s.mu.resolved) > resolveEvery)
	s.mu.resolving = s.mu.resolving || begin
	s.mu.Unlock()
	if begin {
		s.t.background(func() { s.resolve(host, port) }) // ends after the timeout, or with t.ctx
	}
	return names
}

// resolve finds the addresses of the preferred segment's host.
func (s *segment) resolve(host, port string) {
	t := s.t
	ctx, cancel := context.WithTimeout(t.ctx, t.opts.Timeout)
	defer cancel()
	ips, err := s.lookup(ctx, host)
	if err != nil {
		t.log.Debug("preferred segment", zap.String("host", host), zap.Error(err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.resolving, s.mu.resolved = false, t.now()
	if err != nil {
		return
	}
	s.mu.addrs = nil
	for _, ip := range ips {
		s.mu.addrs = append(s.mu.addrs, net.JoinHostPort(ip, port))
	}
}

// warn logs one warning that the preferred segment cannot take copies, until it can. reason
// is "" if it can.
func (s *segment) warn(wanted []string, reason string) {
	if len(wanted) == 0 || reason != "" && s.isSelf(wanted) {
		return // this node has its blocks anyway
	}
	s.mu.Lock()
	if s.mu.resolved.IsZero() && s.mu.resolving {
		s.mu.Unlock()
		return // too early to know
	}
	warn := reason != "" && !s.mu.missing
	s.mu.missing = reason != ""
	s.mu.Unlock()
	if warn {
		s.t.log.Warn("preferred segment cannot be used: copies go to other peers",
			zap.String("segment", s.t.opts.PreferredSegment), zap.String("reason", reason))
	}
}

// isSelf reports whether one of the names is this node's name or address.
func (s *segment) isSelf(names []string) bool {
	for _, m := range s.t.node.Members() {
		if m.Self {
			return isNamed(&m, names)
		}
	}
	return false
}
