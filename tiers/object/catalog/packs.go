package catalog

import (
	"cmp"
	"sync"
)

// MaxPacks is how many packs a catalog can have at a time.
const MaxPacks = 1 << packBits

// Pack is one pack of the bucket. Time, Writer, Index and Size are what its name and a listing say;
// the catalog only keeps them.
type Pack struct {
	Time   int64 // nanoseconds since the epoch
	Writer uint64
	Index  int64 // offset of the index in bytes, a multiple of Align below 1<<38
	Size   int64 // of the object in bytes; at most Index + 4 GiB
	Total  int   // blocks in the object, as Complete was told; 0 until then
	Live   int64 // bytes of the blocks that the catalog has in it
	Blocks int   // how many these are
}

// packState is a Pack as it is stored. 48 bytes.
type packState struct {
	time    int64
	writer  uint64
	live    int64
	index   uint32 // in units of Align
	tail    uint32
	blocks  uint32
	total   uint32
	dropped bool // Drop is at work: no block may be put into it
}

func (p *packState) pack() Pack {
	index := int64(p.index) * Align
	return Pack{p.time, p.writer, index, index + int64(p.tail), int(p.total), p.live, int(p.blocks)}
}

// packs is the packs with their accounts.
type packs struct {
	mu struct {
		sync.RWMutex
		list  list[packState]
		count int64
		size  int64 // of all objects
		live  int64
	}
}

func (k *packs) add(p Pack) (n uint32, ok bool) {
	if p.Index < 0 || p.Index%Align != 0 || p.Index/Align > 1<<32-1 || p.Size < p.Index || p.Size-p.Index > 1<<32-1 {
		return 0, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if n, ok = k.mu.list.add(MaxPacks); !ok {
		return 0, false
	}
	*k.mu.list.at(n) = packState{time: p.Time, writer: p.Writer, index: uint32(p.Index / Align), tail: uint32(p.Size - p.Index)}
	k.mu.count++
	k.mu.size += p.Size
	return n, true
}

// enter counts a block of this size in a pack. It refuses if there is no such pack, and a block
// beside one of largeSize or more.
func (k *packs) enter(n uint32, size int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.mu.list.find(n)
	if p == nil || p.dropped || p.blocks > 0 && size >= largeSize || p.blocks == 1 && p.live >= largeSize {
		return false
	}
	p.blocks++
	p.live += size
	k.mu.live += size
	return true
}

// leave counts a block that is gone. size is that of its record.
func (k *packs) leave(n uint32, size uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.mu.list.at(n)
	gone := int64(size)
	if size == largeSize {
		gone = p.live // it was alone
	}
	p.blocks--
	p.live -= gone
	k.mu.live -= gone
}

// live returns the bytes of the blocks in a pack: of one of largeSize its size.
func (k *packs) live(n uint32) int64 {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.mu.list.at(n).live
}

// later reports whether a copy in pack a replaces one in pack b.
func (k *packs) later(a, b uint32) bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	p, q := k.mu.list.find(a), k.mu.list.at(b)
	return p != nil && (q.dropped || cmp.Or(cmp.Compare(p.time, q.time), cmp.Compare(p.writer, q.writer)) > 0)
}

// drop marks packs for removal, and returns those that are to be removed, and how many blocks are
// in them.
func (k *packs) drop(refs []Ref) (drop []uint32, blocks int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range refs {
		if p := k.mu.list.find(r.Number); p != nil && !p.dropped && p.time == r.Time && p.writer == r.Writer {
			p.dropped = true
			drop = append(drop, r.Number)
			blocks += int(p.blocks)
		}
	}
	return drop, blocks
}

// blocks returns how many blocks are in these packs.
func (k *packs) blocks(numbers []uint32) (n int) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	for _, number := range numbers {
		n += int(k.mu.list.at(number).blocks)
	}
	return n
}

