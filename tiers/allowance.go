package tiers

import "sync/atomic"

// allowance bounds what is taken of something at one time. It needs no lock and does not block. While a take
// is refused, one beside it may be refused as well.
type allowance struct{ taken atomic.Int64 }

// take takes n, unless more than most were taken then.
func (a *allowance) take(n, most int64) bool {
	if a.taken.Add(n) > most {
		a.give(n)
		return false
	}
	return true
}

// give gives back n of what was taken.
func (a *allowance) give(n int64) { a.taken.Add(-n) }
