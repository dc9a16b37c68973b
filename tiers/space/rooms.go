package space

import (
	"context"

	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Room is the room of the engine that this package is. All its methods may be called in parallel.
type Room struct {
	*space
}

// core is what the parts of the room share.
type core struct {
	*state.State

	space *space

	elsewhere Elsewhere
	lower     Lower
	names     Names
	writing   Writing
}

// New makes the room over s. Connect comes before all other calls.
func New(s *state.State) *Room {
	c := &core{State: s}
	c.space = &space{core: c, wake: make(chan struct{}, 1)}
	return &Room{c.space}
}

// Connect names the other rooms.
func (r *Room) Connect(elsewhere Elsewhere, lower Lower, names Names, writing Writing) {
	c := r.space.core
	c.elsewhere, c.lower, c.names, c.writing = elsewhere, lower, names, writing
}

// Elsewhere is what this room needs of package elsewhere.
type Elsewhere interface {
	// SettleRemoteLocked forgets an entry that stands only for a file or directory of other nodes when nothing refers to
	// it any more, and then the directories above. A pinned entry stays, because no other node knows of the pin.
	SettleRemoteLocked(id index.ID, en *index.Entry, g *state.Gone)
}

// Lower is what this room needs of package lower.
type Lower interface {
	// Drain waits until all blocks that were to be cascaded when it was called are copied, as far as the tiers take them,
	// and durable, or until ctx ends. It does not wait for blocks that are committed meanwhile, so it ends under any load.
	Drain(ctx context.Context) error
	// CleanLocked queues a copy of a block that is about to be evicted, and reports whether the copy
	// is under way or its turn will come. If other nodes have copies, the copy goes to a device of this
	// node, if there is one, because the others may evict theirs at any time. leaving: the block leaves memory when the copy is there.
	CleanLocked(id index.ID, en *index.Entry, leaving bool) bool
	// CleanSome queues copies of blocks that are about to be evicted, and waits until the tiers have those that they take.
	// A block that is being written gets no copy.
	CleanSome(ctx context.Context, ids []index.ID) error
	// ForgetCopyLocked notes that a tier has lost its copy of a block. If no other tier has one, the name goes.
	ForgetCopyLocked(s *state.Secondary, id index.ID, en *index.Entry, reason fate.Reason, g *state.Gone)
	// PromotingLocked returns the name of the tier that is asked for the block of an entry, "" if the block is not on its
	// way into memory.
	PromotingLocked(id index.ID) (tier string)
}

// Names is what this room needs of package names.
type Names interface {
	// DropNameLocked takes the name of a file away. It gives up the bytes as soon as no handle and no kernel uses them.
	DropNameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *state.Gone)
}

// Writing is what this room needs of package writing.
type Writing interface {
	// ClearLimboLocked gives up all replaced blocks.
	ClearLimboLocked(g *state.Gone)
}
