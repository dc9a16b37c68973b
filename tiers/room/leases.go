package room

import (
	"maps"
	"slices"

	"github.com/kvfs/kvfs/tiers/index"
)

// MaxLeases bounds the leases that are remembered of requests, 24 bytes each. Beyond it they end by time
// alone.
const MaxLeases = 1 << 18

// Requester has leases: a request, of a user where users may not see each other's blocks.
type Requester struct {
	UID     int64 // -1: of users that may see all
	Request string
}

// Lease is a lease that a request has extended, from Before to Until.
type Lease struct {
	ID            index.ID
	Until, Before int64
}

// Leases are those of requests that have not been released. The zero value has none. The owner's lock guards it.
type Leases struct {
	of    map[Requester][]Lease // in the order of time
	n     int
	sweep int64 // not before this time is it worth looking for what has ended
}

// Len returns how many leases are remembered.
func (l *Leases) Len() int { return l.n }

// Add remembers a lease, if there is room. When there is none, it first
// forgets the requests whose leases have all ended.
func (l *Leases) Add(by Requester, x Lease, now int64) {
	if l.n >= MaxLeases && now >= l.sweep {
		l.sweep = x.Until
		maps.DeleteFunc(l.of, func(_ Requester, list []Lease) bool {
			last := list[len(list)-1].Until
			if last <= now {
				l.n -= len(list)
				return true
			}
			l.sweep = min(l.sweep, last)
			return false
		})
	}
	if l.n >= MaxLeases {
		return
	}
	if l.of == nil {
		l.of = map[Requester][]Lease{}
	}
	l.of[by] = append(l.of[by], x)
	l.n++
}

// Release forgets the leases of a request and returns them, the latest first, as they are to be undone.
func (l *Leases) Release(by Requester) []Lease {
	list := l.of[by]
	delete(l.of, by)
	l.n -= len(list)
	slices.Reverse(list)
	return list
}
