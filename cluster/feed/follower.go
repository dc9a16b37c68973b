package feed

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kvfs/kvfs/cluster/location"
	"github.com/kvfs/kvfs/tiers/block"
)

// maxEntries bounds what a Follower believes.
const maxEntries = 1 << 24 // of one node: 0.5 to 0.9 GB of index, 16 TiB in blocks of 1 MiB

// Graveyard receives graves, besides the index. r is valid until it returns.
type Graveyard func(r *Record)

// Slots gives numbers to holders.
type Slots interface {
	// TakeSlot returns a free slot, or false if none is free.
	TakeSlot() (location.Slot, bool)
	GiveSlot(location.Slot) // after Index.Drop
}

// Follower keeps the index up to date with one node's feed, over any number of connections and
// incarnations. Its methods must not be called in parallel, except Stats.
//
// Its state is one of four:
//
//	position  shown  hidden   what comes next
//	0         -      -        Begin
//	0         -      a slot   the rest of the first snapshot, or Begin
//	P         a slot -        deltas from P on, or Begin
//	P         a slot a slot   the rest of a later snapshot, or Begin, or deltas from P on
//
// If a stream breaks during a snapshot, the half that came stays hidden until a Begin or deltas
// show how the stream goes on. Any error of Apply forgets it at once.
//
// A snapshot of parts needs no second slot: see asked.
type Follower struct {
	index   *location.Index
	slots   Slots
	buried  Graveyard
	observe func(seq uint64)
	wants   func(hash uint64) bool
	far     func()                 // called for each version above block.MaxSeq
	ours    func(told int64) int64 // a time of the node's clock by this node's

	most     int64 // entries of the node
	live     bool
	position Position
	shown    slot
	hidden   slot   // of the snapshot under way
	epoch    uint64 // of the snapshot under way
	asked    *asked // nil: no parts are asked for

	counters followerCounters
}

// slot is a taken slot, or none.
type slot struct {
	number location.Slot
	taken  bool
}

// followerCounters is the atomic form of FollowerStats.
type followerCounters struct {
	records, bytes, batches, begun, ended, resumed, refused, skipped, news atomic.Uint64
	compared, partial, snapshotBytes, digestBytes                          atomic.Uint64
}

// FollowerStats describes a Follower.
type FollowerStats struct {
	Records   uint64 `json:"records"`   // received, with those of snapshots
	Bytes     uint64 `json:"bytes"`     // of them, as encoded
	Batches   uint64 `json:"batches"`   // received
	Begun     uint64 `json:"begun"`     // snapshots
	Snapshots uint64 `json:"snapshots"` // snapshots that were completed
	Resumes   uint64 `json:"resumes"`   // deltas that came after a broken snapshot
	Refused   uint64 `json:"refused"`   // malformed batches
	Skipped   uint64 `json:"skipped"`   // malformed records
	Buried    uint64 `json:"buried"`    // graves that were new

	Compared      uint64 `json:"compared"`       // answers to digests
	Partial       uint64 `json:"partial"`        // snapshots of parts that were completed; Snapshots are of all
	SnapshotBytes uint64 `json:"snapshot_bytes"` // of Bytes, those of snapshots of all and of parts
	DigestBytes   uint64 `json:"digest_bytes"`   // of digests, sent and received
}

// NewFollower returns a Follower that knows nothing and will show its entries. It calls buried for
// each grave that was new to the index, and observe for the highest Seq of each batch, both in
// Apply's goroutine. Either may be nil.
func NewFollower(index *location.Index, slots Slots, buried Graveyard, observe func(seq uint64)) *Follower {
	if buried == nil {
		buried = func(*Record) {}
	}
	if observe == nil {
		observe = func(uint64) {}
	}
	return &Follower{
		index: index, slots: slots, buried: buried, observe: observe, live: true, most: maxEntries,
		wants: func(uint64) bool { return true }, far: func() {},
		ours: func(told int64) int64 { return told },
	}
}

// OnFar makes far be called for each record that is skipped because its version is above block.MaxSeq. It must
// be called before the first Apply.
func (f *Follower) OnFar(far func()) { f.far = far }

// Clock makes the Follower pass the times of graves, which are by the node's clock, through ours. It must be called before
// the first Apply.
func (f *Follower) Clock(ours func(told int64) int64) { f.ours = ours }

