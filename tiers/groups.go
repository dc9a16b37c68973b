package tiers

import (
	"fmt"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/policy"
)

// recentSizes is how many commits of a group the learned block size looks back
// on: long enough that one partial block does not undo it, short enough that a
// change of model is followed within a request.
const recentSizes = 16

// group is what the engine knows about one KV-cache group. All fields are
// guarded by Engine.mu, except name and opts, which are constant.
type group struct {
	name block.GroupID
	opts GroupOptions

	order     policy.Policy // own eviction order, if the group has a quota; else nil
	usedBytes int64         // sum of the charges of its entries
	entries   int           // files of which Entry.Group is this one
	forgotten bool          // its ordinal is for another group to take

	recent [recentSizes]int64 // sizes of the latest commits, a ring
	next   int
	filled int
}

// learn notes the size of a committed block.
func (g *group) learn(size int64) {
	g.recent[g.next] = size
	g.next = (g.next + 1) % recentSizes
	g.filled = min(g.filled+1, recentSizes)
}

// expectBytes is the size that the group's next block will have at most, or 0
// if that is not known yet. It is the largest of the recent commits: to reserve
// too much costs an early eviction, to reserve too little a failed write.
func (g *group) expectBytes() int64 {
	if g.opts.BlockBytes > 0 {
		return g.opts.BlockBytes
	}
	var m int64
	for _, s := range g.recent[:g.filled] {
		m = max(m, s)
	}
	return m
}

// errBlockSize: a strict group has blocks of one size alone.
var errBlockSize = fmt.Errorf("not the size of the group's blocks: %w", block.ErrInvalid)

// checkSize fails with errBlockSize if the group commits no blocks of that size.
func (g *group) checkSize(size int64) error {
	if !g.opts.Strict || g.opts.Pinned || size == g.opts.BlockBytes {
		return nil
	}
	return &block.Error{Op: "commit", Tier: "memory", Err: fmt.Errorf("%d bytes, want %d: %w", size, g.opts.BlockBytes, errBlockSize)}
}

// checkRenameLocked is checkSize for a file that is to get the name of a block. f is its write side, nil if it has
// none, and size what that has.
func (e *Engine) checkRenameLocked(k nameKey, f *File, en *index.Entry, size int64) error {
	if f == nil {
		size = en.Size
	}
	return e.mu.groups[e.groupOfLocked(k.parent)].checkSize(size)
}

// addGroups makes the groups that the configuration names.
func (e *Engine) addGroups() error {
	for name, opts := range e.opts.Groups {
		if opts.QuotaBytes > e.opts.CapacityBytes {
			return fmt.Errorf("group %q: quota %d exceeds the capacity %d", name, opts.QuotaBytes, e.opts.CapacityBytes)
		}
		g := &group{name: name, opts: opts}
		if opts.QuotaBytes > 0 && !opts.Pinned {
			p, err := policy.New(e.opts.Policy, opts.QuotaBytes)
			if err != nil {
				return err
			}
			g.order = p
		}
		e.mu.byGroup[name] = uint32(len(e.mu.groups))
		e.mu.groups = append(e.mu.groups, g)
	}
	return nil
}

// groupLocked returns the ordinal of a group, making it at first sight. It holds until the lock is
// released, and for as long as an entry has it.
func (e *Engine) groupLocked(name block.GroupID) uint32 {
	if n, ok := e.mu.byGroup[name]; ok {
		return n
	}
	n := uint32(len(e.mu.groups))
	if free := e.mu.freeGroups; len(free) > 0 {
		n, e.mu.freeGroups = free[len(free)-1], free[:len(free)-1]
		e.mu.groups[n] = &group{name: name}
	} else {
		e.mu.groups = append(e.mu.groups, &group{name: name})
	}
	e.mu.byGroup[name] = n
	return n
}

// enterGroupLocked makes a new entry one of a group.
func (e *Engine) enterGroupLocked(en *index.Entry, n uint32) {
	en.Group = n
	e.mu.groups[n].entries++
}

// forgetGroupsLocked forgets the groups without files, but those of the configuration, with the block size that
// they learned. A promotion that outlives its entry may go on to charge one: it takes that back itself.
func (e *Engine) forgetGroupsLocked() {
	for n, g := range e.mu.groups {
		if g.entries > 0 || g.forgotten {
			continue
		}
		if _, configured := e.opts.Groups[g.name]; configured {
			continue
		}
		delete(e.mu.byGroup, g.name)
		e.mu.groups[n] = &group{forgotten: true}
		e.mu.freeGroups = append(e.mu.freeGroups, uint32(n))
	}
}

// orderLocked returns the policy that a group's blocks are in.
func (e *Engine) orderLocked(g *group) policy.Policy {
	if g.order != nil {
		return g.order
	}
	return e.mu.shared
}

// moveGroupLocked accounts a file to another group, in which it will replace
// target. It fails with ErrQuota if that has no room.
func (e *Engine) moveGroupLocked(id index.ID, en *index.Entry, to uint32, target index.ID, g *gone) error {
	if en.Group == to {
		return nil
	}
	need := e.chargeLocked(id, en)
	if target != 0 {
		need -= e.chargeLocked(target, e.mu.ix.At(target))
	}
	if ok, _ := e.quotaLocked(e.mu.groups[to], need, true, g); need > 0 && !ok {
		return block.ErrQuota
	}
	e.regroupLocked(id, en, to)
	return nil
}

// regroupLocked accounts a file to another group.
func (e *Engine) regroupLocked(id index.ID, en *index.Entry, to uint32) {
	if en.Group == to {
		return
	}
	from, gr := e.mu.groups[en.Group], e.mu.groups[to]
	charge := e.chargeLocked(id, en)
	if en.Flags&flagPolicy != 0 {
		en.Flags &^= flagPolicy
		e.orderLocked(from).Remove(uint32(id))
	}
	from.usedBytes -= charge
	gr.usedBytes += charge
	from.entries--
	e.enterGroupLocked(en, to)
	e.classifyLocked(id, en)
}
