package policy

// S3FIFO keeps new blocks in a small queue of a tenth of the capacity. A block that leaves it after
// more than one use enters the main queue. Any other is evicted and leaves a ghost. So most blocks
// that are never used again cost the main queue nothing. A block that comes back while its ghost is
// there enters the main queue at once. Blocks at the end of the main queue go round again once for
// each use, at most three times.
//
// A hit only raises a count, and no queue is reordered by it.
//
// The paper's eviction, once begun in the small queue, stays there until a block is evicted, and
// may evict one of the main queue too. Here each candidate is a new choice between the queues. So
// no more is evicted than was asked for.
//
// The paper's figures are in objects or bytes; here they are bytes, and the
// ghosts stand for as many bytes as the main queue may hold.
//
// Source: Yang, Zhang, Qiu, Yue and Vinayak, "FIFO queues are all you need for
// cache eviction", SOSP 2023, algorithm 1.
type S3FIFO struct {
	smallBytes int64 // target of the small queue
	mainBytes  int64 // limit of the ghosts
	b          blocks
}

const (
	s3Small     queue = 1
	s3Main      queue = 2
	s3SmallHeld queue = 3 // skipped in the present call; counted in s3Small
	s3MainHeld  queue = 4 // skipped in the present call; counted in s3Main

	smallShare   = 10 // the paper's tenth
	maxFreq      = 3  // the paper's two bits
	promoteAbove = 1  // uses above which a block leaves the small queue for the main one
)

// NewS3FIFO returns an empty S3FIFO for a tier of capacityBytes, at least 1.
func NewS3FIFO(capacityBytes int64) *S3FIFO {
	capacity := max(capacityBytes, 1)
	small := max(capacity/smallShare, 1)
	return &S3FIFO{smallBytes: small, mainBytes: capacity - small}
}

// Len returns the number of blocks present.
func (p *S3FIFO) Len() int { return p.b.n }

// Add enters a block in the small queue, or in the main one if it was evicted
// lately.
func (p *S3FIFO) Add(id uint32, hash uint64, size int64) {
	k := s3Small
	if p.b.ghosts.take(hash) != absent {
		k = s3Main
	}
	p.b.add(id, hash, size, k)
}

// Touch counts a use. The burst does not matter, as a use reorders nothing.
func (p *S3FIFO) Touch(id uint32, _ Burst) {
	if p.b.q.where(id) != absent {
		l := p.b.q.links.at(id)
		l.freq = min(l.freq+1, maxFreq)
	}
}

// Follow gives a block that came its place in a burst. A look-up reorders nothing, as a use.
func (p *S3FIFO) Follow(id uint32, b Burst, came bool) {
	if came {
		p.b.q.follow(id, b)
	}
}

// BurstOf returns the burst in which a block took its place.
func (p *S3FIFO) BurstOf(id uint32) Burst { return p.b.q.burstOf(id) }

// Move gives a block another number.
func (p *S3FIFO) Move(from, to uint32) { p.b.renumber(from, to) }

// Remove forgets a block and leaves no ghost.
func (p *S3FIFO) Remove(id uint32) {
	if k := p.b.q.where(id); k != absent {
		p.b.drop(id, k)
	}
}

// Victims offers the oldest of the small queue while that is at its target or
// above, else the oldest of the main queue.
func (p *S3FIFO) Victims(fn func(id uint32) Verdict) {
	// Blocks in use go round the main queue between those not offered yet. So skipped blocks wait
	// in queues of their own and join at the end.
	defer p.release(s3SmallHeld, s3Small)
	defer p.release(s3MainHeld, s3Main)
	for {
		k := p.next()
		if k == absent {
			return
		}
		id := p.b.q.tail(k)
		if p.used(id, k) {
			continue
		}
		switch fn(id) {
		case Stop:
			return
		case Evict:
			p.evict(id, k)
		default:
			p.Touch(id, 0)
			p.b.q.move(id, k+(s3SmallHeld-s3Small))
		}
	}
}

// next returns the queue to take a candidate from, absent if both are empty.
func (p *S3FIFO) next() queue {
	small, main := p.b.q.count(s3Small) > 0, p.b.q.count(s3Main) > 0
	switch {
	case small && (!main || p.b.bytes[s3Small] >= p.smallBytes):
		return s3Small
	case main:
		return s3Main
	}
	return absent
}

// used rewards the oldest block of queue k if it has been used enough, and reports whether it has.
// Each reward costs a use, so one call passes over a block at most maxFreq times.
func (p *S3FIFO) used(id uint32, k queue) bool {
	l := p.b.q.links.at(id)
	switch {
	case k == s3Small && l.freq > promoteAbove:
		l.freq = 0
		p.b.move(id, s3Small, s3Main)
		return true
	case k == s3Main && l.freq > 0:
		l.freq--
		p.b.q.move(id, s3Main)
		return true
	}
	return false
}

func (p *S3FIFO) evict(id uint32, k queue) {
	e := p.b.drop(id, k)
	if k == s3Small {
		p.b.ghosts.add(e.hash, e.size, ghostOnce)
		p.b.ghosts.trim(ghostOnce, p.mainBytes)
	}
}

// release returns the skipped blocks to the head of their queue. The one skipped last is the
// newest.
func (p *S3FIFO) release(held, k queue) {
	for p.b.q.count(held) > 0 {
		p.b.q.move(p.b.q.tail(held), k)
	}
}
