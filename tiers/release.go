package tiers

import (
	"maps"
	"slices"

	"github.com/kvfs/kvfs/tiers/index"
)

// maxLeased bounds the leases that are remembered of requests, 24 bytes each. Beyond it they end by time
// alone.
const maxLeased = 1 << 18

// requester is whom leases are for: a request, of a user where users may not see each other's blocks.
type requester struct {
	uid     int64 // -1: of who may see all
	request string
}

func requesterOf(as *Viewer, request string) requester {
	if as == nil {
		return requester{-1, request}
	}
	return requester{int64(as.UID), request}
}

// leased is a lease that a request has extended.
type leased struct {
	id            index.ID
	until, before int64
}

// leases are those of requests that have not been released.
type leases struct {
	of    map[requester][]leased // in the order of time
	n     int
	sweep int64 // not before this time is it worth looking for what has ended
}

// add remembers a lease, if there is room.
func (l *leases) add(by requester, x leased, now int64) {
	if l.n >= maxLeased && now >= l.sweep {
		l.sweep = x.until
		maps.DeleteFunc(l.of, func(_ requester, list []leased) bool {
			last := list[len(list)-1].until
			if last <= now {
				l.n -= len(list)
				return true
			}
			l.sweep = min(l.sweep, last)
			return false
		})
	}
	if l.n >= maxLeased {
		return
	}
	if l.of == nil {
		l.of = map[requester][]leased{}
	}
	l.of[by] = append(l.of[by], x)
	l.n++
}

// leaseLocked keeps a block readable for as long as a look-up promises, for a request, which may be empty.
func (e *Engine) leaseLocked(id index.ID, en *index.Entry, now int64, as *Viewer, request string) {
	if e.opts.LookupLease <= 0 {
		return
	}
	before := en.Lease
	en.Lease = max(before, now+int64(e.opts.LookupLease))
	if request != "" {
		en.Lease = max(en.Lease, before+1) // no two requests have the same
		e.mu.leases.add(requesterOf(as, request), leased{id, en.Lease, before}, now)
	}
}

// ReleaseRequest ends the leases that a request of a user has, in all groups, and returns how many it has
// ended. A block that somebody else has looked up since keeps its lease, and one that somebody looked up
// before has that one again. It takes the lock once and does not wait.
func (e *Engine) ReleaseRequest(as *Viewer, request string) (ended int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	by := requesterOf(as, request)
	list := e.mu.leases.of[by]
	for _, x := range slices.Backward(list) {
		if e.mu.ix.Valid(x.id) && e.mu.ix.At(x.id).Lease == x.until {
			e.mu.ix.At(x.id).Lease = x.before
			ended++
		}
	}
	delete(e.mu.leases.of, by)
	e.mu.leases.n -= len(list)
	if ended > 0 {
		e.signalSpaceLocked() // for writers who wait until blocks can be evicted
	}
	return ended
}
