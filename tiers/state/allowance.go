package state

import (
	"sync/atomic"
)

// Allowance bounds what is taken of something at one time. It needs no lock and does not block. While a take
// is refused, one beside it may be refused as well.
type Allowance struct{ taken atomic.Int64 }

// Take takes n, unless more than most were taken then.
func (a *Allowance) Take(n, most int64) bool {
	if a.taken.Add(n) > most {
		a.Give(n)
		return false
	}
	return true
}

// Give gives back n of what was taken.
func (a *Allowance) Give(n int64) { a.taken.Add(-n) }

// Taken returns what is taken now.
func (a *Allowance) Taken() int64 { return a.taken.Load() }
