package owner

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/cluster/feed"
)

// Scope is a set of shards, of feed.MaxParts. A nil Scope has all.
type Scope = feed.Parts

// Has reports whether the shard of a key is in a scope.
func Has(s Scope, hash uint64) bool { return s == nil || s.Holds(hash) }

// Within reports whether all of s is in t.
func Within(s, t Scope) bool {
	return t == nil || s != nil && slices.Equal(And(s, t), s)
}

// And returns what is in both scopes.
func And(s, t Scope) Scope {
	switch {
	case s == nil:
		return t
	case t == nil:
		return s
	}
	both := slices.Clone(s)
	for i := range both {
		both[i] &= t[i]
	}
	return both
}

// Options configures Scopes. The functions may be called from any goroutine; they must not block.
type Options struct {
	Self string
	// Members returns the names of the live members that can be asked, without Self.
	Members func() []string
	// Covered returns, for each live peer whose feed has been complete, what it was complete of. all says that there is
	// no other live peer.
	Covered func() (of []Scope, all bool)
	// Full reports whether there was no room for an entry of the index lately, and Spare whether all entries would fit
	// twice if the index had share of them: a number above 0, at most 1.
	Full  func() bool
	Spare func(share float64) bool
	// Drop deletes the entries of the index for which keep returns false.
	Drop func(keep func(hash uint64) bool)
	// Changed is called when Follow has changed: the feeds must begin again, by comparing digests.
	Changed func()
	Log     *zap.Logger
	// Settle is how long a node asks owners before it follows everything again. Zero means ten minutes.
	Settle time.Duration
	// Return is how long a member that is gone keeps its shards: most come back, because they were restarted. Zero means
	// half a minute.
	Return time.Duration
}

// Scopes decides what this node follows. It follows everything as long as the index has room. When it has not, Scopes
// narrows to what this node owns. Its methods may be called in parallel. None but Run blocks.
type Scopes struct {
	o    Options
	wake chan struct{}

	follow, known atomic.Pointer[Scope] // nil: everything
	table         atomic.Pointer[Table] // nil: everything is known
	all           atomic.Bool           // of Covered

	// Used by Run alone.
	narrow bool                 // this node follows only what it owns
	since  time.Time            // so long
	gone   map[string]time.Time // members of the table that are gone, since when
}

// NewScopes returns Scopes of a node that follows everything.
func NewScopes(o Options) *Scopes {
	if o.Settle <= 0 {
		o.Settle = 10 * time.Minute
	}
	if o.Return <= 0 {
		o.Return = 30 * time.Second
	}
	return &Scopes{o: o, wake: make(chan struct{}, 1)}
}

// Follow returns what the feeds should bring.
func (s *Scopes) Follow() Scope {
	if p := s.follow.Load(); p != nil {
		return *p
	}
	return nil
}

// Wants reports whether the feeds should bring a key.
func (s *Scopes) Wants(hash uint64) bool { return Has(s.Follow(), hash) }

// Knows reports whether the index has all that is known of a key. If it has not, the owners should be asked.
func (s *Scopes) Knows(hash uint64) bool {
	p := s.known.Load()
	return p == nil || Has(*p, hash)
}

// Sure reports whether the index has all that the live peers hold of a key. Knows is also true while the first feed of a peer
// is not complete.
func (s *Scopes) Sure(hash uint64) bool { return s.all.Load() && s.Knows(hash) }

// Table returns the owners, nil while Knows is true of all keys.
func (s *Scopes) Table() *Table { return s.table.Load() }

// Share returns the part of all keys that this node follows, from 0 to 1.
func (s *Scopes) Share() float64 { return share(s.Follow()) }

func share(s Scope) float64 {
	if s == nil {
		return 1
	}
	return float64(s.Count()) / feed.MaxParts
}

// Kick says that the members, or what is covered, may have changed.
func (s *Scopes) Kick() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// How often Run looks, at least and at most.
const (
	lookAtLeast = 5 * time.Second
	lookAtMost  = 100 * time.Millisecond
)

// Run keeps the scopes up to date until ctx ends.
func (s *Scopes) Run(ctx context.Context) {
	tick, pause := time.NewTicker(lookAtLeast), time.NewTimer(0)
	defer tick.Stop()
	defer pause.Stop()
	for {
		begin := time.Now()
		s.update()
		pause.Reset(max(lookAtMost, 4*time.Since(begin))) // a large table takes a while
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
		select {
		case <-s.wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Scopes) update() {
	next := s.next()
	if old := s.Follow(); (old == nil) != (next == nil) || !slices.Equal(old, next) {
		s.move(old, next)
	}
	known := next
	covered, all := s.o.Covered()
	for _, c := range covered {
		known = And(known, c)
	}
	s.known.Store(&known)
	s.all.Store(all)
	if !s.narrow && known == nil {
		s.table.Store(nil)
	}
}

// decide begins or ends narrowing.
func (s *Scopes) decide() {
	switch {
	case !s.narrow && s.o.Full():
		s.narrow, s.since = true, time.Now()
		s.o.Log.Info("this node follows the keys that it owns, and asks other nodes about the rest")
	case s.narrow && time.Since(s.since) >= s.o.Settle && s.o.Spare(s.Share()):
		s.narrow = false
		s.o.Log.Info("this node follows all keys again")
	}
}

// next returns what this node should follow now. When it follows all keys again, it asks owners until the feeds have brought
// them.
func (s *Scopes) next() Scope {
	s.decide()
	t := s.table.Load()
	if !s.narrow && t == nil {
		return nil
	}
	members := s.members(t)
	if t == nil || !slices.Equal(t.Members(), members) {
		t = NewTable(members)
		s.table.Store(t)
	}
	if !s.narrow || len(members) <= Copies {
		return nil
	}
	return t.Owned(s.o.Self)
}

// members returns the owners in order: the live members, and those of t that may come back soon. If more than a tenth of them
// is gone, too many shards would lack all owners: then none but the live ones count.
func (s *Scopes) members(t *Table) []string {
	live := append(s.o.Members(), s.o.Self)
	slices.Sort(live)
	before, now := s.gone, time.Now()
	s.gone = map[string]time.Time{}
	if t == nil {
		return live
	}
	all := slices.Clone(live)
	for _, name := range t.Members() {
		if _, alive := slices.BinarySearch(live, name); alive {
			continue
		}
		since, noted := before[name]
		if !noted {
			since = now
		}
		if now.Sub(since) < s.o.Return {
			s.gone[name], all = since, append(all, name)
		}
	}
	if len(s.gone) > max(1, len(all)/10) {
		return live
	}
	slices.Sort(all)
	return all
}

// move changes what this node follows. Keys that it gives up are not known from the beginning of move on.
func (s *Scopes) move(old, next Scope) {
	known := next
	if p := s.known.Load(); p != nil {
		known = And(*p, next)
	}
	s.known.Store(&known)
	s.follow.Store(&next)
	if !Within(old, next) {
		s.o.Drop(func(hash uint64) bool { return Has(next, hash) })
	}
	s.o.Changed()
}
