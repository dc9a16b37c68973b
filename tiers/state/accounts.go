package state

import (
	"context"
	"math"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
)

// ChargeLocked returns the bytes of memory that an entry costs now.
func (st *State) ChargeLocked(id index.ID, en *index.Entry) int64 {
	if f := st.Mu.Files[id]; f != nil {
		return f.ChargeLocked()
	}
	if !en.InMemory() {
		return 0 // not in memory
	}
	return ChargeOf(en.Size)
}

// What the elements of index.Entry.Accounts are accounts of.
const (
	OfUser   = iota // the owner of the file
	OfCgroup        // the control group of the process that made the version
)

// BillOf returns who pays for an entry.
func BillOf(r *room.Room, en *index.Entry) room.Bill {
	b := r.Bill(en.Group, en.Accounts)
	b.Pinned = en.Pinned()
	return b
}

// PinnedBytes returns what a file counts for quotas of pinned bytes: nothing, unless a user has pinned it. Else it is the
// same in memory and in lower tiers.
func PinnedBytes(e *State, id index.ID, en *index.Entry) int64 {
	if !en.Pinned() {
		return 0
	}
	if f := e.Mu.Files[id]; f != nil {
		return f.ChargeLocked()
	}
	return ChargeOf(en.Size)
}

// Pin notes whether a user has pinned a file. ClassifyLocked follows.
func Pin(e *State, id index.ID, en *index.Entry, pinned bool) {
	if pinned == en.Pinned() {
		return
	}
	was := PinnedBytes(e, id, en)
	en.Flags ^= index.FlagPinned
	BillOf(e.Mu.Room, en).AddPins(PinnedBytes(e, id, en) - was)
}

// Resize changes the bytes charged to a file by delta because it has become larger or smaller.
func Resize(e *State, en *index.Entry, delta int64) {
	e.AddUsedLocked(en, delta)
	if en.Pinned() {
		BillOf(e.Mu.Room, en).AddPins(delta)
	}
}

// LeaveOrders takes an entry out of the orders of eviction, if it is in them.
func LeaveOrders(r *room.Room, id index.ID, en *index.Entry) {
	if en.Ranked() {
		en.Flags &^= index.FlagPolicy
		r.Unrank(BillOf(r, en), uint32(id), nil)
	}
}

// AddUsedLocked changes the bytes charged to an entry by delta because it has come to memory, or has left it. See Resize.
func (st *State) AddUsedLocked(en *index.Entry, delta int64) {
	st.Mu.Room.Charge(BillOf(st.Mu.Room, en), delta, en.Counted())
	if delta < 0 {
		st.Mu.Room.Signal()
	}
}

// ClassifyLocked brings an entry's place in the accounts and in its policy in line with its
// flags. The entry counts as pinned while it is open, being written or pinned. It is in the
// policy while it is a committed block that may be evicted.
func (st *State) ClassifyLocked(id index.ID, en *index.Entry) {
	linked := st.Mu.Ix.Linked(id)
	resident := st.ResidentLocked(id, en)
	hold := en.Flags&(index.FlagUncommitted|index.FlagPinned|index.FlagTemp|index.FlagPlain) != 0 || st.Mu.Room.Group(en.Group).Pinned() || !linked || !resident
	if counted := resident && (hold || en.Opens > 0); counted != en.Counted() {
		if counted {
			en.Flags |= index.FlagCounted
			st.Mu.Room.Pin(st.ChargeLocked(id, en))
		} else {
			en.Flags &^= index.FlagCounted
			st.Mu.Room.Pin(-st.ChargeLocked(id, en))
			st.Mu.Room.Signal()
		}
	}
	if evictable := !hold; evictable != en.Ranked() {
		if evictable {
			en.Flags |= index.FlagPolicy
			st.Mu.Room.Rank(BillOf(st.Mu.Room, en), uint32(id), st.PathHashLocked(id), max(ChargeOf(en.Size), 1))
		} else {
			LeaveOrders(st.Mu.Room, id, en)
		}
	}
}

// GroupOfLocked returns the group that the names in parent belong to.
func (st *State) GroupOfLocked(parent index.ID) uint32 {
	if parent == index.Root {
		return st.Mu.Room.Number("")
	}
	ix := st.Mu.Ix
	top := parent
	for ix.Parent(top) != index.Root {
		top = ix.Parent(top)
	}
	return st.Mu.Room.Number(block.GroupID(ix.Name(top)))
}

// EnterGroupLocked enters a new entry, which has its owner, in group n and in the account of the owner.
func (st *State) EnterGroupLocked(en *index.Entry, n uint32) {
	en.Group, en.Accounts[OfUser] = n, st.Mu.Room.OfUser(en.UID)
	st.Mu.Room.Enter(n)
}

// WaitSpace waits for space, for the time d, or for ctx. Only the end of ctx is an error.
func WaitSpace(ctx context.Context, space <-chan struct{}, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-space:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// NoDeadline is the deadline of an open that has none.
const NoDeadline = time.Duration(math.MaxInt64)

// DeadlineOfLocked returns how long the open of a block of group gr may take. gr is nil if the group has no account;
// want is as in PresenceOptions.
func (st *State) DeadlineOfLocked(gr *room.Group, want time.Duration) time.Duration {
	if want == 0 {
		want = st.Deadlines[gr]
	}
	if want == 0 {
		want = st.Opts.OpenDeadline
	}
	if want <= 0 {
		return NoDeadline
	}
	return want
}

// RecordBatch bounds the blocks for which one hold of the lock asks for updates.
const RecordBatch = 1024

// ChownLocked gives an entry an owner. A file is accounted to the owner's account from then on.
func (st *State) ChownLocked(id index.ID, en *index.Entry, uid, gid uint32) {
	en.UID, en.GID = uid, gid
	if !en.IsDir() {
		to := en.Accounts
		to[OfUser] = st.Mu.Room.OfUser(uid)
		st.RebillLocked(id, en, en.Group, to)
	}
}

// RebillLocked accounts a file to another group, or to other accounts.
func (st *State) RebillLocked(id index.ID, en *index.Entry, group uint32, accounts [2]uint16) {
	if en.Group == group && en.Accounts == accounts {
		return
	}
	LeaveOrders(st.Mu.Room, id, en)
	charge := st.ChargeLocked(id, en)
	if en.Group != group {
		st.Mu.Room.Move(en.Group, group, charge)
	}
	for i, from := range en.Accounts {
		st.Mu.Room.Pass(from, accounts[i], charge)
	}
	pinned := PinnedBytes(st, id, en)
	BillOf(st.Mu.Room, en).AddPins(-pinned)
	en.Group, en.Accounts = group, accounts
	BillOf(st.Mu.Room, en).AddPins(pinned)
	st.ClassifyLocked(id, en)
}
