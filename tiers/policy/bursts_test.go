package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// cache is a cache of blocks of one byte around a policy: a miss makes room for one block, then adds it.
type cache struct {
	p        Policy
	capacity int
	ids      map[uint64]uint32 // of keys present
	keys     map[uint32]uint64
	free     []uint32
}

func newCache(p Policy, capacity int) *cache {
	c := &cache{p: p, capacity: capacity, ids: map[uint64]uint32{}, keys: map[uint32]uint64{}}
	for id := range uint32(capacity) {
		c.free = append(c.free, id)
	}
	return c
}

// request reports whether key was present.
func (c *cache) request(key uint64) bool {
	if id, ok := c.ids[key]; ok {
		c.p.Touch(id, 0)
		return true
	}
	if len(c.free) == 0 {
		for _, id := range evict(c.p, 1, nil) {
			delete(c.ids, c.keys[id])
			c.free = append(c.free, id)
		}
	}
	id := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.ids[key], c.keys[id] = id, key
	c.p.Add(id, key, 1)
	return false
}

// chain has a cache take blocks in a burst, as an engine does: it reads what is there and stores the rest.
func (c *cache) chain(b Burst, keys ...uint64) {
	for _, key := range keys {
		if id, ok := c.ids[key]; ok {
			c.p.Touch(id, b)
			continue
		}
		c.request(key)
		c.p.Follow(c.ids[key], b, true)
	}
}

// keys returns n numbers from first on.
func keys(first, n int) []uint64 {
	all := make([]uint64, n)
	for i := range all {
		all[i] = uint64(first + i)
	}
	return all
}

// kept returns how many of the keys are there before the first that is not, and how many are there in all.
func (c *cache) kept(keys []uint64) (head, all int) {
	for i, key := range keys {
		if _, ok := c.ids[key]; ok {
			if all++; head == i {
				head++
			}
		}
	}
	return head, all
}

// TestChain shows that of a chain of 90 blocks in room for 60 the head stays (G8): all but the last room, which the
// newcomer needs. So it is if the chain is used again, and for the chains of two processes that take turns.
func TestChain(t *testing.T) {
	for _, name := range names {
		c := newCache(open(t, name, 60), 60)
		all := keys(0, 90)
		for turn := range 3 {
			c.chain(Burst(1+turn), all...)
			if name == "s3fifo" && turn > 0 {
				continue // what comes back soon after its eviction enters the main queue, whatever its place in the chain
			}
			if head, n := c.kept(all); head != 59 || n != 60 {
				t.Errorf("%s, turn %d: %d blocks from the head, %d in all, want 59 and 60", name, turn, head, n)
			}
			verify(t, c.p)
		}
		c = newCache(open(t, name, 60), 60)
		one, two := keys(0, 45), keys(100, 45)
		for i := range one {
			c.chain(8, one[i])
			c.chain(9, two[i])
		}
		first, n1 := c.kept(one)
		second, n2 := c.kept(two)
		if first+second < 58 || n1+n2 != 60 {
			t.Errorf("%s, two processes: %d and %d blocks from the heads, want 58 of %d", name, first, second, n1+n2)
		}
		verify(t, c.p)
	}
}

// TestChainLater shows that blocks that come all at once and then go lose the tail first, exactly; and that a burst,
// whose blocks were used since an older one, goes after it as a whole.
func TestChainLater(t *testing.T) {
	for _, name := range names {
		c := newCache(open(t, name, 200), 200)
		c.chain(1, keys(0, 90)...)
		c.chain(2, keys(100, 5)...)
		var want []uint32
		for i := 89; i >= 0; i-- {
			want = append(want, c.ids[uint64(i)])
		}
		if got := evict(c.p, 90, nil); !slices.Equal(got, want) {
			t.Errorf("%s: evicted %v, want %v", name, got, want)
		}
		verify(t, c.p)
	}
}

