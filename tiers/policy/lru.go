package policy

// LRU evicts the least recently used block first. It weighs no sizes and keeps
// no ghosts.
type LRU struct{ q queues }

const lruQueue queue = 1

// NewLRU returns an empty LRU.
func NewLRU() *LRU { return &LRU{} }

// Len returns the number of blocks present.
func (p *LRU) Len() int { return p.q.count(lruQueue) }

// Add enters a block as the most recently used. hash and size are not used.
func (p *LRU) Add(id uint32, hash uint64, size int64) { p.q.push(id, lruQueue) }

// Touch makes a block the most recently used.
func (p *LRU) Touch(id uint32, b Burst) {
	if p.q.where(id) != absent && !p.q.joined(id, lruQueue, b) {
		p.q.join(id, lruQueue, b)
	}
}

// Follow gives a block its place in a burst.
func (p *LRU) Follow(id uint32, b Burst, _ bool) { p.q.follow(id, b) }

// BurstOf returns the burst in which a block took its place.
func (p *LRU) BurstOf(id uint32) Burst { return p.q.burstOf(id) }

// Move gives a block another number.
func (p *LRU) Move(from, to uint32) {
	if p.q.where(from) != absent {
		p.q.renumber(from, to)
	}
}

// Remove forgets a block.
func (p *LRU) Remove(id uint32) {
	if p.q.where(id) != absent {
		p.q.take(id)
	}
}

// Victims offers blocks from the least to the most recently used.
func (p *LRU) Victims(fn func(id uint32) Verdict) {
	// A skipped block moves to the head, behind all that are still to come.
	for range p.Len() {
		id := p.q.tail(lruQueue)
		switch fn(id) {
		case Stop:
			return
		case Evict:
			p.q.take(id)
		default:
			p.q.move(id, lruQueue)
		}
	}
}
