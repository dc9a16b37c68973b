package catalog

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// Align is the unit of offsets in bytes.
const Align = 64

// The top bits of the hash divide the table. So growing is short work for each shard, and writers
// seldom meet.
const (
	shardBits = 6
	shards    = 1 << shardBits
)

// Entry is one block in the bucket.
type Entry struct {
	Seq            uint64 // version, never 0
	Size           int64  // bytes
	Mode, UID, GID uint32
	Expires        int64  // nanoseconds since the epoch; Get rounds up to a second; 0: never
	Pack           uint32 // number of the pack
	Offset         int64  // in the pack in bytes, a multiple of Align below 1<<26
}

// possible reports whether a record can hold e.
func (e *Entry) possible() bool {
	return e.Seq > 0 && e.Size >= 0 && e.Offset >= 0 && e.Offset%Align == 0 && e.Offset/Align < 1<<unitBits &&
		(e.Size < largeSize || e.Offset == 0)
}

// Options configures a Catalog.
type Options struct {
	// MaxTombs bounds the removals that are remembered. Zero means 1<<20.
	MaxTombs int
	// Now is the clock of the removals. Nil means time.Now.
	Now func() time.Time
}

// Catalog is the catalog of one bucket. Its methods may be called in parallel. None waits for I/O.
type Catalog struct {
	// Each guards itself.
	shards  [shards]shard
	packs   packs
	tree    tree
	tombs   tombs
	refused atomic.Uint64

	// Constant after New.
	seed maphash.Seed
	now  func() time.Time
}

// shard is one piece of the table.
type shard struct {
	write sync.Mutex   // held by a goroutine that changes anything here
	mu    sync.RWMutex // held in addition for a visible change, or by a look-up
	table table        // write and mu; either is enough to read

	_ [128 - 88]byte // two lines of the cache: neighbours do not share one
}

// New returns an empty catalog.
func New(o Options) *Catalog {
	c := &Catalog{seed: maphash.MakeSeed(), now: o.Now}
	if c.now == nil {
		c.now = time.Now
	}
	if c.tombs.most = o.MaxTombs; c.tombs.most <= 0 {
		c.tombs.most = 1 << 20
	}
	c.tombs.mu.byHash = map[uint64]tomb{}
	c.tree.init(c.seed)
	return c
}

func (c *Catalog) hash(path string) uint64 { return maphash.String(c.seed, path) }

// hashKey returns the hash of a key's path without making the path.
func (c *Catalog) hashKey(key block.Key) uint64 {
	var buf [256]byte
	b := buf[:0]
	if key.Group != "" {
		b = append(append(b, key.Group...), '/')
	}
	return maphash.Bytes(c.seed, append(b, key.Hash...))
}

func (c *Catalog) shard(hash uint64) *shard { return &c.shards[hash>>(64-shardBits)] }

// Get returns where a block is. If another path has the same hash, that may be the other block: its
// frame says so. Get does not allocate unless the path is longer than 256 bytes.
func (c *Catalog) Get(key block.Key) (e Entry, ok bool) {
	hash := c.hashKey(key)
	s := c.shard(hash)
	s.mu.RLock()
	defer s.mu.RUnlock()
	place, found := s.table.find(keyOf(hash))
	if !found {
		return Entry{}, false
	}
	r := s.table.at(place).load()
	// The class exists: who removes the record waits for s.mu before the class may go.
	k := &c.tree.classes.at(r.class).classKey
	e = Entry{
		Seq: r.seq, Size: int64(r.size), Mode: k.mode, UID: k.uid, GID: k.gid, Expires: k.expires * second,
		Pack: r.pack, Offset: int64(r.unit) * Align,
	}
	if r.size == largeSize {
		e.Size = c.packs.live(r.pack)
	}
	return e, true
}

// Dir returns the attributes of a directory. ok is false if the catalog has no block below it. If
// no block told the attributes, they are zero. path is not empty.
func (c *Catalog) Dir(path string) (a driver.DirAttrs, ok bool) { return c.tree.dir(path) }

// Put enters that the bucket has this version of a block, and reports whether Get returns it now.
// dirs are the directories above the block, from the outermost, if known; Put does not keep dirs.
//
// Of two versions of a path the one with the higher Seq remains, of two copies of a version that
// in the later pack, by time and writer. The other is dead: no pack counts it as live.
//
// Put also returns false for a version that is removed; a pack that does not exist; a Seq, Size or
// Offset that cannot be; a block of 8 MiB - 1 byte or more that is not alone in its pack at offset
// 0; and if there are more than 4 million combinations of directory, mode, uid, gid and Expires. Stats
// counts these.
func (c *Catalog) Put(path string, e Entry, dirs []driver.DirAttrs) bool {
	if !e.possible() {
		c.refused.Add(1)
		return false
	}
	hash := c.hash(path)
	now := int64(0)
	if c.tombs.count.Load() > 0 {
		now = c.now().UnixNano()
	}
	s := c.shard(hash)
	s.write.Lock()
	defer s.write.Unlock()
	// Under the lock: Remove makes the tomb first and then takes this lock.
	if c.tombs.count.Load() > 0 && c.tombs.removed(hash, e.Seq, c.packs.time(e.Pack), now) {
		c.refused.Add(1)
		return false
	}
	r := record{key: keyOf(hash), seq: e.Seq, size: uint32(min(e.Size, largeSize)), pack: e.Pack, unit: uint32(e.Offset / Align)}
	place, found := s.table.find(r.key)
	var old record
	if found {
		if old = s.table.at(place).load(); !c.later(&r, &old) {
			return false
		}
	}
	if !c.packs.enter(e.Pack, e.Size) {
		c.refused.Add(1)
		return false
	}
	var ok bool
	if r.class, ok = c.tree.enter(path, &e, dirs); !ok {
		c.packs.leave(r.pack, r.size)
		c.refused.Add(1)
		return false
	}
	c.putLocked(s, place, found, r)
	if found {
		c.packs.leave(old.pack, old.size)
		c.tree.leave(old.class)
	}
	return true
}

