package tiers

import (
	"fmt"

	"github.com/kvfs/kvfs/tiers/block"
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

// groupLocked returns the ordinal of a group, making it at first sight.
func (e *Engine) groupLocked(name block.GroupID) uint32 {
	if n, ok := e.mu.byGroup[name]; ok {
		return n
	}
	n := uint32(len(e.mu.groups))
	e.mu.byGroup[name] = n
	e.mu.groups = append(e.mu.groups, &group{name: name})
	return n
}

// orderLocked returns the policy that a group's blocks are in.
func (e *Engine) orderLocked(g *group) policy.Policy {
	if g.order != nil {
		return g.order
	}
	return e.mu.shared
}
