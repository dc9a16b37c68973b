package names

import (
	"context"
	"os"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/fate"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/state"
)

// Room is the room of the engine that this package is. All its methods may be called in parallel.
type Room struct {
	*names
	*attrs
	*lookups
}

// core is what the parts of the room share.
type core struct {
	*state.State

	names   *names
	attrs   *attrs
	lookups *lookups

	elsewhere Elsewhere
	lower     Lower
	writing   Writing
}

// New makes the room over s. Connect comes before all other calls.
func New(s *state.State) *Room {
	c := &core{State: s}
	c.names = &names{core: c}
	c.attrs = &attrs{core: c}
	c.lookups = &lookups{core: c}
	return &Room{c.names, c.attrs, c.lookups}
}

// Connect names the other rooms.
func (r *Room) Connect(elsewhere Elsewhere, lower Lower, writing Writing) {
	c := r.names.core
	c.elsewhere, c.lower, c.writing = elsewhere, lower, writing
}

// Elsewhere is what this room needs of package elsewhere.
type Elsewhere interface {
	// AppendUnknownLocked appends to ask those of a path and the directories above it of which this node knows nothing,
	// if other nodes must be asked about them.
	AppendUnknownLocked(ask []string, path string) []string
	// Ask asks other nodes about paths, which may contain duplicates, and puts them in order. It does nothing if there
	// are none; else it blocks for half a second at most, or until ctx ends. The caller holds no lock.
	Ask(ctx context.Context, paths []string)
	// BuryLocked makes the versions of a name on other nodes void, if the name was unlinked or has expired. The caller
	// still holds the lock, so that no look-up finds on other nodes what is gone here.
	BuryLocked(id index.ID, reason fate.Reason)
	// ElsewhereLocked reports whether only other nodes have a file or directory. A directory is this node's own as soon
	// as something below it is committed here.
	ElsewhereLocked(id index.ID, en *index.Entry) bool
	// EmptyElsewhere fails with ErrNotEmpty if other nodes have something in a directory that is to be removed. It asks
	// them, so it blocks, for removeWait at most.
	EmptyElsewhere(ctx context.Context, parent index.ID, name string) error
	// FindLocked returns the child of parent called name, 0 if there is none here, elsewhere or in a Finder.
	FindLocked(parent index.ID, name string) index.ID
	// OwnDirLocked makes a directory of other nodes this node's own. It gets a new version, because the version of the
	// other nodes may have been removed while this one was being filled.
	OwnDirLocked(id index.ID, en *index.Entry)
	// OwnDirsLocked makes the directories above an entry this node's own.
	OwnDirsLocked(id index.ID)
	// SeekLocked returns the latest version that other nodes or Finders have at a path without an entry, and its tier, nil
	// if there is none.
	SeekLocked(path string) (l driver.Located, s *state.Secondary)
	// SettleRemoteLocked forgets an entry that stands only for a file or directory of other nodes when nothing refers to
	// it any more, and then the directories above. A pinned entry stays, because no other node knows of the pin.
	SettleRemoteLocked(id index.ID, en *index.Entry, g *state.Gone)
	// UseDirLocked notes that a process of this node uses an entry, which matters for a directory of other nodes.
	UseDirLocked(en *index.Entry)
	// StrayLocked notes an entry that may stand, from now on, only for a file or directory of other nodes.
	StrayLocked(id index.ID, en *index.Entry)
	// TellOutdatedLocked moves the names that look-ups found to mean other entries to g. Every function that looks up
	// calls it before it releases the lock.
	TellOutdatedLocked(g *state.Gone)
	// UnknownLocked returns the path of a name of which this node knows nothing, if other nodes must be asked about it. It
	// returns "" for all other names.
	UnknownLocked(parent index.ID, name string) (path string)
}

// Lower is what this room needs of package lower.
type Lower interface {
	// DisownLocked removes what Finders have at the path of a name that a process takes away or replaces, and of which the
	// engine did not know: else a look-up would find that again. known are the tiers that are told of the name anyway.
	DisownLocked(path string, known uint16)
	// DropCopiesLocked takes a block that is gone out of the tiers, and voids its stores.
	DropCopiesLocked(id index.ID, en *index.Entry)
	// PartLocked parts the promotion of an entry, if there is one, from the entry.
	PartLocked(id index.ID)
	// Promote has a hollow block brought into memory and waits until it is there, for PromoteTimeout at most. With hint
	// set it does not wait. On success the caller has one of the block's Opens, which keeps the block there and is given
	// back with CloseRead.
	//
	// It fails with ErrPending (hint); ErrNotFound (no tier could give the block, or not in time, or memory is full of
	// blocks that cannot be evicted); ErrStale (the name is gone); or ctx's error.
	Promote(ctx context.Context, w state.Waiter, id index.ID, hint bool) error
	// PromotingLocked returns the name of the tier that is asked for the block of an entry, "" if the block is not on its
	// way into memory.
	PromotingLocked(id index.ID) (tier string)
	// UpdateCopiesLocked tells the tiers that a block was renamed from from, or has other attributes. A copy that has not
	// begun will have them anyway, and until it begins the tier may hold another block under the name. A tier that cannot
	// change a copy is told only if anew, and the block is stored there anew.
	UpdateCopiesLocked(id index.ID, en *index.Entry, from block.Key, anew bool)
}

// Writing is what this room needs of package writing.
type Writing interface {
	// CloseRead gives back the pin of an OpenRead.
	CloseRead(id index.ID)
	// WriteRecord brings the record of a committed entry up to date with its name and
	// attributes. It drops the record of an entry that has become private
	// (File.recorded). file is the primary file if the caller has it open, else nil.
	// Writers of one record take turns. Each writes the attributes of the time of its
	// turn, so the last record is right.
	WriteRecord(id index.ID, file *os.File) error
	// EmptyLocked reports whether a directory is empty to the caller. If it is, the private files of other
	// processes there become unlinked files.
	EmptyLocked(dir index.ID, by state.Caller, g *state.Gone) bool
	// LeaveLimboLocked gives a replaced block up: its bytes go when no process has it open.
	LeaveLimboLocked(id index.ID, g *state.Gone)
	// LeaveLimboNamedLocked gives up the earlier versions of a name that is removed. Their records still exist. Without
	// the later version a crash would bring them back.
	LeaveLimboNamedLocked(k state.NameKey, g *state.Gone)
	// LimboLocked keeps the bytes of a block that was just replaced, if they are few and the kernel may still ask for
	// them. It reports whether it does.
	LimboLocked(id index.ID, en *index.Entry, k state.NameKey, g *state.Gone) bool
	// SetMtime sets the time in the entry and on the primary file, because Adopt compares the two.
	SetMtime(id index.ID, w state.WriteSide, blob driver.BlobID, ns int64) error
}
