package lower

import (
	"context"
	"os"

	"github.com/kvfs/kvfs/tiers/draft"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// Room is the room of the engine that this package is. All its methods may be called in parallel.
type Room struct {
	*copies
	*loads
}

// core is what the parts of the room share.
type core struct {
	*state.State

	copies *copies
	loads  *loads

	elsewhere Elsewhere
	names     Names
	space     Space
	verdicts  Verdicts
	writing   Writing
}

// New makes the room over s. Connect comes before all other calls.
func New(s *state.State) *Room {
	c := &core{State: s}
	c.copies = &copies{core: c}
	c.loads = &loads{core: c, promotions: map[index.ID]*promotion{}, orphans: map[*promotion]struct{}{}}
	return &Room{c.copies, c.loads}
}

// Connect names the other rooms.
func (r *Room) Connect(elsewhere Elsewhere, names Names, space Space, verdicts Verdicts, writing Writing) {
	c := r.copies.core
	c.elsewhere, c.names, c.space, c.verdicts, c.writing = elsewhere, names, space, verdicts, writing
}

// Elsewhere is what this room needs of package elsewhere.
type Elsewhere interface {
	// AppendUnknownLocked appends to ask those of a path and the directories above it of which this node knows nothing,
	// if other nodes must be asked about them.
	AppendUnknownLocked(ask []string, path string) []string
	// Ask asks other nodes about paths, which may contain duplicates, and puts them in order. It does nothing if there
	// are none; else it blocks for half a second at most, or until ctx ends. The caller holds no lock.
	Ask(ctx context.Context, paths []string)
	// ForgetOnlyLocked forgets an entry that stands only for a file or directory of other nodes, and does nothing with
	// another entry.
	ForgetOnlyLocked(id index.ID, en *index.Entry, g *state.Gone)
	// LostDirLocked follows the loss of a directory by all other nodes. The entry stays for as long as something is in
	// the directory.
	LostDirLocked(id index.ID, en *index.Entry, g *state.Gone)
	// OtherElsewhereLocked reports whether other nodes or Finders have another version than the entry en, or a copy that
	// it does not have.
	OtherElsewhereLocked(id index.ID, en *index.Entry) bool
	// OwnDirsLocked makes the directories above an entry this node's own.
	OwnDirsLocked(id index.ID)
	// SettleParentLocked takes away directories that no node has, from dir upwards. dir may have gone meanwhile.
	SettleParentLocked(dir index.ID, g *state.Gone)
	// SettleRemoteLocked forgets an entry that stands only for a file or directory of other nodes when nothing refers to
	// it any more, and then the directories above. A pinned entry stays, because no other node knows of the pin.
	SettleRemoteLocked(id index.ID, en *index.Entry, g *state.Gone)
	// StrayLocked notes an entry that may stand, from now on, only for a file or directory of other nodes.
	StrayLocked(id index.ID, en *index.Entry)
	// TellOutdatedLocked moves the names that look-ups found to mean other entries to g. Every function that looks up
	// calls it before it releases the lock.
	TellOutdatedLocked(g *state.Gone)
	// WalkLocked returns the entry of a path, 0 if there is none here, elsewhere or in a Finder.
	WalkLocked(path string) index.ID
}

// Names is what this room needs of package names.
type Names interface {
	// Forget takes back n references by the kernel.
	Forget(id index.ID, n uint64)
	// DropNameLocked takes the name of a file away. It gives up the bytes as soon as no handle and no kernel uses them.
	DropNameLocked(id index.ID, en *index.Entry, kind event.Kind, why fate.Cause, g *state.Gone)
	// LeaseLocked grants the lease of a look-up to a block. A request that is not empty can end the lease early.
	LeaseLocked(id index.ID, en *index.Entry, now int64, as *event.Viewer, request string)
}

// Space is what this room needs of package space.
type Space interface {
	// AtOnce runs op for a caller that must not wait. If there is no room it evicts, and tries op once more.
	AtOnce(op func() error) error
	// CreateFile calls Primary.Create with WithRoom.
	CreateFile(ctx context.Context, w state.Waiter) (blob driver.BlobID, file *os.File, err error)
	// EvictOneLocked takes a block out of memory. If no other tier has it, the block is lost, and its name is removed.
	EvictOneLocked(id index.ID, en *index.Entry, reason fate.Reason, g *state.Gone)
	// Full counts that an open or a write waits for n bytes of memory, and logs it at intervals. until is when the first
	// lease in the way ends, 0 if no lease is in the way.
	Full(n, until int64)
	// Gauge evicts blocks if the file system behind memory has less room than the accounts say and n more bytes need it.
	// force evicts leased blocks, too. If that brings no room, because clients of a killed daemon have the blocks open,
	// no more blocks are evicted for a while. It returns the free bytes before. The caller holds no lock.
	Gauge(n int64, force bool) (free int64, err error)
	// Relieve evicts something after the file system behind memory had no room, of bytes or of files, though the accounts
	// had. force evicts leased blocks, too.
	Relieve(force bool)
	// RoomLocked evicts until the group may take n bytes more, and reports whether it may. until is the earliest end of a
	// lease that kept a block, 0 if none did. force evicts leased blocks too: for a writer that has waited as long as it
	// may.
	RoomLocked(b room.Bill, n int64, force bool, g *state.Gone) (ok bool, until int64)
	// WakeEvictor has blocks evicted in the background, down to the low watermark.
	WakeEvictor()
}

// Verdicts is what this room needs of package tiers: why a block is not there.
type Verdicts interface {
	// Why returns why the block at a path below the mount is not there, or that it is. It takes the lock for a moment and
	// does not wait. The engine remembers the last fate.MaxNames names to which something happened.
	Why(path string) fate.Verdict
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
	// Sync commits w, if it is open, with its present bytes. Of a temporary file it only notes how many there are. It
	// returns the kind of w, which another process may rename meanwhile.
	Sync(w state.WriteSide) (draft.Kind, error)
}
