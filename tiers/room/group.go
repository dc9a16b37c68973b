package room

import (
	"fmt"
	"iter"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/policy"
)

// recentSizes is how many commits of a group the learned block size looks back
// on: long enough that one partial block does not undo it, short enough that a
// change of model is followed within a request.
const recentSizes = 16

// GroupOptions configures one group.
type GroupOptions struct {
	Pinned     bool  // never evicted; rewritten in place
	QuotaBytes int64 // cap on the group's bytes. 0: none.
	BlockBytes int64 // size of its blocks. 0: learned from the blocks written.
	Strict     bool  // nothing but blocks of BlockBytes is committed. Not of a pinned group.
}

// Group is one KV-cache group. The lock of its Room guards it.
type Group struct {
	name       block.GroupID
	opts       GroupOptions
	configured bool          // never forgotten
	quota      int64         // of the configuration
	changed    bool          // opts has another quota than the configuration
	order      policy.Policy // own eviction order, if the group has a quota; else nil
	former     policy.Policy // not nil: its blocks are on their way from that order to the present one

	used      int64 // sum of what is charged to it
	pins      pins
	files     int  // see Enter
	forgotten bool // its number is for another group to take

	// Stored and Found count commits of blocks, and look-ups and opens that found one, since the group was seen first.
	Stored, Found uint64

	recent [recentSizes]int64 // sizes of the latest commits, a ring
	next   int
	filled int
}

// Name returns the name of the group.
func (g *Group) Name() block.GroupID { return g.name }

// Options returns how the group is configured. Of one that is not, all is zero.
func (g *Group) Options() GroupOptions { return g.opts }

// Changed reports whether SetQuota has given the group a quota.
func (g *Group) Changed() bool { return g.changed }

// Pinned reports whether the group's files are never evicted.
func (g *Group) Pinned() bool { return g.opts.Pinned }

// Used returns the bytes that are charged to the group.
func (g *Group) Used() int64 { return g.used }

// Files returns how many files the group has.
func (g *Group) Files() int { return g.files }

// Commit counts the commit of a block, and learns its size.
func (g *Group) Commit(size int64) {
	g.Stored++
	g.Learn(size)
}

// Learn notes the size of a block.
func (g *Group) Learn(size int64) {
	g.recent[g.next] = size
	g.next = (g.next + 1) % recentSizes
	g.filled = min(g.filled+1, recentSizes)
}

// BlockBytes returns the size that the group's next block will have at most, or 0
// if that is not known yet. It is the largest of the recent commits: to reserve
// too much costs an early eviction, to reserve too little a failed write.
func (g *Group) BlockBytes() int64 {
	if g.opts.BlockBytes > 0 {
		return g.opts.BlockBytes
	}
	var m int64
	for _, s := range g.recent[:g.filled] {
		m = max(m, s)
	}
	return m
}

// ErrBlockSize: a strict group has blocks of one size alone. It is a block.ErrInvalid.
var ErrBlockSize = fmt.Errorf("not the size of the group's blocks: %w", block.ErrInvalid)

// CheckSize fails with ErrBlockSize if the group commits no blocks of that size.
func (g *Group) CheckSize(size int64) error {
	if !g.opts.Strict || g.opts.Pinned || size == g.opts.BlockBytes {
		return nil
	}
	return &block.Error{Op: "commit", Tier: "memory", Err: fmt.Errorf("%d bytes, want %d: %w", size, g.opts.BlockBytes, ErrBlockSize)}
}

// Over reports whether n bytes more are more than the group may have.
func (g *Group) Over(n int64) bool {
	return g.opts.QuotaBytes > 0 && g.used+n > g.opts.QuotaBytes
}

// Group returns the group of a number.
func (r *Room) Group(n uint32) *Group { return r.groups[n] }

// Find returns the group of a name, nil if nothing is known of it.
func (r *Room) Find(name block.GroupID) *Group {
	if n, ok := r.byName[name]; ok {
		return r.groups[n]
	}
	return nil
}

// Number returns the number of a group, which it makes at first sight. It holds until Forget, and for as long as
// the group has a file.
func (r *Room) Number(name block.GroupID) uint32 {
	if n, ok := r.byName[name]; ok {
		return n
	}
	n := uint32(len(r.groups))
	if free := r.free; len(free) > 0 {
		n, r.free = free[len(free)-1], free[:len(free)-1]
		r.groups[n] = &Group{name: name}
	} else {
		r.groups = append(r.groups, &Group{name: name})
	}
	r.byName[name] = n
	return n
}

// NumberOf is Number for a name in bytes, which it does not keep. It allocates only at first sight.
func (r *Room) NumberOf(name []byte) uint32 {
	if n, ok := r.byName[block.GroupID(name)]; ok {
		return n
	}
	return r.Number(block.GroupID(name))
}

// Groups returns the groups that are configured, in no order, and then the others that are not forgotten, in about
// the order of first sight.
func (r *Room) Groups() iter.Seq[*Group] {
	return func(yield func(*Group) bool) {
		for _, g := range r.groups {
			if !g.forgotten && !yield(g) {
				return
			}
		}
	}
}

// Enter counts a file of a group, which stays known while it has files.
func (r *Room) Enter(n uint32) { r.groups[n].files++ }

// Leave counts a file of a group less.
func (r *Room) Leave(n uint32) { r.groups[n].files-- }

// Move accounts a file, for which charge is charged, to another group.
func (r *Room) Move(from, to uint32, charge int64) {
	r.groups[from].used -= charge
	r.groups[to].used += charge
	r.Leave(from)
	r.Enter(to)
}

// Pass accounts a file, for which charge is charged, to another account.
func (r *Room) Pass(from, to uint16, charge int64) {
	if a := r.accounts[from]; a != nil {
		a.used -= charge
	}
	if a := r.accounts[to]; a != nil {
		a.used += charge
	}
}

// Forget forgets the groups without files, with the block size that they learned, but keeps those of the
// configuration and those with a quota. A user that has kept such a group may charge it, and takes the charge back.
func (r *Room) Forget() {
	for n, g := range r.groups {
		if g.files > 0 || g.forgotten || g.configured || g.changed || g.pins.quota > 0 || g.former != nil {
			continue
		}
		delete(r.byName, g.name)
		r.groups[n] = &Group{forgotten: true}
		r.free = append(r.free, uint32(n))
	}
}
