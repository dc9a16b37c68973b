package room

import (
	"fmt"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/invariant"
	"github.com/kvfs/kvfs/tiers/policy"
)

const (
	// lookAgain is how often a waiter looks at a file system that has too little left.
	lookAgain = 50 * time.Millisecond
	// futileFor is how long nothing is evicted for its sake after that has brought nothing.
	futileFor = 250 * time.Millisecond
)

// Options configures a Room.
type Options struct {
	CapacityBytes int64         // at least 1: hard cap on what is used
	HeadroomBytes int64         // how far the file system exceeds CapacityBytes
	HighWatermark float64       // share of the capacity above which High says so
	LowWatermark  float64       // share to which Excess leads back
	Policy        string        // eviction order, as policy.New takes it
	BurstGap      time.Duration // longest pause within a burst of uses. 0: no use belongs to a burst.
	Groups        map[block.GroupID]GroupOptions
}

// Room has the accounts of memory. No method blocks, and no two may run in parallel, nor beside those of its
// groups: the owner's lock guards all of them.
type Room struct {
	opts   Options
	shared policy.Policy // of all groups without an order of their own

	groups []*Group // by number
	byName map[block.GroupID]uint32
	free   []uint32 // numbers of those that were forgotten

	accounts []*Account // by number; that of 0 is nil, as are free ones
	holders  map[Holder]uint16

	used    int64         // INVARIANT: at least 0
	pinned  int64         // of it, what cannot be evicted. INVARIANT: from 0 to used
	limit   int64         // what used may come to: the capacity, or less while the file system has less
	moves   uint64        // how often copies have ended
	stalled bool          // a wait for room is in vain
	futile  int64         // nothing is evicted for the file system before
	space   chan struct{} // closed and replaced by Signal
	full    fullness
	bursts  bursts
}

// New returns a Room with nothing in it. It fails if the policy is unknown or a quota exceeds the capacity; the
// errors are for the reader of a configuration and have no kind.
func New(o Options) (*Room, error) {
	r := &Room{
		opts: o, limit: o.CapacityBytes, byName: map[block.GroupID]uint32{}, space: make(chan struct{}),
		accounts: []*Account{nil}, holders: map[Holder]uint16{},
	}
	var err error
	if r.shared, err = policy.New(o.Policy, o.CapacityBytes); err != nil {
		return nil, err
	}
	for name, opts := range o.Groups {
		if err := r.CheckQuota(opts.QuotaBytes); err != nil {
			return nil, fmt.Errorf("group %q: %w", name, err)
		}
		g := r.Group(r.Number(name))
		g.opts, g.quota, g.configured = opts, opts.QuotaBytes, true
		if opts.QuotaBytes > 0 && !opts.Pinned {
			if g.order, err = policy.New(o.Policy, opts.QuotaBytes); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// Used returns the bytes that are charged.
func (r *Room) Used() int64 { return r.used }

// Pinned returns how many of them cannot be evicted.
func (r *Room) Pinned() int64 { return r.pinned }

// Limit returns what Used may come to.
func (r *Room) Limit() int64 { return r.limit }

// Shared returns the order of all groups without one of their own.
func (r *Room) Shared() policy.Policy { return r.shared }

// Charge adds n bytes to what is used, for those who pay; n may be negative. pinned: they cannot be evicted. It wakes
// nobody: see Signal.
func (r *Room) Charge(b Bill, n int64, pinned bool) {
	r.used += n
	b.Group.used += n
	for _, a := range b.accounts {
		if a != nil {
			a.used += n
		}
	}
	if pinned {
		r.pinned += n
	}
}

// Pin counts n charged bytes as pinned; n may be negative. It wakes nobody.
func (r *Room) Pin(n int64) { r.pinned += n }

// Check verifies the invariants.
func (r *Room) Check() {
	invariant.Check(r.used >= 0, "used %d < 0", r.used)
	invariant.Check(r.pinned >= 0 && r.pinned <= r.used, "pinned %d of used %d", r.pinned, r.used)
}

// Space returns a channel that is closed when room may have appeared.
func (r *Room) Space() <-chan struct{} { return r.space }

// Signal wakes all that wait for room.
func (r *Room) Signal() {
	close(r.space)
	r.space = make(chan struct{})
}

// Measure sets the limit by what the file system behind memory has left, so that an eighth of the headroom stays
// free. It wakes those that wait if the limit has risen.
func (r *Room) Measure(free int64) {
	limit := max(0, min(r.opts.CapacityBytes, r.used+free-r.opts.HeadroomBytes/8))
	if limit > r.limit {
		r.Signal()
	}
	r.limit = limit
}

// Short reports whether the file system has less left than the accounts say.
func (r *Room) Short() bool { return r.limit < r.opts.CapacityBytes }

// Relief returns how many bytes have to go because the file system has no room for n more; 0 if none, or if it
// is futile now. force: it is tried all the same.
func (r *Room) Relief(n int64, force bool, now int64) int64 {
	if !r.Short() || n > r.opts.CapacityBytes || !force && now < r.futile {
		return 0
	}
	return max(0, r.used+n-r.limit)
}

// Moves returns how often copies have ended: see Stall.
func (r *Room) Moves() uint64 { return r.moves }

// Moved notes that copies have ended. Whoever waits for room looks again.
func (r *Room) Moved() {
	r.moves++
	r.stalled = false
	r.Signal()
}

// Stall notes that somebody has waited for room as long as he may, since Moves was so, and that all tiers have been copying
// since. If no copy has ended, nobody waits until one does, and those who wait look again.
func (r *Room) Stall(moves uint64) {
	if r.moves == moves {
		r.stalled = true
		r.Signal()
	}
}

// Stalled reports whether a wait for room is in vain.
func (r *Room) Stalled() bool { return r.stalled }

// Futile notes that what Relief asked for has brought nothing.
func (r *Room) Futile(now int64) { r.futile = now + int64(futileFor) }

// Wait bounds a wait for room: where the file system has too little, nothing signals that it has more.
func (r *Room) Wait(left time.Duration) time.Duration {
	if r.Short() {
		return min(left, lookAgain)
	}
	return left
}

// High reports whether use would be above the high watermark with n bytes more.
func (r *Room) High(n int64) bool {
	return float64(r.used+n) > r.opts.HighWatermark*float64(r.opts.CapacityBytes)
}

// Excess returns how many bytes are to be evicted ahead of need. over: they are in the headroom, beyond the
// capacity; else they are those above the low watermark.
func (r *Room) Excess() (n int64, over bool) {
	if n = r.used - r.opts.CapacityBytes; n > 0 {
		return n, true
	}
	return max(0, r.used-int64(r.opts.LowWatermark*float64(r.opts.CapacityBytes))), false
}
