package reuse

import (
	"container/list"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// lru is an exact cache, to compare with.
type lru struct {
	capacity, used int64
	order          *list.List // of *lruBlock, last used in front
	at             map[int]*list.Element
}

type lruBlock struct {
	key   int
	bytes int64
}

func newLRU(capacity int64) *lru {
	return &lru{capacity: capacity, order: list.New(), at: map[int]*list.Element{}}
}

// ask reads a block, and stores it if it is not there. evicted is called for those that went for it.
func (c *lru) ask(key int, bytes int64, evicted func(key int)) (hit bool) {
	if el := c.at[key]; el != nil {
		c.order.MoveToFront(el)
		return true
	}
	c.used += bytes
	c.at[key] = c.order.PushFront(&lruBlock{key, bytes})
	for c.used > c.capacity {
		b := c.order.Remove(c.order.Back()).(*lruBlock)
		c.used -= b.bytes
		delete(c.at, b.key)
		evicted(b.key)
	}
	return false
}

var testSeed = maphash.MakeSeed()

func nameOf(key int) Name {
	h := maphash.Comparable(testSeed, key)
	return Name{Hash: uint32(h >> 32), Key: h}
}

// bytesOf returns the size of a block: 64 KiB to 1 MiB.
func bytesOf(key int) int64 { return int64(1+uint32(key)*2654435761>>28) << 16 }

// tolerance bounds the error of an estimated hit ratio. The standard error of a ratio from the 8192 sampled asks that count
// in full is below 0.006. More comes from which names the sample happens to have: FAST 2015 finds a mean error below 0.01
// at 8192 names. Here 4096 names are the least.
const tolerance = 0.04

// replay has a meter and exact caches see asks of which next yields the keys. The cache of the present size decides which
// asks the meter sees as reads. It returns hit ratios: exact ones and sampled ones of the asks after the first skip ones, and
// the estimates at the end.
func replay(m *Meter, capacity int64, asks, skip int, next func() int) (exact, sampled, ratio [len(Scales)]float64) {
	var caches [len(Scales)]*lru
	for i, scale := range Scales {
		caches[i] = newLRU(int64(scale * float64(capacity)))
	}
	var hits [len(Scales)]int
	var before Estimate
	for n := range asks {
		if n == skip {
			before = m.Stats().Memory
		}
		key := next()
		name, bytes, now := nameOf(key), bytesOf(key), int64(n)
		for i, c := range caches {
			node := Scales[i] == 1
			hit := c.ask(key, bytes, func(key int) {
				if gone := nameOf(key); node && m.Sampled(gone.Hash) {
					m.Left(gone, now)
				}
			})
			if hit && n >= skip {
				hits[i]++
			}
			switch {
			case !node:
			case hit:
				if m.Asked(name.Hash) {
					m.Read(name, bytes, now)
				}
			case m.Sampled(name.Hash):
				m.Missed(name, 0, now)
				m.Missed(name, 0, now) // Linux looks once more before the write
				m.Stored(name, bytes)
			}
		}
	}
	after := m.Stats().Memory
	for i := range Scales {
		exact[i] = float64(hits[i]) / float64(asks-skip)
		sampled[i] = float64(after.Hits[i]-before.Hits[i]) / float64(after.Asks-before.Asks)
	}
	return exact, sampled, after.Ratio
}

// TestReplay shows that the estimates are near the hit ratios of exact caches, for a Zipf trace and for scans.
func TestReplay(t *testing.T) {
	const keys, few, asks, skip = 60_000, 6000, 400_000, 200_000
	mean := int64(17) << 15 // bytes of a block
	for name, c := range map[string]struct {
		blocks int64 // that the node has room for
		next   func(r *rand.Rand) func() int
	}{
		"zipf": {keys / 10, func(r *rand.Rand) func() int {
			z := rand.NewZipf(r, 1.1, 8, keys-1)
			return func() int { return int(z.Uint64()) }
		}},
		"few": {few / 10, func(r *rand.Rand) func() int {
			z := rand.NewZipf(r, 1.1, 8, few-1)
			return func() int { return int(z.Uint64()) }
		}},
		// Half of the asks go round in circles of 1.5 times the room, so a cache as small as the node has none of them.
		"scan": {20_000, func(r *rand.Rand) func() int {
			z, at := rand.NewZipf(r, 1.1, 8, 999), 0
			return func() int {
				if r.IntN(2) == 0 {
					return int(z.Uint64())
				}
				at = (at + 1) % 30_000
				return keys + at
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			m := New(c.blocks*mean, 0, 0)
			exact, sampled, ratio := replay(m, c.blocks*mean, asks, skip, c.next(rand.New(rand.NewPCG(seed, 1))))
			t.Logf("share %v, %d names: exact %.4f, sampled %.4f, ratio %.4f", m.Stats().Memory.Share, len(m.samples[0].at), exact, sampled, ratio)
			if m.Stats().Memory.Share == 1 {
				t.Error("the sample has all names")
			}
			for i, scale := range Scales {
				if math.Abs(ratio[i]-exact[i]) > tolerance {
					t.Errorf("%vx: estimated %.4f, exact %.4f", scale, ratio[i], exact[i])
				}
			}
		})
	}
}

// TestMeter shows what counts as an ask, and what is known of names.
func TestMeter(t *testing.T) {
	const block = 1 << 20
	m := New(2*block, 2*block, 100)
	a, b, c := nameOf(1), nameOf(2), nameOf(3)
	want := func(what string, asks uint64, memory, ssd [len(Scales)]uint64) {
		t.Helper()
		st := m.Stats()
		if st.Memory.Asks != asks || st.SSD.Asks != asks || st.Memory.Hits != memory || st.SSD.Hits != ssd {
			t.Errorf("%s: %d and %d asks, hits %v and %v, want %d, %v, %v", what, st.Memory.Asks, st.SSD.Asks, st.Memory.Hits, st.SSD.Hits, asks, memory, ssd)
		}
	}
	read := func(n Name, committed int64) {
		if !m.Asked(n.Hash) {
			t.Error("a name is not in the sample")
		}
		m.Read(n, block, committed)
	}
	if st := m.Stats(); st.Memory.Valid || st.SSD.Valid {
		t.Error("a ratio of nothing")
	}
	read(a, 99)
	want("the first read of an old block", 0, [4]uint64{}, [4]uint64{})
	read(a, 99)
	want("the second", 1, [4]uint64{1, 1, 1, 1}, [4]uint64{1, 1, 1, 1})
	m.Missed(b, 0, 200)
	m.Missed(b, 0, 201)
	m.Stored(b, block)
	want("a new block", 2, [4]uint64{1, 1, 1, 1}, [4]uint64{1, 1, 1, 1})
	read(a, 99)
	want("behind one other", 3, [4]uint64{1, 2, 2, 2}, [4]uint64{2, 2, 2, 2})
	m.Stored(c, block)
	read(b, 200)
	want("behind two others", 4, [4]uint64{1, 2, 3, 3}, [4]uint64{2, 3, 3, 3})
	m.Left(b, 300)
	m.Missed(b, 0, 300+int64(time.Second))
	m.Missed(b, 0, 300+int64(time.Hour))
	want("evicted from the node", 5, [4]uint64{2, 3, 4, 4}, [4]uint64{3, 4, 4, 4})
	if back := m.Stats().Back; back.Sum != 1 {
		t.Errorf("it was asked for after 1 s, counted %v s", back.Sum)
	}
	m.Dropped(a)
	m.Missed(a, 0, 400)
	want("removed", 6, [4]uint64{2, 3, 4, 4}, [4]uint64{3, 4, 4, 4})
	m.Evicted(time.Hour, time.Minute)
	m.Removed(time.Second)
	if st := m.Stats(); st.Evicted.Sum != 3600 || st.Idle.Sum != 60 || st.Removed.Sum != 1 {
		t.Errorf("ages of %v, %v, %v s", st.Evicted.Sum, st.Idle.Sum, st.Removed.Sum)
	}
	for _, r := range m.Stats().Memory.Ratio {
		if r < 0 || r > 1 {
			t.Errorf("a ratio of %v", r)
		}
	}
}

// TestBound shows that a sample stays within its limit whatever it is told, forgets what no cache would have, and that its
// bytes are those of its blocks.
func TestBound(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, capacity := range []int64{0, 1 << 20, 1 << 50} {
		m := New(capacity, 0, 0)
		s := m.samples[0]
		for n := range 200_000 {
			name := nameOf(r.IntN(50_000) + n/4)
			switch r.IntN(5) {
			case 0:
				if m.Asked(name.Hash) {
					m.Read(name, r.Int64N(1<<20), int64(n))
				}
			case 1:
				m.Dropped(name)
			case 2:
				m.Stored(name, r.Int64N(1<<20))
			default:
				m.Missed(name, 0, int64(n))
			}
			if len(s.at) > maxBlocks || len(s.order) > 2*maxBlocks+64 || len(s.blocks) > maxBlocks {
				t.Fatalf("%d names, %d positions, %d blocks", len(s.at), len(s.order), len(s.blocks))
			}
		}
		bytes, reach := int64(0), int64(4*capacity)>>s.shift
		for key, i := range s.at {
			b := s.blocks[i]
			if bytes += b.bytes; b.key != key || s.order[b.pos] != i || uint64(b.hash) >= s.limit() {
				t.Fatalf("block %d of %d: %+v", i, key, b)
			}
		}
		if bytes != s.bytes || s.before(s.next-1) != bytes || bytes > reach+1<<20 {
			t.Errorf("capacity %d: %d bytes, counted %d, largest cache %d", capacity, bytes, s.bytes, reach)
		}
	}
}

// TestAbsentShare shows how far look-ups of ever new names that are not there shrink the sample: until a node with many
// blocks has enough of them in it, and no further.
func TestAbsentShare(t *testing.T) {
	for blocks, want := range map[int]float64{0: 0.5, enoughBlocks: 0.5, 16 * enoughBlocks: 1. / 16, 20 * enoughBlocks: 1. / 16} {
		m := New(1<<40, 0, 0)
		for n := range 2_000_000 {
			if name := nameOf(n); m.Sampled(name.Hash) {
				m.Missed(name, blocks, int64(n))
			}
		}
		if got := m.Stats().Memory.Share; got != want {
			t.Errorf("%d blocks: a share of %v, want %v", blocks, got, want)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	run := func(b *testing.B, m *Meter, names []Name) {
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			if name := names[n%len(names)]; m.Asked(name.Hash) {
				m.Read(name, 1<<20, 1)
			}
		}
	}
	names := func(n int) (all []Name) {
		r := rand.New(rand.NewPCG(1, 2))
		for range n {
			all = append(all, nameOf(r.IntN(n)))
		}
		return all
	}
	b.Run("outside", func(b *testing.B) { // of the samples
		m := New(1<<40, 1<<42, 0)
		m.limit = 0
		run(b, m, names(4096))
	})
	b.Run("all sampled", func(b *testing.B) { run(b, New(1<<40, 1<<42, 0), names(wholeBlocks)) })
	b.Run("8K names", func(b *testing.B) { run(b, New(1<<40, 1<<42, 0), names(8192)) })
	b.Run("1M names", func(b *testing.B) { run(b, New(1<<40, 1<<42, 0), names(1<<20)) })
}
