package policy

import "strconv"

// queue is the number of one of the queues of a policy; absent is none of them.
type queue uint8

const (
	absent    queue = iota
	maxQueues       = 5 // absent included

	maxID = 1<<32 - 1 // links hold 1 + block
)

// queues holds blocks in doubly linked queues that share one column of links:
// each block is in at most one queue. Heads are the newest, tails the oldest.
//
// INVARIANT: a link's in is absent, or the block is reachable from the tail of
// that queue exactly once.
type queues struct {
	links column[link]
	ends  [maxQueues]struct {
		head, tail uint32 // 1 + block; 0: empty
		n          int
	}
}

// link is 12 bytes. freq belongs to the policy.
type link struct {
	newer, older uint32 // 1 + neighbour; 0: none
	in           queue
	freq         uint8
}

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
func (q *queues) push(id uint32, k queue) {
	if id == maxID {
		bug("reserved number", id)
	}
	l := q.links.grow(id)
	if l.in != absent {
		bug("second Add", id)
	}
	ends := &q.ends[k]
	l.in = k
	l.newer, l.older = 0, ends.head
	if ends.head != 0 {
		q.links.at(ends.head - 1).newer = id + 1
	} else {
		ends.tail = id + 1
	}
	ends.head = id + 1
	ends.n++
}

// take removes a block from its queue, if it is in one, and returns that.
func (q *queues) take(id uint32) queue {
	l := q.links.at(id)
	k := l.in
	if k == absent {
		return absent
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
	l.in, l.newer, l.older = absent, 0, 0
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
