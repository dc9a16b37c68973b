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

// Connect names the other rooms.
func (r *Room) Connect(elsewhere Elsewhere, lower Lower, names Names, space Space) {
	c := r.opens.core
	c.elsewhere, c.lower, c.names, c.space = elsewhere, lower, names, space
}

// Elsewhere is what this room needs of package elsewhere.
type Elsewhere interface {
	// FindLocked returns the child of parent called name, 0 if there is none here or elsewhere.
	FindLocked(parent index.ID, name string) index.ID
	// Locate is Remote.Locate without the answers that cannot be right.
	Locate(path string) (driver.Located, bool)
	// OwnDirsLocked makes the directories above an entry this node's own.
	OwnDirsLocked(id index.ID)
	// PublishedLocked follows the commit of a version. Versions of other nodes that existed when it was begun are
	// replaced; with replaces set, that holds for versions not yet known here, too. A version that came meanwhile stays:
	// two nodes that compute the same block at the same time do not remove each other's copy.
	PublishedLocked(id index.ID, en *index.Entry, begun uint64, replaces bool, g *state.Gone)
	// StrayLocked notes an entry that may stand, from now on, only for a file or directory of other nodes.
	StrayLocked(id index.ID, en *index.Entry)
	// TellOutdatedLocked moves the names that look-ups found to mean other entries to g. Every function that looks up
	// calls it before it releases the lock.
	TellOutdatedLocked(g *state.Gone)
}

// Lower is what this room needs of package lower.
type Lower interface {
	// AfterCommit waits for the copy of a committed block, if the cascade is synchronous
	// or if sync is set: a process called fsync before.
	AfterCommit(ctx context.Context, w state.Waiter, id index.ID, sync bool) error
	// CascadeLocked queues a copy of a block to every tier that lacks it. It is called when
	// a block is committed and no process has it open for writing.
	CascadeLocked(id index.ID, en *index.Entry)
	// DropCopiesLocked takes a block that is gone out of the tiers, and voids its stores.
	DropCopiesLocked(id index.ID, en *index.Entry)
	// OpenDeadline returns how long the open of a hollow block may wait, and whether the block would probably come too
	// late. If the tier is idle, OpenDeadline then starts a load for which no caller waits: otherwise a tier could never
	// show that it has become faster.
	OpenDeadline(id index.ID) (deadline time.Duration, late bool)
	// PromoteLater is promote for a caller that does not wait. It calls then when the block is in memory or cannot be
	// had, from any goroutine, possibly before PromoteLater returns. then must not block. PromoteLater gives up after
	// deadline.
	PromoteLater(id index.ID, deadline time.Duration, then func(file *os.File, err error))
	// PromoteOwn is promote on behalf of another node. It takes the block only from this node's tiers: it must not ask
	// other nodes, because they may be waiting for this one. It fails with ErrNotFound where only other nodes could give
	// the block.
	PromoteOwn(ctx context.Context, id index.ID) error
	// PromoteWithin is promote, but gives up after deadline, too.
	PromoteWithin(ctx context.Context, w state.Waiter, id index.ID, hint bool, deadline time.Duration) error
	// RemoveCopiesLocked tells the tiers that a block is gone for good.
	RemoveCopiesLocked(id index.ID, en *index.Entry)
	// RenumberedLocked follows a change of an entry's version number from was: its bytes are the same. It points the stores
	// and the load that are queued or under way to the new number.
	RenumberedLocked(id index.ID, was uint64)
	// StaleCopiesLocked removes the copies of a block that has a new version under the same name. A copy that fsync
	// promised stays until the copy of the new version takes its place.
	StaleCopiesLocked(id index.ID, en *index.Entry)
	// UpdateCopiesLocked tells the tiers that a block was renamed from from, or has other attributes. A copy that has not
	// begun will have them anyway, and until it begins the tier may hold another block under the name.
	UpdateCopiesLocked(id index.ID, en *index.Entry, from block.Key)
}

