package elsewhere

import (
	"context"
	"os"

	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Room is the room of the engine that this package is. All its methods may be called in parallel.
type Room struct {
	*elsewhere
	*lending
}

// core is what the parts of the room share.
type core struct {
	*state.State

	elsewhere *elsewhere
	lending   *lending

	lower   Lower
	names   Names
	writing Writing
}

// New makes the room over s. Connect comes before all other calls.
func New(s *state.State) *Room {
	c := &core{State: s}
	c.elsewhere = &elsewhere{core: c}
	c.lending = &lending{core: c}
	return &Room{c.elsewhere, c.lending}
}

// Connect names the other rooms.
func (r *Room) Connect(lower Lower, names Names, writing Writing) {
	c := r.elsewhere.core
	c.lower, c.names, c.writing = lower, names, writing
}

// Lower is what this room needs of package lower.
type Lower interface {
	// CascadeToLocked queues a copy of a block to one tier, if the block is for that tier.
	CascadeToLocked(s *state.Secondary, id index.ID, en *index.Entry)
	// FetchAside fetches a block of other nodes into memory without a name, because another version has the name. w has
	// the key, the size and the checksum of the block. The caller carries the block on: with LandLocked and Enter, or with
	// Drop.
	FetchAside(ctx context.Context, w state.Wanted) (state.Fetched, error)
	// PromoteOwn is promote on behalf of another node. It takes the block only from this node's tiers: it must not ask
	// other nodes, because they may be waiting for this one. It fails with ErrNotFound where only other nodes could give
	// the block.
	PromoteOwn(ctx context.Context, id index.ID) error
	// PromoteTaken is promote for a block that Take copies.
	PromoteTaken(ctx context.Context, id index.ID) error
	// PromotingLocked returns the name of the tier that is asked for the block of an entry, "" if the block is not on its
	// way into memory.
	PromotingLocked(id index.ID) (tier string)
}

// Names is what this room needs of package names.
type Names interface {
	// Forget takes back n references by the kernel.
	Forget(id index.ID, n uint64)
	// AttrLocked returns the attributes of an entry.
	AttrLocked(id index.ID, en *index.Entry) state.Attr
	// DropDirLocked removes the name and the record of an empty directory. It does not tell the kernel, because the
	// kernel asked for it.
	DropDirLocked(id index.ID, en *index.Entry, g *state.Gone)
	// DropNameLocked takes the name of a file away. It gives up the bytes as soon as no handle and no kernel uses them.
	DropNameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *state.Gone)
	// ReapLocked frees the memory, the file and the id of an entry without a name, as
	// far as its handles and the kernel's references allow.
	ReapLocked(id index.ID, en *index.Entry, g *state.Gone)
}

// Writing is what this room needs of package writing.
type Writing interface {
	// CloseRead gives back the pin of an OpenRead.
	CloseRead(id index.ID)
	// WriteRecord brings the record of a committed entry up to date with its name and
	// attributes. It drops the record of an entry that has begun to wait for its name
	// (File.recorded). file is the primary file if the caller has it open, else nil.
	// Writers of one record take turns. Each writes the attributes of the time of its
	// turn, so the last record is right.
	WriteRecord(id index.ID, file *os.File) error
}
