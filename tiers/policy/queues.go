package policy

import "strconv"

// queue is the number of one of the queues of a policy; absent is none of them.
type queue uint8

const (
	absent    queue = iota
	maxQueues       = 9 // absent included

	maxID = 1<<32 - 1 // links hold 1 + block
)

// queues holds blocks in doubly linked queues that share one column of links:
// each block is in at most one queue. Heads are the newest, tails the oldest.
//
// INVARIANT: a link's in is absent, or the block is reachable from the tail of
// that queue exactly once.
// INVARIANT: ends of bursts are 0, or 1 + a block that is in that queue and has that burst.
type queues struct {
	links  column[link]
	bursts *[MaxBursts]burst // by the number of the burst; nil: there was none yet
	ends   [maxQueues]struct {
		head, tail uint32 // 1 + block; 0: empty
		n          int
	}
}

// link is 12 bytes. freq belongs to the policy.
type link struct {
	newer, older uint32 // 1 + neighbour; 0: none
	in           queue
	freq         uint8
	burst        Burst // in which it took its place; 0: in none
}

// burst is where the blocks of a burst end.
type burst struct {
	number Burst
	ends   [maxQueues]uint32 // by queue: 1 + its oldest block; 0: none
}

// MaxBursts is how many bursts a policy keeps apart: those whose numbers differ modulo MaxBursts.
const MaxBursts = 64

// where returns the queue of a block, known or not.
func (q *queues) where(id uint32) queue {
	if !q.links.has(id) {
		return absent
	}
	return q.links.at(id).in
}

// count returns the number of blocks in a queue.
func (q *queues) count(k queue) int { return q.ends[k].n }

// tail returns the oldest block of a queue that is not empty.
func (q *queues) tail(k queue) uint32 { return q.ends[k].tail - 1 }

// push puts a block that is in no queue at the head of queue k. Its freq stays.
func (q *queues) push(id uint32, k queue) { q.insert(id, k, 0) }

// insert puts a block that is in no queue behind block newer-1 of queue k, or at its head if newer is 0. Its freq
// stays.
func (q *queues) insert(id uint32, k queue, newer uint32) {
	if id == maxID {
		bug("reserved number", id)
	}
	l := q.links.grow(id)
	if l.in != absent {
		bug("second Add", id)
	}
	ends := &q.ends[k]
	l.in, l.burst = k, 0
	l.newer, l.older = newer, ends.head
	if newer != 0 {
		n := q.links.at(newer - 1)
		l.older, n.older = n.older, id+1
	} else {
		ends.head = id + 1
	}
	if l.older != 0 {
		q.links.at(l.older - 1).newer = id + 1
	} else {
		ends.tail = id + 1
	}
	ends.n++
}

// join moves a block from its queue to queue k: behind the blocks of burst b there, or to the head if there are none.
func (q *queues) join(id uint32, k queue, b Burst) {
	q.take(id)
	if b == 0 {
		q.push(id, k)
		return
	}
	if q.bursts == nil {
		q.bursts = new([MaxBursts]burst)
	}
	at := &q.bursts[b%MaxBursts]
	if at.number != b {
		*at = burst{number: b}
	}
	q.insert(id, k, at.ends[k])
	q.links.at(id).burst = b
	at.ends[k] = id + 1
}

// joined reports whether a block has its place in queue k since burst b.
func (q *queues) joined(id uint32, k queue, b Burst) bool {
	l := q.links.at(id)
	return b != 0 && l.in == k && l.burst == b
}

// follow moves a block within its queue to its place in burst b, unless it has that.
func (q *queues) follow(id uint32, b Burst) {
	if k := q.where(id); k != absent && b != 0 && !q.joined(id, k, b) {
		q.join(id, k, b)
	}
}

// burstOf returns the burst in which a block took its place, 0 if there is none.
func (q *queues) burstOf(id uint32) Burst {
	if q.where(id) == absent {
		return 0
	}
	return q.links.at(id).burst
}

// end returns where the burst of a block ends, if it ends with that block; else nil.
func (q *queues) end(l *link, id uint32) *uint32 {
	if l.burst == 0 {
		return nil
	}
	at := &q.bursts[l.burst%MaxBursts]
	if at.number != l.burst || at.ends[l.in] != id+1 {
		return nil
	}
	return &at.ends[l.in]
}

// take removes a block from its queue, if it is in one, and returns that.
func (q *queues) take(id uint32) queue {
	l := q.links.at(id)
	k := l.in
	if k == absent {
		return absent
	}
	if end := q.end(l, id); end != nil {
		*end = 0
		if l.newer != 0 && q.links.at(l.newer-1).burst == l.burst {
			*end = l.newer
		}
	}
	ends := &q.ends[k]
	if l.newer != 0 {
		q.links.at(l.newer - 1).older = l.older
	} else {
		ends.head = l.older
	}
	if l.older != 0 {
		q.links.at(l.older - 1).newer = l.newer
	} else {
		ends.tail = l.newer
	}
	ends.n--
	l.in, l.newer, l.older, l.burst = absent, 0, 0, 0
	return k
}

// move puts a block from its queue at the head of queue k.
func (q *queues) move(id uint32, k queue) {
	q.take(id)
	q.push(id, k)
}

// renumber gives a block in a queue another number, which is in no queue. It keeps its place and its
// freq.
func (q *queues) renumber(from, to uint32) {
	if to == maxID {
		bug("reserved number", to)
	}
	n := q.links.grow(to)
	if n.in != absent {
		bug("Move to a number in use", to)
	}
	l := q.links.at(from)
	if end := q.end(l, from); end != nil {
		*end = to + 1
	}
	*n, *l = *l, link{}
	ends := &q.ends[n.in]
	if n.newer != 0 {
		q.links.at(n.newer - 1).older = to + 1
	} else {
		ends.head = to + 1
	}
	if n.older != 0 {
		q.links.at(n.older - 1).newer = to + 1
	} else {
		ends.tail = to + 1
	}
}

// bug panics: the caller broke a rule of this package.
func bug(what string, id uint32) {
	panic("policy: " + what + ": block " + strconv.FormatUint(uint64(id), 10))
}