// TestBursts gives exact orders of eviction of uses in bursts. +7/1 stores block 7 in burst 1, 7/1 uses it.
func TestBursts(t *testing.T) {
	for _, test := range []struct {
		policy, name, script, want string
	}{
		{"lru", "stored and used again", "+1/1 +2/1 +3/1 1/2 2/2 3/2", "[3 2 1]"},
		{"lru", "a part used again", "+1/1 +2/1 +3/1 1/2 2/2", "[3 2 1]"},
		{"lru", "twice in a burst", "+1/1 +2/1 1/1 +3/1 2/1", "[3 2 1]"},
		{"lru", "a burst after another", "+1/1 +2/1 +3/2 +4/2", "[2 1 4 3]"},
		{"lru", "two in turns", "+1/1 +5/2 +2/1 +6/2 +3/1", "[3 2 1 6 5]"},
		{"lru", "the same blocks by two", "+1/1 +2/1 1/2 1/3 2/2 2/3", "[2 1]"},
		{"lru", "after its last block went", "+1/1 +2/1 +3/1 -3 +4/1 +5/0", "[4 2 1 5]"},
		{"lru", "after all of its blocks went", "+1/1 -1 +2/0 +3/1", "[2 3]"},
		{"lru", "used outside of it meanwhile", "+1/1 +2/1 2/0 +3/1", "[3 1 2]"},
		{"arc", "stored and used again", "+1/1 +2/1 +3/1 1/2 2/2 3/2", "[3 2 1]"},
		{"arc", "stored beside what is used again", "+1/1 +2/1 1/2 2/2 +3/2 +4/2", "[4 3 2 1]"},
		{"arc", "used in the burst of its store", "+1/1 +2/1 1/1 2/1", "[2 1]"},
		{"mq", "stored and used again", "+1/1 +2/1 +3/1 1/2 2/2 3/2", "[3 2 1]"},
		{"mq", "a part used again", "+1/1 +2/1 +3/1 1/2 2/2", "[3 2 1]"},
		{"mq", "used in the burst of its store", "+1/1 +2/1 1/1 2/1", "[2 1]"},
		{"s3fifo", "stored", "+1/1 +2/1 +3/1 +4/2", "[3 2 1 4]"},
		{"s3fifo", "used again", "+1/1 +2/1 +3/1 1/2 1/3 2/2 2/3", "[3 2 1]"},
	} {
		t.Run(test.policy+"/"+test.name, func(t *testing.T) {
			p := open(t, test.policy, 10)
			runBursts(t, p, test.script)
			verify(t, p)
			if got := fmt.Sprint(evict(p, 9, nil)); got != test.want {
				t.Errorf("%s: got %s, want %s", test.script, got, test.want)
			}
			verify(t, p)
		})
	}
}

// runBursts applies the words of a script to p.
func runBursts(t *testing.T, p Policy, script string) {
	t.Helper()
	for _, word := range strings.Fields(script) {
		name, burst, _ := strings.Cut(strings.TrimLeft(word, "+-"), "/")
		id, b := uint32(number(t, name, 0)), Burst(number(t, burst, 0))
		switch word[0] {
		case '+':
			p.Add(id, uint64(id), 1)
			p.Follow(id, b, true)
		case '-':
			p.Remove(id)
		default:
			p.Touch(id, b)
		}
	}
}

// TestChainScan shows that a set in use survives a scan in bursts, in ARC and in S3FIFO.
func TestChainScan(t *testing.T) {
	for _, name := range []string{"arc", "s3fifo"} {
		c := newCache(open(t, name, 100), 100)
		used := keys(0, 50)
		for i := range 3 {
			c.chain(Burst(1+i), used...)
		}
		for i := range 100 {
			c.chain(Burst(10+i), keys(1000+100*i, 100)...)
		}
		if head, _ := c.kept(used); head != 50 {
			t.Errorf("%s: %d of 50 blocks survived the scan", name, head)
		}
		verify(t, c.p)
	}
}

// TestBurstsModel compares LRU with a plain list: the newest block first, each block behind those of its burst.
func TestBurstsModel(t *testing.T) {
	type entry struct {
		id    uint32
		burst Burst
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	p := NewLRU()
	var list []entry
	for range 20000 {
		id, b := uint32(r.IntN(40)), Burst(r.IntN(4))
		at := slices.IndexFunc(list, func(e entry) bool { return e.id == id })
		if r.IntN(10) == 0 {
			p.Remove(id)
			if at >= 0 {
				list = slices.Delete(list, at, at+1)
			}
			continue
		}
		if at < 0 {
			p.Add(id, 0, 1)
			list, at = slices.Insert(list, 0, entry{id, 0}), 0
		}
		p.Touch(id, b)
		if b == 0 || list[at].burst != b {
			list = slices.Delete(list, at, at+1)
			to := 0
			for i, e := range list {
				if b != 0 && e.burst == b {
					to = i + 1
				}
			}
			list = slices.Insert(list, to, entry{id, b})
		}
	}
	verify(t, p)
	var want []uint32
	for _, e := range slices.Backward(list) {
		want = append(want, e.id)
	}
	if got := evict(p, len(list), nil); !slices.Equal(got, want) {
		t.Errorf("seed %d: got %v, want %v", seed, got, want)
	}
}
