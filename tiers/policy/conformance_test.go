package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// verify fails if an invariant inside p does not hold.
func verify(t testing.TB, p Policy) {
	t.Helper()
	switch p := p.(type) {
	case *LRU:
		verifyQueue(t, &p.q, lruQueue)
	case *ARC:
		verifyBlocks(t, &p.b)
		g, c := &p.b.ghosts, p.capacity
		t1, t2, b1, b2 := p.b.bytes[arcT1], p.b.bytes[arcT2], g.bytes[arcB1], g.bytes[arcB2]
		if b1 > 0 && t1+b1 > c || b2 > 0 && t1+t2+b1+b2 > 2*c || p.target < 0 || p.target > c {
			t.Fatalf("arc: T1 %d T2 %d B1 %d B2 %d target %d of %d bytes", t1, t2, b1, b2, p.target, c)
		}
	case *MQ:
		verifyBlocks(t, &p.b)
		if got := p.b.ghosts.bytes[ghostOnce]; got > mqGhosts*p.capacity {
			t.Fatalf("mq: ghosts of %d bytes for a capacity of %d", got, p.capacity)
		}
		for k := queue(1); k <= mqQueues; k++ {
			for i, ids := 1, verifyQueue(t, &p.b.q, k); i < len(ids); i++ {
				if *p.stamps.at(ids[i-1]) > *p.stamps.at(ids[i]) || mqQueue(p.b.q.links.at(ids[i]).freq) != k {
					t.Fatalf("mq: block %d is out of place in queue %d", ids[i], k)
				}
			}
		}
	case *S3FIFO:
		verifyBlocks(t, &p.b)
		if got := p.b.ghosts.bytes[ghostOnce]; got > p.mainBytes {
			t.Fatalf("s3fifo: ghosts of %d bytes, limit %d", got, p.mainBytes)
		}
		if p.b.q.count(s3SmallHeld)+p.b.q.count(s3MainHeld) != 0 {
			t.Fatal("s3fifo: blocks held after the call")
		}
	}
}

// verifyQueue walks a queue from its tail and returns what is in it.
func verifyQueue(t testing.TB, q *queues, k queue) (ids []uint32) {
	t.Helper()
	older := uint32(0)
	for at := q.ends[k].tail; at != 0; at = q.links.at(at - 1).newer {
		l := q.links.at(at - 1)
		if l.in != k || l.older != older || len(ids) > q.count(k) {
			t.Fatalf("queue %d: block %d is out of place: %+v", k, at-1, *l)
		}
		ids = append(ids, at-1)
		older = at
	}
	if q.bursts != nil {
		for _, b := range q.bursts {
			if end := b.ends[k]; end != 0 && (q.where(end-1) != k || q.links.at(end-1).burst != b.number) {
				t.Fatalf("queue %d: burst %d ends with block %d: %+v", k, b.number, end-1, *q.links.at(end - 1))
			}
		}
	}
	if older != q.ends[k].head || len(ids) != q.count(k) {
		t.Fatalf("queue %d: %d blocks from tail to %d, want %d to %d",
			k, len(ids), older, q.count(k), q.ends[k].head)
	}
	return ids
}

func verifyBlocks(t testing.TB, b *blocks) {
	t.Helper()
	n := 0
	for k := absent + 1; k < maxQueues; k++ {
		var bytes int64
		for _, id := range verifyQueue(t, &b.q, k) {
			bytes += b.info.at(id).size
			n++
		}
		if bytes != b.bytes[k] {
			t.Fatalf("queue %d: %d bytes, counted %d", k, bytes, b.bytes[k])
		}
	}
	if n != b.n {
		t.Fatalf("%d blocks, counted %d", n, b.n)
	}
	verifyGhosts(t, &b.ghosts)
}

func verifyGhosts(t testing.TB, g *ghosts) {
	t.Helper()
	n := 0
	for k := ghostOnce; k <= ghostOften; k++ {
		var bytes int64
		for _, i := range verifyQueue(t, &g.q, k) {
			bytes += g.info.at(i).size
			n++
			if *g.find(g.info.at(i).hash) != i+1 {
				t.Fatalf("ghost %d is not found by its hash", i)
			}
		}
		if bytes != g.bytes[k] {
			t.Fatalf("ghosts %d: %d bytes, counted %d", k, bytes, g.bytes[k])
		}
	}
	if n > g.limit() {
		t.Fatalf("%d ghosts for at most %d blocks", n, g.peak)
	}
}