// Scope makes the Follower enter only keys for which wants is true. What it has of others goes with Index.Keep. Scope must be
// called before the first Apply. The answers of wants may change: see Digests.
func (f *Follower) Scope(wants func(hash uint64) bool) { f.wants = wants }

// Position is where Serve resumes; zero means with a snapshot. During a snapshot it is the position
// from before.
func (f *Follower) Position() Position { return f.position }

// Apply takes a batch. An error means that the stream is invalid and must begin again from
// Position: ErrMalformed, ErrOutOfStep, or ErrNoSlot. During a snapshot the earlier entries stay
// visible. Apply does not keep the batch.
func (f *Follower) Apply(b *Batch) error {
	f.counters.batches.Add(1)
	f.counters.bytes.Add(uint64(len(b.Records)))
	err := f.apply(b)
	if err != nil {
		f.counters.refused.Add(1)
		f.release(&f.hidden)
		f.asked = nil
	}
	return err
}

func (f *Follower) apply(b *Batch) error {
	if !b.Begin && !b.End && !b.Partial && b.Position.Next != 0 {
		return f.applyDeltas(b)
	}
	f.counters.snapshotBytes.Add(uint64(len(b.Records)))
	if (b.Position.Next != 0) != b.End || b.Position.Epoch == 0 {
		return fmt.Errorf("%w: position %+v in a snapshot", ErrOutOfStep, b.Position)
	}
	if b.Partial {
		return f.applyParts(b)
	}
	if err := f.enterSnapshot(b); err != nil {
		return err
	}
	if err := f.enter(b, f.hidden.number, nil); err != nil {
		return err
	}
	if b.End {
		f.endSnapshot(b)
	}
	return nil
}

// applyParts takes a batch of the parts that were asked for. Its records replace those of the slot
// at once: they are later. What did not come is deleted at the end. So a key that was and is held
// is never missing. If the stream breaks before the end, the next comparison finds fewer parts.
func (f *Follower) applyParts(b *Batch) error {
	a := f.asked
	if a == nil || a.begun == b.Begin || b.Position.Epoch != a.after.Epoch || b.End && b.Position != a.after {
		return fmt.Errorf("%w: position %+v in a snapshot of parts", ErrOutOfStep, b.Position)
	}
	if b.Begin {
		f.release(&f.hidden)
		f.counters.begun.Add(1)
		a.begun = true
	}
	if err := f.enter(b, f.shown.number, a); err != nil {
		return err
	}
	if !b.End {
		return nil
	}
	slices.Sort(a.seen)
	f.index.Retain(f.shown.number, func(hash uint64) bool {
		if !a.parts.Holds(hash) {
			return true
		}
		_, came := slices.BinarySearch(a.seen, hash)
		return came
	})
	f.position, f.asked = a.after, nil
	f.counters.partial.Add(1)
	return nil
}

// applyDeltas takes a batch of deltas. If it fails after some records were entered, they come
// again: the position stays.
func (f *Follower) applyDeltas(b *Batch) error {
	p := f.position
	if p.Next == 0 {
		return fmt.Errorf("%w: deltas before any snapshot", ErrOutOfStep)
	}
	if b.Position.Epoch != p.Epoch {
		return fmt.Errorf("%w: deltas of another incarnation", ErrOutOfStep)
	}
	if b.Count < 0 || b.Skipped > 1<<62 || b.Position.Next != p.Next+uint64(b.Count)+b.Skipped || b.Position.Next < p.Next {
		return fmt.Errorf("%w: %d and %d records from %d to %d", ErrOutOfStep, b.Count, b.Skipped, p.Next, b.Position.Next)
	}
	if f.hidden.taken || f.asked != nil && f.asked.begun {
		f.release(&f.hidden)
		f.asked = nil
		f.counters.resumed.Add(1)
	}
	if err := f.enter(b, f.shown.number, nil); err != nil {
		return err
	}
	f.position = b.Position
	return nil
}

// enterSnapshot prepares for a batch of a snapshot.
func (f *Follower) enterSnapshot(b *Batch) error {
	if !b.Begin {
		if !f.hidden.taken || b.Position.Epoch != f.epoch {
			return fmt.Errorf("%w: snapshot without a beginning", ErrOutOfStep)
		}
		return nil
	}
	f.release(&f.hidden) // of a broken snapshot
	f.asked = nil
	number, ok := f.slots.TakeSlot()
	if !ok {
		return ErrNoSlot
	}
	f.index.SetLive(number, false)
	f.hidden = slot{number, true}
	f.epoch = b.Position.Epoch
	f.counters.begun.Add(1)
	return nil
}

