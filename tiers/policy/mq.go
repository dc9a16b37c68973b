package policy

import "math/bits"

// MQ keeps blocks in queues by the binary logarithm of their uses, the least recently used of each first. For each
// doubling of its uses a block may rest for as long as it takes to use one capacity of blocks. The oldest of the queue
// goes that has outlived this time most. Ghosts remember the uses of evicted blocks.
//
// The paper moves blocks that outlive their time to the next lower queue, one after the other. Here the queues are
// compared when room is needed: their order is the same, and blocks stay where they are. The paper counts blocks, here
// all lengths are bytes.
//
// Source: Zhou, Philbin and Li, "The Multi-Queue Replacement Algorithm for Second Level Buffer Caches", USENIX 2001.
type MQ struct {
	capacity int64
	clock    int64 // bytes that were used
	b        blocks
	stamps   column[int64] // clock at the last use
}

const (
	mqQueues = 8 // the paper's: 1, 2 to 3, ... 128 or more uses
	mqGhosts = 4 // the paper's: that many times as many ghosts as blocks
	mqUses   = 1<<mqQueues - 1
)

// NewMQ returns an empty MQ for a tier of capacityBytes, at least 1.
func NewMQ(capacityBytes int64) *MQ {
	p := &MQ{capacity: max(capacityBytes, 1)}
	p.b.ghosts.rooms = mqGhosts
	return p
}

// Len returns the number of blocks present.
func (p *MQ) Len() int { return p.b.n }

// Add enters a block as used once more than its ghost.
func (p *MQ) Add(id uint32, hash uint64, size int64) {
	uses := uint8(1)
	if g := p.b.ghosts.link(hash); g != nil {
		uses = min(g.freq, mqUses-1) + 1
		p.b.ghosts.take(hash)
	}
	p.b.add(id, hash, size, mqQueue(uses))
	p.b.q.links.at(id).freq = uses
	p.clock += p.b.info.at(id).size
	*p.stamps.grow(id) = p.clock
}

// mqQueue returns the queue of blocks with so many uses, at least 1.
func mqQueue(uses uint8) queue { return queue(bits.Len8(uses)) }

// Touch counts a use, and makes a block the most recent of its queue.
func (p *MQ) Touch(id uint32, b Burst) {
	k := p.b.q.where(id)
	if k == absent {
		return
	}
	l := p.b.q.links.at(id)
	l.freq = min(l.freq, mqUses-1) + 1
	p.clock += p.b.info.at(id).size
	if to := mqQueue(l.freq); !p.b.q.joined(id, to, b) {
		p.join(id, k, to, b)
	}
}

// Follow gives a block its place in a burst.
func (p *MQ) Follow(id uint32, b Burst, _ bool) {
	if k := p.b.q.where(id); k != absent && b != 0 && !p.b.q.joined(id, k, b) {
		p.join(id, k, k, b)
	}
}

// join moves a block from one queue to its place in another. It is as recent as those of its burst.
func (p *MQ) join(id uint32, from, to queue, b Burst) {
	p.b.count(id, from, to)
	p.b.q.join(id, to, b)
	stamp := p.clock
	if newer := p.b.q.links.at(id).newer; newer != 0 {
		stamp = *p.stamps.at(newer - 1)
	}
	*p.stamps.at(id) = stamp
}

// BurstOf returns the burst in which a block took its place.
func (p *MQ) BurstOf(id uint32) Burst { return p.b.q.burstOf(id) }

// Move gives a block another number.
func (p *MQ) Move(from, to uint32) {
	if p.b.q.where(from) != absent {
		p.b.renumber(from, to)
		*p.stamps.grow(to) = *p.stamps.at(from)
	}
}

// Remove forgets a block and leaves no ghost.
func (p *MQ) Remove(id uint32) {
	if k := p.b.q.where(id); k != absent {
		p.b.drop(id, k)
	}
}

// Victims offers the block that has rested longest, less the time that its queue gives it.
func (p *MQ) Victims(fn func(id uint32) Verdict) {
	// Blocks not offered yet. A skipped one moves to the head of its own queue, behind all that may still be offered.
	var left [mqQueues + 1]int
	for k := range left {
		left[k] = p.b.q.count(queue(k))
	}
	for k := p.oldest(&left); k != absent; k = p.oldest(&left) {
		id := p.b.q.tail(k)
		switch fn(id) {
		case Stop:
			return
		case Evict:
			p.evict(id, k)
		default:
			p.join(id, k, k, 0)
		}
		left[k]--
	}
}

// oldest returns the queue to take a candidate from, absent if none is left.
func (p *MQ) oldest(left *[mqQueues + 1]int) (oldest queue) {
	var least int64
	for k := queue(1); k <= mqQueues; k++ {
		if left[k] == 0 {
			continue
		}
		if goes := *p.stamps.at(p.b.q.tail(k)) + int64(k)*p.capacity; oldest == absent || goes < least {
			oldest, least = k, goes
		}
	}
	return oldest
}

func (p *MQ) evict(id uint32, k queue) {
	uses := p.b.q.links.at(id).freq
	e := p.b.drop(id, k)
	g := &p.b.ghosts
	g.add(e.hash, e.size, ghostOnce)
	g.link(e.hash).freq = uses
	g.trim(ghostOnce, mqGhosts*p.capacity)
}
