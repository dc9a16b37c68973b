package tiers

import (
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
)

// requesterOf returns whom a lease of a user and a request is for.
func requesterOf(as *Viewer, request string) room.Requester {
	if as == nil {
		return room.Requester{UID: -1, Request: request}
	}
	return room.Requester{UID: int64(as.UID), Request: request}
}

// leaseLocked keeps a block readable for as long as a look-up promises, for a request, which may be empty.
func (e *lookups) leaseLocked(id index.ID, en *index.Entry, now int64, as *Viewer, request string) {
	if e.opts.LookupLease <= 0 {
		return
	}
	before := en.Lease
	en.Lease = max(before, now+int64(e.opts.LookupLease))
	if request != "" {
		en.Lease = max(en.Lease, before+1) // no two requests have the same
		e.leases.Add(requesterOf(as, request), room.Lease{ID: id, Until: en.Lease, Before: before}, now)
	}
}

// ReleaseRequest ends the leases that a request of a user has, in all groups, and returns how many it has
// ended. A block that somebody else has looked up since keeps its lease, and one that somebody looked up
// before has that one again. It takes the lock once and does not wait.
func (e *lookups) ReleaseRequest(as *Viewer, request string) (ended int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range e.leases.Release(requesterOf(as, request)) {
		if e.mu.ix.Valid(x.ID) && e.mu.ix.At(x.ID).Lease == x.Until {
			e.mu.ix.At(x.ID).Lease = x.Before
			ended++
		}
	}
	if ended > 0 {
		e.mu.room.Signal() // for writers who wait until blocks can be evicted
	}
	return ended
}
