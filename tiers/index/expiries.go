package index

import "container/heap"

// Expiries are times to live, soonest first. An entry that was changed or freed since leaves its time behind:
// who takes one from Due compares it with the entry. It needs a lock of its user.
type Expiries struct{ list expiries }

type expiry struct {
	at int64
	id ID
}

type expiries []expiry

func (h expiries) Len() int           { return len(h) }
func (h expiries) Less(i, j int) bool { return h[i].at < h[j].at }
func (h expiries) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *expiries) Push(x any) { *h = append(*h, x.(expiry)) }

// Pop implements heap.Interface.
func (h *expiries) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// Add notes that an entry expires at a time, in nanoseconds since the epoch.
func (x *Expiries) Add(at int64, id ID) { heap.Push(&x.list, expiry{at, id}) }

// Due takes an entry whose time is now or before. False: there is none.
func (x *Expiries) Due(now int64) (at int64, id ID, ok bool) {
	if len(x.list) == 0 || x.list[0].at > now {
		return 0, 0, false
	}
	e := heap.Pop(&x.list).(expiry)
	return e.at, e.id, true
}
