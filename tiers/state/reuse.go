package state

import (
	"hash/maphash"
	"time"

	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/event"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/outcome"
	"github.com/kvfs/kvfs/tiers/reuse"
)

// usage tells a Meter what happens to blocks. State.Mu guards it.
type usage struct {
	*reuse.Meter
	e *State
}

// MeterReuse begins to measure how blocks are used again. The tiers are there, and no block is used yet.
func (st *State) MeterReuse() {
	ssd := int64(0)
	for _, s := range st.Tiers {
		if r, ok := s.Tier.(driver.Statser); ok && s != st.Remote {
			ssd += r.Stats().CapacityBytes
		}
	}
	st.Mu.Reuse = &usage{reuse.New(st.Opts.CapacityBytes, ssd, st.Now()), st}
}

// ReadLocked notes the read of a block that may be evicted.
func (u *usage) ReadLocked(id index.ID, en *index.Entry) {
	if u.Asked(u.e.Mu.Ix.Hash(id)) {
		u.Read(u.nameLocked(id), en.Size(), int64(en.Seq()))
	}
}

// MissedLocked notes the look-up of a name that is not there, with the hash that the index gives it.
func (u *usage) MissedLocked(parent index.ID, name string, hash uint32, now int64) {
	e := u.e
	if !u.Sampled(hash) || parent != index.Root && !e.Mu.Ix.Linked(parent) {
		return
	}
	path := e.Mu.Scratch[:0]
	if parent != index.Root {
		path = append(e.Mu.Ix.AppendPath(path, parent), '/')
	}
	e.Mu.Scratch = append(path, name...)
	key := maphash.Bytes(e.Mu.Seed, e.Mu.Scratch)
	if u.Awaited(key) || e.Mu.NameFlags(parent, name) != 0 {
		return
	}
	u.Missed(reuse.Name{Hash: hash, Key: key}, e.Mu.Ix.Len(), now)
}

// nameLocked returns the name of an entry for the samples.
func (u *usage) nameLocked(id index.ID) reuse.Name {
	return reuse.Name{Hash: u.e.Mu.Ix.Hash(id), Key: u.e.Mu.PathHash(id)}
}

// eventLocked notes what an event says of the use of a block.
func (u *usage) eventLocked(kind event.Kind, tier string, id index.ID, why outcome.Cause) {
	switch {
	case kind == event.Stored && tier == "memory" && why.Reason != outcome.ReasonPromoted:
		if u.Sampled(u.e.Mu.Ix.Hash(id)) {
			u.Stored(u.nameLocked(id), u.e.Mu.Ix.At(id).Size())
		}
	case kind == event.Evicted && (u.e.Remote == nil || tier != u.e.Remote.Opts.Name):
		u.evictedLocked(tier, id)
	case kind == event.Removed && why.Reason.Kind() != outcome.Evicted: // else a tier has told it before
		u.removedLocked(id)
	}
}

// evictedLocked notes that a tier of this node has evicted a block.
func (u *usage) evictedLocked(tier string, id index.ID) {
	e, en, memory := u.e, u.e.Mu.Ix.At(id), tier == "memory"
	now := e.Now()
	if memory {
		u.Evicted(age(en, now), time.Duration(now-max(en.Atime(), en.Ctime())))
	}
	last := e.OwnTiers(en) == 0 && (memory || !e.Mu.Resident(id, en))
	if last && u.Sampled(e.Mu.Ix.Hash(id)) {
		u.Left(u.nameLocked(id), now)
	}
}

// removedLocked notes that a block was removed.
func (u *usage) removedLocked(id index.ID) {
	en := u.e.Mu.Ix.At(id)
	if u.e.Mu.Resident(id, en) {
		u.Removed(age(en, u.e.Now()))
	}
	if u.Sampled(u.e.Mu.Ix.Hash(id)) {
		u.Dropped(u.nameLocked(id))
	}
}

// age returns the time since the commit of a block. Commit numbers follow the clock.
func age(en *index.Entry, now int64) time.Duration { return time.Duration(now - int64(en.Seq())) }