// free gives back the numbers of packs without blocks.
func (k *packs) free(numbers []uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, n := range numbers {
		k.mu.count--
		k.mu.size -= k.mu.list.at(n).pack().Size
		k.mu.list.free(n)
	}
}

// time returns the time of a pack, 0 if there is no such pack.
func (k *packs) time(n uint32) int64 {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if s := k.mu.list.find(n); s != nil {
		return s.time
	}
	return 0
}

// AddPack gives a pack a number. Total, Live and Blocks are ignored. ok is false if its sizes cannot be,
// or if there are MaxPacks.
func (c *Catalog) AddPack(p Pack) (n uint32, ok bool) { return c.packs.add(p) }

// Complete says that the blocks of a pack have been put, and how many are in the object, those
// included that Put refused.
func (c *Catalog) Complete(n uint32, total int) {
	k := &c.packs
	k.mu.Lock()
	defer k.mu.Unlock()
	if s := k.mu.list.find(n); s != nil {
		s.total = uint32(total)
	}
}

// Pack returns a pack.
func (c *Catalog) Pack(n uint32) (p Pack, ok bool) {
	k := &c.packs
	k.mu.RLock()
	defer k.mu.RUnlock()
	s := k.mu.list.find(n)
	if s == nil || s.dropped {
		return Pack{}, false
	}
	return s.pack(), true
}

// Packs calls fn for each pack, in order of numbers, until fn returns false. No lock is held
// meanwhile; packs that come and go meanwhile may be left out.
func (c *Catalog) Packs(fn func(n uint32, p Pack) bool) {
	k := &c.packs
	var some [chunkItems]packState
	for i := uint32(0); ; i++ {
		k.mu.RLock()
		if i >= k.mu.list.made {
			k.mu.RUnlock()
			return
		}
		found := k.mu.list.chunk(i)
		var used [chunkItems / 64]uint64
		if found != nil {
			used, some = found.used, found.items
		}
		k.mu.RUnlock()
		for j := range some {
			if used[j/64]>>(j%64)&1 != 0 && !some[j].dropped && !fn(i*chunkItems+uint32(j), some[j].pack()) {
				return
			}
		}
	}
}

// Ref is a pack with its number, which AddPack may give to another pack once this one is dropped.
type Ref struct {
	Number uint32
	Time   int64 // of the pack, as its Writer
	Writer uint64
}

// Drop forgets packs and all blocks in them, and returns how many these were. A number that no pack
// has, or another one by now, is ignored.
//
// Packs without blocks cost nothing. Otherwise Drop looks at all records of the catalog, about a
// second for 100 million; look-ups go on meanwhile. So drop many packs at once, or Forget the
// blocks first.
func (c *Catalog) Drop(refs ...Ref) (blocks int) {
	drop, left := c.packs.drop(refs)
	defer c.packs.free(drop)
	if left == 0 {
		return 0
	}
	highest := uint32(0)
	for _, n := range drop {
		highest = max(highest, n)
	}
	set := make([]uint64, highest/64+1)
	for _, n := range drop {
		set[n/64] |= 1 << (n % 64)
	}
	gone := func(p *packed) bool {
		n := p.pack()
		return !p.empty() && n <= highest && set[n/64]>>(n%64)&1 != 0
	}
	for i := range c.shards {
		// A Put counts its block first, while it holds the shard.
		if c.packs.blocks(drop) == 0 {
			break
		}
		blocks += c.dropFrom(&c.shards[i], gone)
	}
	return blocks
}

// dropFrom removes the records of a shard for which gone returns true.
func (c *Catalog) dropFrom(s *shard, gone func(p *packed) bool) (blocks int) {
	s.write.Lock()
	defer s.write.Unlock()
	for p := uint64(0); p < s.table.places; {
		if !gone(s.table.at(p)) {
			p++
			continue
		}
		c.removeLocked(s, p) // p has the next record now
		blocks++
	}
	c.shrinkLocked(s)
	return blocks
}
