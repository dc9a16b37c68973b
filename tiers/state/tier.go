package state

import (
	"math/bits"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/outcome"
)

// Secondary is the engine's side of one secondary tier.
type Secondary struct {
	*lane.Lane                  // guarded by State.Mu
	Opts       SecondaryOptions // constant
	Tier       driver.Tier
	N          int
	Bit        uint16
	Syncer     driver.Syncer // nil if the tier is none
	Finder     driver.Finder // likewise
	KeepsUser  bool          // it is a driver.UserKeeper
	Predict    lane.Predictor
}

// NonresidentLocked reports whether a file is committed and only in secondary tiers.
func (st *State) NonresidentLocked(id index.ID, en *index.Entry) bool {
	return !en.InMemory() && en.Tiers() != 0 && !en.IsDir() && en.Committed() &&
		en.Linked() && st.Mu.Files[id] == nil
}

// RemoteBit is the bit of the Remote tier in Entry.Tiers, 0 without one.
func (st *State) RemoteBit() uint16 {
	if st.Remote == nil {
		return 0
	}
	return st.Remote.Bit
}

// OwnTiers are the tiers of this node that have a block. Other nodes may give up their copies at any time.
func (st *State) OwnTiers(en *index.Entry) uint16 { return en.Tiers() &^ st.RemoteBit() }

// FarLocked reports whether only other nodes have the bytes of a file.
func (st *State) FarLocked(id index.ID, en *index.Entry) bool {
	return st.NonresidentLocked(id, en) && st.OwnTiers(en) == 0
}

// FileAttrs returns the attributes that a tier keeps with a file, without those of the directories above.
func (st *State) FileAttrs(id index.ID, en *index.Entry) driver.Attrs {
	return driver.Attrs{
		Seq: en.Seq(), Mode: uint32(en.Mode() & 0o7777), UID: en.UID(), GID: en.GID(),
		Mtime: en.Mtime(), Expires: st.Mu.Ix.Expires(id), Pinned: en.Pinned(), User: st.Mu.UserAttrs(id, en),
	}
}

// AttrsLocked is what a tier is to keep with a block.
func (st *State) AttrsLocked(id index.ID, en *index.Entry) driver.Attrs {
	a := st.FileAttrs(id, en)
	depth := 0
	for p := st.Mu.Ix.Parent(id); p != index.Root && p != 0; p = st.Mu.Ix.Parent(p) {
		depth++
	}
	a.Dirs = make([]driver.DirAttrs, depth)
	for p := st.Mu.Ix.Parent(id); p != index.Root && p != 0; p = st.Mu.Ix.Parent(p) {
		depth--
		de := st.Mu.Ix.At(p)
		a.Dirs[depth] = driver.DirAttrs{Mode: uint32(de.Mode() & 0o7777), UID: de.UID(), GID: de.GID()}
	}
	return a
}

// KeyLocked is the key of a file that has a name.
func (st *State) KeyLocked(id index.ID) block.Key {
	key, _ := block.ParseKey(st.Mu.Ix.Path(id))
	return key
}

// LateLocked reports whether a load of size bytes, asked of a tier now, would probably take longer than deadline.
func LateLocked(s *Secondary, size int64, deadline time.Duration) bool {
	return deadline != NoDeadline && s.LateLocked(size, deadline)
}

// FirstTier returns the tier that is asked first for a nonresident block.
func (st *State) FirstTier(en *index.Entry) *Secondary {
	if own := st.OwnTiers(en); own != 0 {
		return st.Tiers[bits.TrailingZeros16(own)]
	}
	return st.Tiers[bits.TrailingZeros16(en.Tiers())]
}

// Keeper returns the first tier that can make blocks durable, nil if there is none.
func (st *State) Keeper() *Secondary {
	for _, s := range st.Tiers {
		if s.Syncer != nil {
			return s
		}
	}
	return nil
}

// BegunLocked returns the tiers to which a copy of a block is under way.
func (st *State) BegunLocked(id index.ID, en *index.Entry) (bits uint16) {
	for _, s := range st.Tiers {
		for op := range s.BegunLocked() {
			if op.ID == id && op.Seq == en.Seq() {
				bits |= s.Bit & en.Storing()
			}
		}
	}
	return bits
}

// ClearTiersLocked notes that some tiers do not have a block any more. why is as in catalog.Lost.
func (st *State) ClearTiersLocked(id index.ID, en *index.Entry, bits uint16, why outcome.Reason) {
	if st.Remote != nil && en.Tiers()&bits&st.Remote.Bit != 0 {
		st.Far.Unwatch(st.KeyLocked(id))
	}
	st.ApplyLocked(catalog.Lost{ID: id, Tiers: bits, Why: why})
}

// LeaveRemoteLocked follows the rename of a block: its copy on other nodes keeps the path from.
func (st *State) LeaveRemoteLocked(id index.ID, en *index.Entry, from string) {
	if en.Tiers()&st.Remote.Bit != 0 {
		key, _ := block.ParseKey(from)
		st.Far.Unwatch(key)
		st.ApplyLocked(catalog.Lost{ID: id, Tiers: st.Remote.Bit})
	}
}

// TierNamesLocked returns the tiers that hold a file, fastest first, without those that have yet to store it anew.
func (st *State) TierNamesLocked(id index.ID) []string {
	en := st.Mu.Ix.At(id)
	var names []string
	if st.Mu.Resident(id, en) {
		names = append(names, "memory")
	}
	for _, s := range st.Tiers {
		if en.Tiers()&s.Bit != 0 && (st.Anew&s.Bit == 0 || !s.NamingLocked(st.KeyLocked(id))) {
			names = append(names, s.Opts.Name)
		}
	}
	return names
}
