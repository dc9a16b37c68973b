package writing

import (
	"context"
	"os"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// Room is the room of the engine that this package is. All its methods may be called in parallel.
type Room struct {
	*opens
	*drafts
	*renames
}

// core is what the parts of the room share.
type core struct {
	*state.State

	opens   *opens
	drafts  *drafts
	renames *renames

	elsewhere Elsewhere
	lower     Lower
	names     Names
	space     Space
}

// New makes the room over s. Connect comes before all other calls.
func New(s *state.State) *Room {
	c := &core{State: s}
	c.opens = &opens{core: c}
	c.drafts = &drafts{core: c}
	c.renames = &renames{core: c}
	return &Room{c.opens, c.drafts, c.renames}
}

// Connect names the other rooms. Their packages say what the methods do that this room needs of them.
func (r *Room) Connect(elsewhere Elsewhere, lower Lower, names Names, space Space) {
	c := r.opens.core
	c.elsewhere, c.lower, c.names, c.space = elsewhere, lower, names, space
}

// Elsewhere is what this room needs of package elsewhere.
type Elsewhere interface {
	Ask(ctx context.Context, paths []string)
	FindLocked(parent index.ID, name string) index.ID
	Locate(path string) (driver.Located, bool)
	OwnDirsLocked(id index.ID)
	PublishedLocked(id index.ID, en *index.Entry, begun uint64, replaces bool, g *state.Gone)
	StrayLocked(id index.ID, en *index.Entry)
	TellOutdatedLocked(g *state.Gone)
	UnknownDirsLocked(dirs ...index.ID) (ask []string)
}

// Lower is what this room needs of package lower.
type Lower interface {
	AfterCommit(ctx context.Context, w state.Waiter, id index.ID, sync bool) error
	CascadeLocked(id index.ID, en *index.Entry)
	DisownLocked(path string, known uint16)
	DropCopiesLocked(id index.ID, en *index.Entry)
	OpenDeadline(id index.ID) (deadline time.Duration, late bool)
	PromoteLater(id index.ID, deadline time.Duration, then func(file *os.File, err error))
	PromoteOwn(ctx context.Context, id index.ID) error
	PromoteWithin(ctx context.Context, w state.Waiter, id index.ID, hint bool, deadline time.Duration) error
	RemoveCopiesLocked(id index.ID, en *index.Entry)
	RenumberedLocked(id index.ID, was uint64)
	StaleCopiesLocked(id index.ID, en *index.Entry)
	UpdateCopiesLocked(id index.ID, en *index.Entry, from block.Key, anew bool)
}

// Names is what this room needs of package names.
type Names interface {
	Attr(id index.ID) state.Attr
	Forget(id index.ID, n uint64)
	AttrLocked(id index.ID, en *index.Entry) state.Attr
	CheckNewLocked(parent index.ID, name string) error
	DropDirLocked(id index.ID, en *index.Entry, g *state.Gone)
	DropExpiredLocked(parent index.ID, name string, g *state.Gone)
	DropNameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *state.Gone)
	GiveUpLocked(id index.ID, en *index.Entry, why fate.Cause, g *state.Gone)
	ReapLocked(id index.ID, en *index.Entry, g *state.Gone)
	ResolveLocked(parent index.ID, name string, by state.Caller) (id index.ID, stable bool)
	UnlinkLocked(id index.ID, why fate.Cause, by state.Process, g *state.Gone)
}

// Space is what this room needs of package space.
type Space interface {
	AtOnce(op func() error) error
	CreateFile(ctx context.Context, w state.Waiter) (blob driver.BlobID, file *os.File, err error)
	Gauge(n int64, force bool) (free int64, err error)
	MoveGroupLocked(id index.ID, en *index.Entry, to uint32, target index.ID, g *state.Gone) error
	QuotaLocked(b room.Bill, n int64, force bool, g *state.Gone) bool
	Reserve(ctx context.Context, id index.ID, f state.WriteSide, n int64, started bool) error
	RoomLocked(b room.Bill, n int64, force bool, g *state.Gone) (ok bool, until int64)
	TryReserve(id index.ID, f state.WriteSide, n int64) bool
	WakeEvictor()
	WithRoom(ctx context.Context, w state.Waiter, op func() error) error
}
