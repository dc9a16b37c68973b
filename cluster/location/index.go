package location

import (
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// The top bits of the mixed hash divide the table. So growing, and forgetting a holder, are short
// work for each shard, and writers seldom meet.
const (
	shardBits = 8
	shards    = 1 << shardBits
)

// Index is the table. Its methods may be called in parallel; none blocks. A slot of MaxSlots or
// above holds nothing and is never live.
type Index struct {
	// Each guards itself. The shards come first, so that they start at cache lines.
	shards  [shards]shard
	pool    pool
	classes classes
	graves  graves
	teller  teller
	live    [MaxSlots / 64]atomic.Uint64 // one bit a slot
	counts  [MaxSlots]atomic.Int32       // entries of each slot: a Follower enters 16 million at most
	dirs    [MaxSlots]atomic.Int32       // those that are directories
	refused atomic.Uint64
	omitted atomic.Uint64
	full    atomic.Bool  // an entry was omitted, and no table has shrunk since
	freed   atomic.Int64 // entries that Drop removed, for GiveBack

	// Constant after New.
	seed, factor uint64 // factor is odd
	inverse      uint64 // of factor, modulo 2^64
	lost         func(hash uint64)
	buried       func()
	clock        func() time.Time
	maxPlaces    uint64 // of all tables; 0: no limit
}

// shard is one piece of the table.
//
// Lock order: write before mu. mu is held only for a change of few entries, so that
// look-ups go on while a new table is built from the old one.
type shard struct {
	write sync.Mutex   // held by a goroutine that changes anything here
	mu    sync.RWMutex // held in addition for a visible change, or by a look-up

	table   table                      // write and mu; either is enough to read
	others  sparse[otherKey, attrs]    // likewise; of entries of class otherClass
	watched sparse[uint64, watchState] // write; by hash, not mixed

	_ [128 - 104]byte // two lines of the cache: neighbours do not share one
}

// otherKey names an entry.
type otherKey struct {
	hash uint64 // mixed
	slot Slot
}

// New returns an empty index.
func New(o Options) *Index {
	x := &Index{seed: rand.Uint64(), factor: rand.Uint64() | 1, lost: o.Lost, clock: o.Now}
	x.inverse = inverse(x.factor)
	if x.buried = o.Buried; x.buried == nil {
		x.buried = func() {}
	}
	if x.clock == nil {
		x.clock = time.Now
	}
	x.graves.horizon, x.graves.max = o.Horizon, o.MaxGraves
	if o.Horizon <= 0 {
		x.graves.horizon = 24 * time.Hour
	}
	if o.MaxGraves <= 0 {
		x.graves.max = 1 << 20
	}
	if x.graves.maxBytes = o.MaxGraveBytes; o.MaxGraveBytes <= 0 {
		x.graves.maxBytes = 128 << 20
	}
	x.maxPlaces = uint64(max(o.MaxBytes, 0) / entryBytes)
	return x
}

// mix spreads hashes evenly, also uneven ones, in a way that differs from index to index, because
// peers choose the hashes. Both steps can be undone, so no two hashes become one.
func (x *Index) mix(hash uint64) uint64 {
	hash = (hash ^ x.seed) * x.factor
	hash ^= hash >> 32
	return hash * spread
}

const spread = 0x9e3779b97f4a7c15

var unspread = inverse(spread)

// unmix is the inverse of mix.
func (x *Index) unmix(mixed uint64) uint64 {
	mixed *= unspread
	mixed ^= mixed >> 32
	return mixed*x.inverse ^ x.seed
}

// inverse returns the number that, multiplied by the odd number a, is 1 modulo 2^64. By Newton's
// method: a is right in its lowest 3 bits, and each step doubles them.
func inverse(a uint64) uint64 {
	n := a
	for range 5 {
		n *= 2 - a*n
	}
	return n
}

func (x *Index) shard(mixed uint64) *shard { return &x.shards[mixed>>(64-shardBits)] }

func (x *Index) isLive(slot Slot) bool {
	return x.live[slot/64].Load()>>(slot%64)&1 != 0
}

// Put enters that slot holds e, instead of what it held under e.Hash, and reports whether it did.
// It does not if a grave forbids it, if the size is below 0 or beyond MaxSize, if there is no such
// slot, or if there is no room (Options.MaxBytes). The slot's earlier entry of the hash is gone then,
// too. For lack of room, lower versions of the hash are, as well: nobody gets one instead of e.
func (x *Index) Put(slot Slot, e Entry) bool {
	if slot >= MaxSlots {
		return false
	}
	a := attrs{e.Mode, e.UID, e.GID}
	p := packed{hash: x.mix(e.Hash), seq: e.Seq}
	now := x.graveClock()
	s := x.shard(p.hash)
	s.write.Lock()
	refused := e.Size < 0 || e.Size > MaxSize
	// Under the lock: Bury makes the grave first and then takes this lock.
	if x.graves.count.Load() > 0 && x.graves.seq(e.Hash, now) > e.Seq {
		x.refused.Add(1)
		refused = true
	}
	if refused {
		lost := x.deleteLocked(s, slot, e.Hash, p.hash)
		s.write.Unlock()
		if lost {
			x.lose(e.Hash)
		}
		return false
	}
	class := x.classes.number(a)
	p.rest = packRest(e.Size, slot, class, e.Memory)
	entered := x.putLocked(s, p, a)
	lost := !entered && x.outdateLocked(s, e.Hash, p)
	s.write.Unlock()
	if lost {
		x.lose(e.Hash)
	}
	return entered
}

// outdateLocked removes the entries of lower versions of p, which had no room, and reports whether the caller must call
// lose. s.write is held.
func (x *Index) outdateLocked(s *shard, hash uint64, p packed) (lost bool) {
	x.omitted.Add(1)
	var old []Slot
	s.table.run(p.hash, func(e *packed) {
		if e.seq < p.seq {
			old = append(old, e.slot())
		}
	})
	for _, slot := range old {
		lost = x.deleteLocked(s, slot, hash, p.hash) || lost
	}
	x.full.Store(true) // after the removals, which may have made a table smaller
	return lost
}

// Full reports whether there was no room for an entry lately.
func (x *Index) Full() bool { return x.full.Load() }

// graveClock returns the time for graves. No lock may be held for it. Without graves any early time
// will do, because a grave that is made now is new.
func (x *Index) graveClock() int64 {
	if x.graves.count.Load() == 0 {
		return 0
	}
	return x.clock().UnixNano()
}

// putLocked enters p, whose attributes are a. False: there is no room. s.write is held.
func (x *Index) putLocked(s *shard, p packed, a attrs) bool {
	key := otherKey{p.hash, p.slot()}
	place, found := s.table.find(p.hash, p.slot())
	if !found && s.table.full() {
		places := s.table.larger()
		if x.maxPlaces > 0 && x.pool.taken()+places-s.table.places > x.maxPlaces {
			return false
		}
		x.rebuildLocked(s, places)
		place, _ = s.table.find(p.hash, p.slot())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found {
		x.countDir(p.slot(), x.attrsLocked(s, s.table.at(place)), -1)
	}
	x.countDir(p.slot(), a, 1)
	if p.class() == otherClass {
		s.others.set(key, a)
	}
	if !found {
		s.table.insert(place, p)
		x.counts[p.slot()].Add(1)
		return true
	}
	e := s.table.at(place)
	if e.class() == otherClass && p.class() != otherClass {
		s.others.remove(key)
	}
	*e = p
	return true
}

// rebuildLocked gives s a table of another size. s.write is held; look-ups go on meanwhile.
func (x *Index) rebuildLocked(s *shard, places uint64) {
	old := s.table
	t := old.rebuilt(&x.pool, places, nil)
	s.mu.Lock()
	s.table = t
	s.mu.Unlock()
	x.pool.give(old)
	if t.places < old.places {
		x.full.Store(false)
	}
}

// Delete enters that slot does not hold hash.
func (x *Index) Delete(slot Slot, hash uint64) {
	if slot >= MaxSlots {
		return
	}
	mixed := x.mix(hash)
	s := x.shard(mixed)
	s.write.Lock()
	lost := x.deleteLocked(s, slot, hash, mixed)
	s.write.Unlock()
	if lost {
		x.lose(hash)
	}
}

// deleteLocked removes an entry, and reports whether the caller must call lose. s.write is held.
func (x *Index) deleteLocked(s *shard, slot Slot, hash, mixed uint64) bool {
	place, found := s.table.find(mixed, slot)
	if !found {
		return false
	}
	s.mu.Lock()
	x.forgetLocked(s, s.table.at(place))
	s.table.remove(place)
	s.mu.Unlock()
	if s.table.loose() {
		x.rebuildLocked(s, s.table.smaller())
	}
	return x.lostLocked(s, hash, mixed)
}

// forgetLocked updates everything else after e was removed. s.write and s.mu are held.
func (x *Index) forgetLocked(s *shard, e *packed) {
	x.counts[e.slot()].Add(-1)
	x.countDir(e.slot(), x.attrsLocked(s, e), -1)
	if e.class() == otherClass {
		s.others.remove(otherKey{e.hash, e.slot()})
	}
}

// attrsLocked returns the attributes of an entry. s.write or s.mu is held.
func (x *Index) attrsLocked(s *shard, e *packed) attrs {
	if class := e.class(); class != otherClass {
		return x.classes.attrs(class)
	}
	a, _ := s.others.get(otherKey{e.hash, e.slot()})
	return a
}

// countDir counts an entry of a slot with attributes, if that is a directory.
func (x *Index) countDir(slot Slot, a attrs, by int32) {
	if e := (Entry{Mode: a.mode}); e.Dir() {
		x.dirs[slot].Add(by)
	}
}

// removeLocked removes the n entries for which gone returns true. s.write is held.
func (x *Index) removeLocked(s *shard, n int, gone func(e *packed) bool) {
	var others []*packed // in the old blocks
	old := s.table
	t := old.rebuilt(&x.pool, placesFor(int(old.used)-n), func(e *packed) bool {
		if !gone(e) {
			return true
		}
		if e.class() == otherClass {
			others = append(others, e)
		}
		x.counts[e.slot()].Add(-1)
		x.countDir(e.slot(), x.attrsLocked(s, e), -1)
		return false
	})
	s.mu.Lock()
	s.table = t
	for _, e := range others {
		s.others.remove(otherKey{e.hash, e.slot()})
	}
	s.mu.Unlock()
	x.pool.give(old)
	if t.places < old.places {
		x.full.Store(false)
	}
}

// SetLive says whether look-ups show what slot holds. A new slot is not live.
func (x *Index) SetLive(slot Slot, live bool) {
	if slot >= MaxSlots {
		return
	}
	bit := uint64(1) << (slot % 64)
	if live {
		x.live[slot/64].Or(bit)
		return
	}
	if x.live[slot/64].And(^bit)&bit == 0 {
		return
	}
	for i := range x.shards {
		s := &x.shards[i]
		s.write.Lock()
		lost := x.allLostLocked(s)
		s.write.Unlock()
		x.lose(lost...)
	}
}

// Drop forgets all entries of slot. The slot is not live after that and may be given to another
// holder. Until Drop returns nothing may be put there.
func (x *Index) Drop(slot Slot) {
	if slot >= MaxSlots {
		return
	}
	x.SetLive(slot, false)
	gone := func(e *packed) bool { return e.slot() == slot && !e.empty() }
	for i := range x.shards {
		if x.counts[slot].Load() == 0 {
			return
		}
		s := &x.shards[i]
		s.write.Lock()
		x.clearLocked(s, gone)
		s.write.Unlock()
	}
}

// clearLocked removes the entries for which gone returns true. s.write is held.
func (x *Index) clearLocked(s *shard, gone func(e *packed) bool) {
	n := 0
	for _, b := range s.table.blocks {
		for j := range b {
			if gone(&b[j]) {
				n++
			}
		}
	}
	if n > 0 {
		x.removeLocked(s, n, gone)
		x.freed.Add(int64(n))
	}
}

// muchFreed is from how many bytes on it is worth a garbage collection to give memory back to the
// system: otherwise it stays with the process for minutes.
const muchFreed = 32 << 20

// GiveBack gives memory back to the system if calls of Drop have freed much since the last GiveBack
// that did. That takes a garbage collection; GiveBack waits for it, other methods do not.
func (x *Index) GiveBack() {
	if n := x.freed.Load(); n*entryBytes >= muchFreed {
		x.freed.Add(-n)
		debug.FreeOSMemory()
	}
}

// Lookup appends the live holders of the highest Seq of hash to buf: first those with the block in
// memory, otherwise in any order. It allocates only to extend buf.
func (x *Index) Lookup(hash uint64, buf []Holder) []Holder {
	mixed := x.mix(hash)
	s := x.shard(mixed)
	s.mu.RLock()
	defer s.mu.RUnlock()
	t := &s.table
	start := len(buf)
	inMemory := start // up to here the holders in memory
	place, _ := t.find(mixed, 0)
	for range t.used {
		e := t.at(place)
		if e.hash != mixed || e.empty() {
			break
		}
		place = t.wrap(place + 1)
		if !x.isLive(e.slot()) || len(buf) > start && e.seq < buf[start].Seq {
			continue
		}
		if len(buf) > start && e.seq > buf[start].Seq {
			buf, inMemory = buf[:start], start
		}
		buf = append(buf, x.holder(s, e, hash))
		if last := len(buf) - 1; e.memory() {
			buf[last], buf[inMemory] = buf[inMemory], buf[last]
			inMemory++
		}
	}
	return buf
}

// holder unpacks e. s.mu is held.
func (x *Index) holder(s *shard, e *packed, hash uint64) Holder {
	a := x.attrsLocked(s, e)
	return Holder{Slot: e.slot(), Entry: Entry{
		Hash: hash, Seq: e.seq, Size: e.size(), Memory: e.memory(),
		Mode: a.mode, UID: a.uid, GID: a.gid,
	}}
}

// Stats describes an index.
type Stats struct {
	Entries int64  `json:"entries" help:"copies of blocks of other nodes that this node knows"`
	Graves  int64  `json:"graves" help:"removals remembered"`
	Watched int64  `json:"watched" help:"blocks of which this node wants to know when no node has them any more"`
	Bytes   int64  `json:"memory_bytes" help:"memory of the index"`
	Limit   int64  `json:"memory_limit" help:"most memory of the entries: 'peer.location_memory'"`
	Refused uint64 `json:"refused_entries" help:"entries that a remembered removal forbade"`
	Omitted uint64 `json:"omitted_entries" help:"entries for which there was no room"`
}

// Stats returns the present counts, and removes graves past the horizon.
func (x *Index) Stats() Stats {
	x.graves.sweep(x.clock().UnixNano())
	st := Stats{
		Graves:  x.graves.count.Load(),
		Limit:   int64(x.maxPlaces * entryBytes),
		Refused: x.refused.Load(),
		Omitted: x.omitted.Load(),
		Bytes:   int64(unsafe.Sizeof(*x)) + x.pool.bytes() + x.classes.bytes() + x.graves.bytes(),
	}
	for i := range x.shards {
		s := &x.shards[i]
		s.write.Lock()
		st.Entries += int64(s.table.used)
		st.Watched += int64(len(s.watched.m))
		st.Bytes += s.table.bytes() + s.others.bytes() + s.watched.bytes()
		s.write.Unlock()
	}
	return st
}

// Blocks returns how many blocks slot has.
func (x *Index) Blocks(slot Slot) int64 {
	if slot >= MaxSlots {
		return 0
	}
	return max(x.Count(slot)-int64(x.dirs[slot].Load()), 0)
}

// Count returns how many entries slot has: blocks and directories.
func (x *Index) Count(slot Slot) int64 {
	if slot >= MaxSlots {
		return 0
	}
	return int64(x.counts[slot].Load())
}
