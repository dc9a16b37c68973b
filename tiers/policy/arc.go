package policy

// ARC balances recency against frequency. T1 holds blocks used once since they came, T2 blocks used
// again, B1 and B2 the ghosts of both. A hit in B1 shows that T1 was too short and raises its
// target. A hit in B2 lowers it. A scan runs through T1 and leaves T2 alone.
//
// The paper counts pages. Here all lengths are bytes, and c is the capacity. After each call,
//
//	T1 + B1 <= c  or B1 is empty
//	T1 + T2 + B1 + B2 <= 2c  or B2 is empty
//	0 <= target <= c
//
// The paper replaces one page inside a miss. Here Victims offers blocks one by one. The paper
// decides a tie by "the miss is in B2", which is "the last Add was in B2" here.
//
// Source: Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement
// Cache", FAST 2003, figure 4.
type ARC struct {
	capacity int64
	target   int64 // of T1, in bytes: p of the paper
	inB2     bool  // the last Add found its ghost in B2
	b        blocks
}

const (
	arcT1 queue = 1
	arcT2 queue = 2
	arcB1       = ghostOnce
	arcB2       = ghostOften
)

// NewARC returns an empty ARC for a tier of capacityBytes, at least 1.
func NewARC(capacityBytes int64) *ARC {
	return &ARC{capacity: max(capacityBytes, 1)}
}

// Len returns the number of blocks present.
func (p *ARC) Len() int { return p.b.n }

// Add enters a block as used once, or as used again if it was evicted lately.
func (p *ARC) Add(id uint32, hash uint64, size int64) {
	once, often := p.b.ghosts.bytes[arcB1], p.b.ghosts.bytes[arcB2]
	found := p.b.ghosts.take(hash)
	p.inB2 = found == arcB2
	k := arcT2
	switch found {
	case arcB1:
		p.target = min(p.capacity, p.target+weigh(size, often, once))
	case arcB2:
		p.target = max(0, p.target-weigh(size, once, often))
	default:
		k = arcT1
	}
	p.b.add(id, hash, size, k)
	p.trim()
}

// weigh returns size times the length of the other ghost queue over that of the queue that was hit.
// A hit in a short queue is rarer and means more.
func weigh(size, other, hit int64) int64 {
	size = max(size, 1)
	if other <= hit {
		return size
	}
	return int64(float64(size) * float64(other) / float64(hit))
}

// Touch makes a block the most recent of those used again.
func (p *ARC) Touch(id uint32, b Burst) {
	if k := p.b.q.where(id); k != absent && !p.b.q.joined(id, arcT2, b) {
		p.b.count(id, k, arcT2)
		p.b.q.join(id, arcT2, b)
	}
}

// Follow gives a block its place in a burst.
func (p *ARC) Follow(id uint32, b Burst, _ bool) { p.b.q.follow(id, b) }

// BurstOf returns the burst in which a block took its place.
func (p *ARC) BurstOf(id uint32) Burst { return p.b.q.burstOf(id) }

// Move gives a block another number.
func (p *ARC) Move(from, to uint32) { p.b.renumber(from, to) }

// Remove forgets a block and leaves no ghost.
func (p *ARC) Remove(id uint32) {
	if k := p.b.q.where(id); k != absent {
		p.b.drop(id, k)
	}
}

// Victims offers the oldest of T1 while T1 is over its target, else the oldest
// of T2.
func (p *ARC) Victims(fn func(id uint32) Verdict) {
	// Blocks not offered yet. A skipped one moves to the head of its own queue, behind all that may
	// still be offered.
	once, often := p.b.q.count(arcT1), p.b.q.count(arcT2)
	for once+often > 0 {
		k, left := arcT2, &often
		if often == 0 || once > 0 && p.longT1() {
			k, left = arcT1, &once
		}
		id := p.b.q.tail(k)
		switch fn(id) {
		case Stop:
			return
		case Evict:
			p.evict(id, k)
		default:
			p.b.q.move(id, k)
		}
		*left--
	}
}

func (p *ARC) longT1() bool {
	t1 := p.b.bytes[arcT1]
	return t1 > p.target || t1 == p.target && p.inB2
}

func (p *ARC) evict(id uint32, k queue) {
	e := p.b.drop(id, k)
	ghost := arcB1
	if k == arcT2 {
		ghost = arcB2
	}
	p.b.ghosts.add(e.hash, e.size, ghost)
	p.trim()
}

// trim bounds the ghosts in bytes.
func (p *ARC) trim() {
	g, t1, t2 := &p.b.ghosts, p.b.bytes[arcT1], p.b.bytes[arcT2]
	g.trim(arcB1, p.capacity-t1)
	g.trim(arcB2, 2*p.capacity-t1-t2-g.bytes[arcB1])
}
