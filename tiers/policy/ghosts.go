package policy

const (
	// minGhosts bounds the number of ghosts from below: 40 KiB, so that a
	// policy that has not seen many blocks yet can learn from those it saw.
	minGhosts = 1024

	bucketsAtStart = 1 << 10
	maxBuckets     = 1 << 31            // 2*low must fit in 32 bits
	goldenRatio    = 0x9e3779b97f4a7c15 // 2^64 / phi: spreads hashes that are bad in their low bits
)

// The queues of ghosts. S3FIFO uses only the first.
const (
	ghostOnce  queue = 1
	ghostOften queue = 2
)

// ghosts remembers the hashes and sizes of evicted blocks in two queues, oldest
// first out. A hash is in at most one of them. Finding, adding and dropping take
// constant time, and nothing is copied when the set grows: its hash table splits
// one bucket at a time (linear hashing, Litwin, VLDB 1980).
//
// INVARIANT: low is a power of two, low <= buckets < 2*low.
// INVARIANT: count(ghostOnce) + count(ghostOften) <= limit().
type ghosts struct {
	q     queues // of ghost numbers, which index info
	info  column[ghost]
	free  uint32 // 1 + first free number, chained; 0: none
	used  uint32 // numbers handed out at least once
	bytes [ghostOften + 1]int64
	peak  int // the most blocks present at once; the policy keeps it
	rooms int // how many ghosts there may be for each of these; 0: one

	heads        column[uint32] // a bucket: 1 + its first ghost; 0: empty
	buckets, low uint32
}

// ghost is 24 bytes.
type ghost struct {
	hash  uint64
	size  int64  // bytes
	chain uint32 // 1 + next ghost in the bucket, or 1 + next free number; 0: none
}

// count returns the number of ghosts in a queue.
func (g *ghosts) count(k queue) int { return g.q.count(k) }

// limit returns how many ghosts there may be.
func (g *ghosts) limit() int { return max(minGhosts, g.peak*max(g.rooms, 1)) }

// link returns the link of the ghost of hash, nil if there is none.
func (g *ghosts) link(hash uint64) *link {
	if g.buckets == 0 {
		return nil
	}
	n := *g.find(hash)
	if n == 0 {
		return nil
	}
	return g.q.links.at(n - 1)
}

// take forgets the ghost of hash and returns the queue it was in, absent if
// there is none.
func (g *ghosts) take(hash uint64) queue {
	l := g.link(hash)
	if l == nil {
		return absent
	}
	k := l.in
	g.remove(*g.find(hash) - 1)
	return k
}

// add remembers a block as the newest of queue k. It replaces an older ghost of that hash. If there
// are too many ghosts, it drops the oldest of the longer queue.
func (g *ghosts) add(hash uint64, size int64, k queue) {
	g.take(hash)
	if total := g.count(ghostOnce) + g.count(ghostOften); total >= g.limit() {
		longer := ghostOnce
		if g.count(ghostOften) > g.count(ghostOnce) {
			longer = ghostOften
		}
		g.remove(g.q.tail(longer))
	}
	g.split()
	n := g.number()
	head := g.bucket(hash)
	*g.info.grow(n) = ghost{hash: hash, size: size, chain: *head}
	*head = n + 1
	g.q.push(n, k)
	g.bytes[k] += size
}

// trim drops the oldest ghosts of queue k until they stand for at most maxBytes.
func (g *ghosts) trim(k queue, maxBytes int64) {
	for g.count(k) > 0 && g.bytes[k] > maxBytes {
		g.remove(g.q.tail(k))
	}
}

// remove drops ghost n.
func (g *ghosts) remove(n uint32) {
	e := g.info.at(n)
	*g.find(e.hash) = e.chain
	g.bytes[g.q.take(n)] -= e.size
	e.chain = g.free
	g.free = n + 1
}

// number returns a number for a new ghost.
func (g *ghosts) number() uint32 {
	if g.free != 0 {
		n := g.free - 1
		g.free = g.info.at(n).chain
		return n
	}
	g.used++
	return g.used - 1
}

// find returns the link that leads to the ghost of hash: it holds 1 + its
// number, or 0 if there is none.
func (g *ghosts) find(hash uint64) *uint32 {
	link := g.bucket(hash)
	for *link != 0 {
		e := g.info.at(*link - 1)
		if e.hash == hash {
			break
		}
		link = &e.chain
	}
	return link
}

func (g *ghosts) bucket(hash uint64) *uint32 {
	h := mix(hash)
	i := h & (2*g.low - 1)
	if i >= g.buckets {
		i = h & (g.low - 1)
	}
	return g.heads.at(i)
}

// split keeps at least as many buckets as ghosts. It adds one bucket and moves its ghosts there
// from the bucket that held them so far.
func (g *ghosts) split() {
	if g.buckets == 0 {
		for i := range uint32(bucketsAtStart) {
			g.heads.grow(i)
		}
		g.buckets, g.low = bucketsAtStart, bucketsAtStart
	}
	if uint32(g.count(ghostOnce)+g.count(ghostOften)) < g.buckets || g.buckets == maxBuckets {
		return
	}
	to, from := g.heads.grow(g.buckets), g.heads.at(g.buckets-g.low)
	for *from != 0 {
		n := *from
		e := g.info.at(n - 1)
		if mix(e.hash)&(2*g.low-1) != g.buckets {
			from = &e.chain
			continue
		}
		*from = e.chain
		e.chain = *to
		*to = n
	}
	g.buckets++
	if g.buckets == 2*g.low {
		g.low = g.buckets
	}
}

func mix(hash uint64) uint32 { return uint32(hash * goldenRatio >> 32) }