// later reports whether r replaces old.
func (c *Catalog) later(r, old *record) bool {
	switch {
	case r.seq != old.seq:
		return r.seq > old.seq
	case r.pack == old.pack:
		return r.unit > old.unit
	}
	return c.packs.later(r.pack, old.pack)
}

// putLocked puts r where find says. s.write is held.
func (c *Catalog) putLocked(s *shard, place uint64, found bool, r record) {
	if !found && s.table.full() {
		t := s.table.rebuilt(s.table.larger())
		s.mu.Lock()
		s.table = t
		s.mu.Unlock()
		place, _ = t.find(r.key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found {
		*s.table.at(place) = r.packed()
		return
	}
	s.table.insert(place, r.packed())
}

// removeLocked removes the record at place. s.write is held. shrinkLocked should follow.
func (c *Catalog) removeLocked(s *shard, place uint64) {
	r := s.table.at(place).load()
	s.mu.Lock()
	s.table.remove(place)
	s.mu.Unlock()
	c.packs.leave(r.pack, r.size)
	c.tree.leave(r.class)
}

// shrinkLocked gives s a table of the right size. s.write is held.
func (c *Catalog) shrinkLocked(s *shard) {
	places := s.table.fitting()
	if places == s.table.places {
		return
	}
	t := s.table.rebuilt(places)
	s.mu.Lock()
	s.table = t
	s.mu.Unlock()
}

// Remove removes the versions of a path up to seq from the packs of a time and before, and reports
// whether there was one. Until a second time Put refuses these versions from these packs. Both are in
// nanoseconds since the epoch.
func (c *Catalog) Remove(path string, seq uint64, at, until int64) bool {
	hash := c.hash(path)
	c.tombs.add(hash, seq, at, until, c.now().UnixNano())
	return c.forget(hash, func(r *record) bool { return r.seq <= seq && c.packs.time(r.pack) <= at })
}

// Forget forgets a block if it is in this pack, and reports whether it was. Another copy may be put
// later.
func (c *Catalog) Forget(path string, pack uint32) bool {
	return c.forget(c.hash(path), func(r *record) bool { return r.pack == pack })
}

// forget removes a record if which accepts it.
func (c *Catalog) forget(hash uint64, which func(r *record) bool) bool {
	s := c.shard(hash)
	s.write.Lock()
	defer s.write.Unlock()
	place, found := s.table.find(keyOf(hash))
	if !found {
		return false
	}
	if r := s.table.at(place).load(); !which(&r) {
		return false
	}
	c.removeLocked(s, place)
	c.shrinkLocked(s)
	return true
}

// Stats describes a catalog.
type Stats struct {
	Blocks       int64  `json:"blocks"`
	LiveBytes    int64  `json:"live_bytes"` // of these blocks
	Packs        int64  `json:"packs"`
	PackedBytes  int64  `json:"packed_bytes"` // of all objects that are packs
	Dirs         int64  `json:"directories"`
	Classes      int64  `json:"classes"`
	Tombs        int64  `json:"removals"`         // that are remembered
	TombsDropped uint64 `json:"removals_dropped"` // forgotten before their time
	Refused      uint64 `json:"refused_blocks"`   // see Put

	TableBytes int64 `json:"table_memory_bytes"`
	PackBytes  int64 `json:"pack_memory_bytes"`
	DirBytes   int64 `json:"directory_memory_bytes"` // about
	TombBytes  int64 `json:"removal_memory_bytes"`   // about
}

// Stats returns the present counts.
func (c *Catalog) Stats() Stats {
	st := Stats{Refused: c.refused.Load()}
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.RLock()
		st.Blocks += int64(s.table.used)
		st.TableBytes += s.table.bytes()
		s.mu.RUnlock()
	}
	k := &c.packs
	k.mu.RLock()
	st.Packs, st.PackedBytes, st.LiveBytes, st.PackBytes = k.mu.count, k.mu.size, k.mu.live, k.mu.list.bytes()
	k.mu.RUnlock()
	c.tree.stats(&st)
	c.tombs.stats(&st, c.now().UnixNano())
	return st
}