// endSnapshot shows the new entries before it hides the old ones, so that no entry in both is ever
// missing.
func (f *Follower) endSnapshot(b *Batch) {
	f.index.SetLive(f.hidden.number, f.live)
	f.release(&f.shown)
	f.shown, f.hidden = f.hidden, slot{}
	f.position = b.Position
	f.counters.ended.Add(1)
}

// release forgets the entries of a slot and gives it back.
func (f *Follower) release(s *slot) {
	if s.taken {
		f.index.Drop(s.number)
		f.slots.GiveSlot(s.number)
		*s = slot{}
	}
}

// enter puts the records of a batch into the index. It fails if the batch is of parts that were not
// asked for; a is nil for other batches.
func (f *Follower) enter(b *Batch, into location.Slot, a *asked) error {
	count, highest := 0, uint64(0)
	err := Decode(b.Records, func(r *Record) error {
		count++
		if a != nil {
			if r.Op != Hold || !a.parts.Holds(r.Hash) || int64(len(a.seen)) >= f.most {
				return fmt.Errorf("%w: a record that was not asked for", ErrMalformed)
			}
			a.seen = append(a.seen, r.Hash)
		}
		if !f.enterRecord(r, into) {
			f.counters.skipped.Add(1)
		} else if r.Op != Release {
			highest = max(highest, r.Seq)
		}
		return nil
	})
	f.counters.records.Add(uint64(count))
	if highest > 0 {
		f.observe(highest)
	}
	if err == nil && count != b.Count {
		err = fmt.Errorf("%w: %d records in a batch of %d", ErrMalformed, count, b.Count)
	}
	return err
}

// enterRecord puts one record into the index, and reports whether it was valid.
func (f *Follower) enterRecord(r *Record, into location.Slot) bool {
	tooFar := r.Op != Release && r.Seq > block.MaxSeq
	if tooFar {
		f.far()
	}
	switch r.Op {
	case Hold:
		if !f.wants(r.Hash) {
			return true
		}
		if tooFar || !sound(r) || f.index.Count(into) >= f.most {
			// What was known of the key certainly no longer holds.
			f.index.Delete(into, r.Hash)
			return false
		}
		f.index.Put(into, r.entry())
	case Release:
		f.index.Delete(into, r.Hash)
	case Bury:
		if tooFar || r.Path == "" || len(r.Path) > location.MaxPath {
			return false
		}
		if f.index.Bury(r.Hash, r.Seq, r.Mode&typeBits == typeDir, r.Path, f.ours(r.Time)) {
			f.counters.news.Add(1)
			f.buried(r)
		}
	}
	return true
}

// sound reports whether a Hold is possible. The size of a directory has no meaning.
func sound(r *Record) bool {
	switch r.Mode &^ 0o7777 {
	case typeDir:
		r.Size = 0
		return true
	case typeFile:
		return r.Size >= 0 && r.Size <= location.MaxSize
	}
	return false
}

// SetLive shows or hides what the node holds. The Follower keeps following it.
func (f *Follower) SetLive(live bool) {
	f.live = live
	if f.shown.taken {
		f.index.SetLive(f.shown.number, live)
	}
}

// Drop forgets all that the node holds and gives the slots back. The Follower can then begin with a
// snapshot.
func (f *Follower) Drop() {
	f.release(&f.hidden)
	f.release(&f.shown)
	f.position, f.asked = Position{}, nil
}

// Stats returns the counts. It may be called in parallel with the other methods.
func (f *Follower) Stats() FollowerStats {
	c := &f.counters
	return FollowerStats{
		Records: c.records.Load(), Bytes: c.bytes.Load(), Batches: c.batches.Load(),
		Begun: c.begun.Load(), Snapshots: c.ended.Load(), Resumes: c.resumed.Load(),
		Refused: c.refused.Load(), Skipped: c.skipped.Load(), Buried: c.news.Load(),
		Compared: c.compared.Load(), Partial: c.partial.Load(), SnapshotBytes: c.snapshotBytes.Load(), DigestBytes: c.digestBytes.Load(),
	}
}