// TestConformance: after any sequence of calls a policy holds the blocks that a
// plain set holds, never offers another one, and offers each once where all are
// skipped. Sizes vary and hashes come back, so that ghosts are hit. To repeat a
// failure, set seeds to the one printed.
func TestConformance(t *testing.T) {
	seeds := []uint64{1, 2, rand.Uint64()}
	for _, name := range names {
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("%s/seed=%d", name, seed), func(t *testing.T) {
				r := rand.New(rand.NewPCG(seed, 0))
				c := &conformance{t: t, r: r, p: open(t, name, 20000), present: map[uint32]bool{}}
				for range 4000 {
					c.step()
				}
				c.offersAll()
			})
		}
	}
}

type conformance struct {
	t       *testing.T
	r       *rand.Rand
	p       Policy
	present map[uint32]bool
}

// id returns a block out of 600; the last hundred are far away, in chunks of
// their own.
func (c *conformance) id() uint32 {
	id := uint32(c.r.IntN(600))
	if id >= 500 {
		id *= 5000
	}
	return id
}

// burst returns no burst, one of two that share a place in the policy, or one of its own.
func (c *conformance) burst() Burst { return []Burst{0, 1, 1 + MaxBursts, 2}[c.r.IntN(4)] }

func (c *conformance) step() {
	c.t.Helper()
	switch id := c.id(); c.r.IntN(11) {
	case 0, 1, 2, 3:
		if !c.present[id] {
			c.p.Add(id, uint64(c.r.IntN(1000)), int64(1+c.r.IntN(100)))
			c.present[id] = true
		}
		c.p.Follow(id, c.burst(), c.r.IntN(2) == 0)
	case 4, 5, 6:
		c.p.Touch(id, c.burst())
	case 7:
		c.p.Remove(id)
		delete(c.present, id)
	case 8:
		c.victims()
	case 9:
		to := c.id()
		if c.present[to] {
			break
		}
		c.p.Move(id, to)
		if c.present[id] {
			delete(c.present, id)
			c.present[to] = true
		}
	case 10:
		if c.r.IntN(20) == 0 {
			c.offersAll()
		}
	}
	if c.p.Len() != len(c.present) {
		c.t.Fatalf("Len: got %d, want %d", c.p.Len(), len(c.present))
	}
	if c.r.IntN(20) == 0 {
		verify(c.t, c.p)
	}
}

// victims gives random verdicts.
func (c *conformance) victims() {
	c.t.Helper()
	offered := map[uint32]bool{}
	stopped := false
	c.p.Victims(func(id uint32) Verdict {
		if stopped || offered[id] || !c.present[id] {
			c.t.Fatalf("block %d: stopped %v, offered %v, present %v", id, stopped, offered[id], c.present[id])
		}
		offered[id] = true
		switch n := c.r.IntN(20); {
		case n == 0:
			stopped = true
			return Stop
		case n < 10:
			delete(c.present, id)
			return Evict
		}
		return Skip
	})
}

// offersAll skips everything.
func (c *conformance) offersAll() {
	c.t.Helper()
	offered := map[uint32]bool{}
	c.p.Victims(func(id uint32) Verdict {
		if offered[id] || !c.present[id] {
			c.t.Fatalf("block %d: offered before %v, present %v", id, offered[id], c.present[id])
		}
		offered[id] = true
		return Skip
	})
	if len(offered) != len(c.present) {
		c.t.Fatalf("offered %d blocks of %d", len(offered), len(c.present))
	}
	verify(c.t, c.p)
}

