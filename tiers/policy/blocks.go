package policy

// blocks is what ARC and S3FIFO share: queues that know the bytes in them, and
// the ghosts of blocks that were in them.
//
// INVARIANT: bytes[k] is the sum of the sizes of the blocks that the policy
// counts as being in queue k.
type blocks struct {
	q      queues
	info   column[info]
	bytes  [maxQueues]int64
	n      int // blocks present
	ghosts ghosts
}

// info is 16 bytes.
type info struct {
	hash uint64
	size int64 // bytes, at least 1
}

// add enters a block at the head of queue k.
func (b *blocks) add(id uint32, hash uint64, size int64, k queue) {
	b.q.push(id, k)
	// A size of 0 would let ghosts weigh nothing, and be without bound.
	size = max(size, 1)
	*b.info.grow(id) = info{hash: hash, size: size}
	b.q.links.at(id).freq = 0
	b.bytes[k] += size
	b.n++
	b.ghosts.peak = max(b.ghosts.peak, b.n)
}

// drop takes a block out of its queue, which the policy counts as queue k.
func (b *blocks) drop(id uint32, k queue) info {
	e := *b.info.at(id)
	b.q.take(id)
	b.bytes[k] -= e.size
	b.n--
	return e
}

// renumber gives a block another number. An unknown from is ignored.
func (b *blocks) renumber(from, to uint32) {
	if b.q.where(from) == absent {
		return
	}
	b.q.renumber(from, to)
	*b.info.grow(to) = *b.info.at(from)
}

// move puts a block of queue from at the head of queue to.
func (b *blocks) move(id uint32, from, to queue) {
	b.count(id, from, to)
	b.q.move(id, to)
}

// count counts a block of queue from as one of queue to.
func (b *blocks) count(id uint32, from, to queue) {
	size := b.info.at(id).size
	b.bytes[from] -= size
	b.bytes[to] += size
}