// Names is what this room needs of package names.
type Names interface {
	// Attr returns the attributes of an entry that the kernel holds a reference to.
	Attr(id index.ID) state.Attr
	// Forget takes back n references by the kernel.
	Forget(id index.ID, n uint64)
	// AttrLocked returns the attributes of an entry.
	AttrLocked(id index.ID, en *index.Entry) state.Attr
	// CheckNewLocked checks that name may be made in parent.
	CheckNewLocked(parent index.ID, name string) error
	// DropDirLocked removes the name and the record of an empty directory. It does not tell the kernel, because the
	// kernel asked for it.
	DropDirLocked(id index.ID, en *index.Entry, g *state.Gone)
	// DropExpiredLocked removes a file that is past its time to live, so that its name can be made again.
	DropExpiredLocked(parent index.ID, name string, g *state.Gone)
	// DropNameLocked takes the name of a file away. It gives up the bytes as soon as no handle and no kernel uses them.
	DropNameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *state.Gone)
	// ReapLocked frees the memory, the file and the id of an entry without a name, as
	// far as its handles and the kernel's references allow.
	ReapLocked(id index.ID, en *index.Entry, g *state.Gone)
	// ResolveLocked returns the file or directory that a name means to a caller: a version that its own process writes,
	// else the one that all see, 0 if there is neither. stable is false if other callers get another answer, now or soon.
	ResolveLocked(parent index.ID, name string, by state.Caller) (id index.ID, stable bool)
	// UnlinkLocked drops a name because a kernel asked for it, so that only the other kernels are told. by is as in
	// Options.Invalidate.
	UnlinkLocked(id index.ID, why fate.Cause, by state.Process, g *state.Gone)
}

// Space is what this room needs of package space.
type Space interface {
	// AtOnce is WithRoom for a caller that must not wait: it tries twice.
	AtOnce(op func() error) error
	// CreateFile calls Primary.Create with WithRoom.
	CreateFile(ctx context.Context, w state.Waiter) (blob driver.BlobID, file *os.File, err error)
	// Gauge evicts blocks if the file system behind memory has less room than the accounts say and n more bytes need it.
	// force evicts leased blocks, too. If that brings no room, because clients of a killed daemon have the blocks open,
	// no more blocks are evicted for a while. It returns the free bytes before. The caller holds no lock.
	Gauge(n int64, force bool) (free int64, err error)
	// MoveGroupLocked accounts a file to another group, in which it will replace target. It fails with ErrQuota if that
	// group has no room.
	MoveGroupLocked(id index.ID, en *index.Entry, to uint32, target index.ID, g *state.Gone) error
	// QuotaLocked evicts blocks of the group until its quota leaves n bytes, and reports whether it does.
	QuotaLocked(gr *room.Group, n int64, force bool, g *state.Gone) bool
	// Reserve charges n more bytes to an entry, whose write side f is. It evicts if it must, and waits up to WriteTimeout for pins to go.
	// started: the engine has accepted bytes of this file already, so the file may use the headroom rather than fail.
	// It fails with ErrNoSpace, ErrQuota, ErrTooLarge, or ctx's error.
	Reserve(ctx context.Context, id index.ID, f state.WriteSide, n int64, started bool) error
	// RoomLocked evicts until the group may take n bytes more, and reports whether it may. until is the earliest end of a
	// lease that kept a block, 0 if none did. force evicts leased blocks too: for a writer that has waited as long as it
	// may.
	RoomLocked(gr *room.Group, n int64, force bool, g *state.Gone) (ok bool, until int64)
	// TryReserve charges n more bytes to an entry, whose write side f is, if room can be made without waiting.
	TryReserve(id index.ID, f state.WriteSide, n int64) bool
	// WakeEvictor has blocks evicted in the background, down to the low watermark.
	WakeEvictor()
	// WithRoom repeats op while it fails with ErrNoSpace because the file system behind memory has no room. Between tries
	// it evicts and waits, up to WriteTimeout in all. It returns the last error of op, or ctx's error.
	WithRoom(ctx context.Context, w state.Waiter, op func() error) error
}