// TestGhosts: the ghosts agree with two plain lists while they grow past the
// first buckets of their hash table, shrink, and hit each of their bounds.
func TestGhosts(t *testing.T) {
	type plain struct {
		hash uint64
		size int64
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	g := &ghosts{peak: 4000}
	var want [ghostOften + 1][]plain
	forget := func(hash uint64) queue {
		for k := range want {
			i := slices.IndexFunc(want[k], func(p plain) bool { return p.hash == hash })
			if i >= 0 {
				want[k] = slices.Delete(want[k], i, i+1)
				return queue(k)
			}
		}
		return absent
	}
	for i := range 12000 {
		hash := uint64(r.IntN(6000)) << 32 // bad in its low bits
		switch n := r.IntN(100); {
		case n < 85:
			k := ghostOnce + queue(r.IntN(2))
			forget(hash)
			if len(want[1])+len(want[2]) == 4000 {
				longer := 1
				if len(want[2]) > len(want[1]) {
					longer = 2
				}
				want[longer] = want[longer][1:]
			}
			want[k] = append(want[k], plain{hash, int64(i)})
			g.add(hash, int64(i), k)
		case n < 99 || i < 9000:
			if got, want := g.take(hash), forget(hash); got != want {
				t.Fatalf("seed %d: take(%d): got queue %d, want %d", seed, hash, got, want)
			}
		default:
			k := ghostOnce + queue(r.IntN(2))
			limit := g.bytes[k] * 9 / 10
			g.trim(k, limit)
			for rest := g.bytes[k]; len(want[k]) > g.count(k); {
				if rest+want[k][len(want[k])-g.count(k)-1].size <= limit {
					t.Fatalf("seed %d: trim went below %d", seed, limit)
				}
				want[k] = want[k][len(want[k])-g.count(k):]
			}
		}
	}
	verifyGhosts(t, g)
	for k := ghostOnce; k <= ghostOften; k++ {
		for i, n := range verifyQueue(t, &g.q, k) {
			if e := g.info.at(n); (plain{e.hash, e.size}) != want[k][i] {
				t.Fatalf("seed %d: queue %d, ghost %d: got %+v, want %+v", seed, k, i, *e, want[k][i])
			}
		}
	}
	if g.buckets <= bucketsAtStart {
		t.Errorf("%d buckets: the table did not grow", g.buckets)
	}
}

// TestGhostsBounded: a stream of tiny blocks through a large capacity leaves no
// more ghosts than blocks were there at once.
func TestGhostsBounded(t *testing.T) {
	for name, want := range map[string]int{"arc": 2000, "mq": mqGhosts * 2000, "s3fifo": 2000} {
		p := open(t, name, 1<<40)
		for i := range 20000 {
			p.Add(uint32(i%3000), uint64(i), 1)
			if p.Len() >= 2000 {
				evict(p, 1, nil)
			}
			p.Remove(uint32((i + 1) % 3000)) // the number that comes next
		}
		verify(t, p)
		var g *ghosts
		switch p := p.(type) {
		case *ARC:
			g = &p.b.ghosts
		case *MQ:
			g = &p.b.ghosts
		case *S3FIFO:
			g = &p.b.ghosts
		}
		if n := g.count(ghostOnce); n != want {
			t.Errorf("%s: %d ghosts, want %d", name, n, want)
		}
	}
}

// TestAllocs: once the arrays have grown, no call allocates, ghosts included.
func TestAllocs(t *testing.T) {
	for _, name := range names {
		p := open(t, name, 1000)
		hash := uint64(0)
		free := make([]uint32, 0, 1000)
		for id := range uint32(1000) {
			free = append(free, id)
		}
		verdict := func(id uint32) Verdict { // made once: the closure is on the heap
			switch {
			case id%10 == 0:
				return Skip
			case len(free) == 100:
				return Stop
			}
			free = append(free, id)
			return Evict
		}
		turn := func() {
			for _, id := range free {
				hash++
				p.Add(id, hash%3000, 1)
				p.Follow(id, Burst(hash/10), true)
				p.Touch(uint32(hash*7)%1000, Burst(hash/10))
			}
			free = free[:0]
			p.Victims(verdict)
		}
		for range 50 {
			turn()
		}
		if got := testing.AllocsPerRun(20, turn); got != 0 {
			t.Errorf("%s: %v allocations a turn, want 0", name, got)
		}
		verify(t, p)
	}
}
