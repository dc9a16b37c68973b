package room

import (
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/policy"
)

// Victims has blocks go, so that there is room for others. The functions change the accounts by Charge and Pin, and
// the orders; they do not call Make, MakeInQuotas or Evict.
type Victims struct {
	// Evict evicts blocks in an order until need bytes are gone or nothing more may go, and returns how many
	// bytes went. until is the earliest time at which a lease that stood in the way ends, 0 if none did. quota:
	// a quota is used up; else memory is full.
	Evict func(order policy.Policy, need int64, quota bool) (freed, until int64)
}

// Make evicts until those who pay may take n bytes more, and says whether it may. force is for a writer that has waited as
// long as it may: then a good many blocks go at once, so that not every writer waits. until is when the first lease
// ends that stood in the way, 0 if none did.
func (r *Room) Make(b Bill, n int64, force bool, v Victims) (ok bool, until int64) {
	limit := r.limit
	if ok, until = r.MakeInQuotas(b, n, v); !ok {
		return false, until
	}
	if r.used+n <= limit || r.Short() { // the user has evicted by Relief, and seen what that brought
		return r.used+n <= limit, 0
	}
	need := r.used + n - limit
	most := need
	if force && n > 0 {
		most = max(need, limit/8)
	}
	until = r.Evict(need, most, v)
	return r.used+n <= limit, until
}

// MakeInQuotas evicts blocks of those who pay until their quotas leave n bytes, and says whether they do. until is as
// in Make.
func (r *Room) MakeInQuotas(b Bill, n int64, v Victims) (ok bool, until int64) {
	if !b.Over(n) {
		return true, 0
	}
	evict := func(order policy.Policy, used, quota int64) {
		if n <= quota {
			_, u := v.Evict(order, used+n-quota, true)
			if until == 0 || u != 0 && u < until {
				until = u
			}
		}
	}
	if g := b.Group; g.Over(n) && g.order != nil {
		evict(g.order, g.used, g.opts.QuotaBytes)
	}
	for _, a := range b.accounts {
		if a.over(n) {
			evict(a.order, a.used, a.quota)
		}
	}
	return !b.Over(n), until
}

// Evict evicts blocks of all groups: up to most bytes of those that share an order, and of the others no more than
// are needed then. until is as in Make.
func (r *Room) Evict(need, most int64, v Victims) (until int64) {
	freed, until := v.Evict(r.shared, most, false)
	for _, g := range r.groups {
		if freed >= need {
			break
		}
		if g.order != nil {
			n, u := v.Evict(g.order, need-freed, false)
			freed += n
			if until == 0 || u != 0 && u < until {
				until = u
			}
		}
	}
	return until
}

// Overruns reports whether a file that has bytes already may use the headroom for n more, rather than fail.
func (r *Room) Overruns(n int64) bool {
	room := r.opts.HeadroomBytes / 2
	if r.Short() {
		room = 0
	}
	return r.used+n <= r.limit+room
}

// Hopeless says why no wait can make room for n bytes more in a file that has charge: block.ErrTooLarge
// or block.ErrQuota. Nil: a wait may.
func (r *Room) Hopeless(b Bill, charge, n int64) error {
	switch {
	case charge+n > r.opts.CapacityBytes:
		return block.ErrTooLarge
	case b.exceeds(charge + n), b.Group.opts.Pinned && b.Group.Over(n), b.Pinned && b.OverPins(n):
		return block.ErrQuota
	}
	return nil
}

// Refusal says why a file that has charge is refused n bytes for which there is no room: block.ErrTooLarge,
// block.ErrQuota or block.ErrNoSpace. Nil: its writer waits, as left is the time that it still has.
func (r *Room) Refusal(b Bill, charge, n int64, left time.Duration) error {
	err := r.Hopeless(b, charge, n)
	switch {
	case err != nil || left > 0:
		return err
	case b.Over(n):
		return block.ErrQuota
	}
	return block.ErrNoSpace
}

// What memory is full of when an open or a write has to wait.
const (
	FullOfOpen   = "files that are open, pinned or temporary"
	FullOfLeased = "blocks that were looked up within the lease and that no other tier has"
)

// fullLogged is the least time between two lines that memory is full.
const fullLogged = time.Minute

// fullness is when somebody last had to wait for memory, and why.
type fullness struct {
	of   string // what memory was full of
	at   int64  // 0: never
	told int64  // when the log last had it
}

// Full notes that somebody waits for n bytes, and returns what memory is full of: FullOfOpen, FullOfLeased, or
// nothing where a copy is being made of what goes then. until is when the first lease ends that stands in
// the way; 0: none does. tell: it is time to log it.
func (r *Room) Full(n, until, now int64) (of string, tell bool) {
	switch {
	case r.pinned+n > r.limit:
		of = FullOfOpen
	case until > 0:
		of = FullOfLeased
	default:
		return "", false
	}
	f := &r.full
	f.of, f.at = of, now
	if tell = f.told == 0 || now-f.told >= int64(fullLogged); tell {
		f.told = now
	}
	return of, tell
}

// LastFull returns what memory was full of when Full last said so, and when that was; 0: never.
func (r *Room) LastFull() (of string, at int64) { return r.full.of, r.full.at }
