package index

import "container/heap"

type expiry struct {
	at int64
	id ID
}

// expiries are times to live, soonest first. A file that was changed or freed since leaves its old time behind.
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

// Expires returns when a file expires, in nanoseconds since the epoch. 0: never.
func (x *Index) Expires(id ID) int64 { return x.expires[id] }

// SetExpires sets when a file expires. Due returns the file then. 0: never.
func (x *Index) SetExpires(id ID, at int64) {
	if at == 0 {
		delete(x.expires, id)
		return
	}
	x.expires[id] = at
	heap.Push(&x.due, expiry{at, id})
}

// Due takes a file whose time is now or before, once for each SetExpires. 0: there is none.
func (x *Index) Due(now int64) ID {
	for len(x.due) > 0 && x.due[0].at <= now {
		if e := heap.Pop(&x.due).(expiry); x.expires[e.id] == e.at {
			return e.id
		}
	}
	return 0
}
