package slotmap

import (
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/policy"
)

// Map knows which block is in which slot, of all devices of a tier. A slot that is in use has an
// ID. It goes through these states:
//
//	Bind -> Publish            a block is stored, then live: its key leads to it
//	Adopt                      a block that was there at the start is live
//	Bind -> Abandon            a block that was not stored
//	Publish, Adopt -> GiveUp   the key leads to it no longer
//
// A slot that was given up or abandoned is free again when its free header is on the device and no
// pin holds it. The caller serialises all calls, those of spaces and slabs included.
type Map struct {
	table       *slotTable
	slabs       []*Slab // by slotInfo.slab; nil if gone
	pinnedBytes int64   // of blocks that the user has pinned
}

// New returns a slot map without slabs.
func New() *Map { return &Map{table: newSlotTable()} }

// Reset forgets all blocks and slabs.
func (l *Map) Reset() {
	l.table = newSlotTable()
	clear(l.slabs)
}

// Reserve makes room for so many more blocks, so that Adopt is fast.
func (l *Map) Reserve(blocks int) {
	l.table.reserve(2 * (int(l.table.linked) + blocks)) // half full at most: short chains
}

// Pinned returns the bytes of the blocks that the user has pinned.
func (l *Map) Pinned() int64 { return l.pinnedBytes }

// Find returns the slot of the live block with a key, or 0. It does not allocate.
func (l *Map) Find(key block.Key) SlotID {
	var buf [256]byte
	return l.table.find(format.AppendPath(buf[:0], key))
}

// Place is where a slot lies.
type Place struct {
	File    *directio.File
	Slab    *Slab
	Slot    uint32
	Header  int64 // offset
	Data    int64 // offset
	SlotLen int64
}

// Place returns where a slot lies. The place is constant while the slot is in use.
func (l *Map) Place(id SlotID) Place {
	e := l.table.at(id)
	s := l.slabs[e.slab]
	return Place{s.File, s, e.slot, s.Header.HeaderOff(e.slot), s.Header.DataOff(e.slot), s.Header.SlotBytes}
}

// Content returns the size in bytes and the checksum of the block in a slot.
func (l *Map) Content(id SlotID) (size int64, sum block.Checksum) {
	e := l.table.at(id)
	return e.size, block.Checksum{Sum: e.sum, Valid: true}
}

// Holds reports whether a live slot holds the version that tr would store, and is not about to be
// evicted. While the Host is asked about a block, its copy cannot be relied on.
func (l *Map) Holds(id SlotID, tr *driver.Transfer) bool {
	e := l.table.at(id)
	return e.seq == tr.Attrs.Seq && e.size == tr.Size && (!tr.Sum.Valid || tr.Sum.Sum == e.sum) && e.flags&flagEvicting == 0
}

// Record is what the slot map keeps of driver.Attrs. It holds a row of the table of owners, until
// Bind, Rebind or DropRecord takes it.
type Record struct {
	Seq            uint64
	mtime, expires int64
	pinned         bool
	owner          uint32 // in the table of owners; 0: none
}

// Record returns the record of attributes. It leaves out directories that do not fit behind the key
// in a header.
func (l *Map) Record(key block.Key, a *driver.Attrs) Record {
	return Record{a.Seq, a.Mtime, a.Expires, a.Pinned, l.table.owners.put(a, format.KeepDirs(a, len(key.Path())))}
}

// DropRecord gives up a record that no slot has taken. It ignores one that a slot has.
func (l *Map) DropRecord(r *Record) {
	l.table.owners.drop(r.owner)
	r.owner = 0
}

// Bind gives a slot, which TakeRun has taken, to a block that is being stored. Its key does not lead
// to it yet.
func (l *Map) Bind(s *Slab, slot uint32, key block.Key, size int64, r *Record) SlotID {
	id := l.table.alloc(format.AppendPath(nil, key))
	e := l.table.at(id)
	e.state, e.slab, e.slot, e.size = slotStoring, s.ID, slot, size
	l.setRecord(e, r)
	s.slots[slot] = id
	return id
}

// Rebind gives a block that is being stored another key and record.
func (l *Map) Rebind(id SlotID, key block.Key, r *Record) {
	e := l.table.at(id)
	l.setRecord(e, r)
	l.table.setKey(e, format.AppendPath(nil, key))
}

// setRecord moves a record into a slot.
func (l *Map) setRecord(e *slotInfo, r *Record) {
	l.table.owners.drop(e.owner)
	e.owner, r.owner = r.owner, 0
	e.seq, e.mtime, e.expires = r.Seq, r.mtime, r.expires
	e.flags &^= flagPinned
	if r.pinned {
		e.flags |= flagPinned
	}
}

// Encode fills a page with the header of a block that is being stored, and has this checksum.
func (l *Map) Encode(id SlotID, sum uint64, page []byte) error {
	e := l.table.at(id)
	e.sum = sum
	h := l.table.header(e, l.slabs[e.slab].Header.Epoch)
	return h.Encode(page)
}

// Publish makes a block that was stored live, in place of the one that its key leads to.
func (l *Map) Publish(id SlotID, sum uint64) {
	e := l.table.at(id)
	if old := l.table.find(l.table.path(e)); old != 0 {
		l.GiveUp(old)
	}
	e.state, e.sum = slotLive, sum
	l.table.link(id)
	l.enter(id)
	l.order(id)
}

// Abandon gives up the slot of a block that is being stored. dirty says that its header may have
// been written.
func (l *Map) Abandon(id SlotID, dirty bool) {
	e := l.table.at(id)
	e.state = slotGone
	if dirty {
		l.MarkDirty(id)
		return
	}
	e.flags |= flagZeroed
	l.free(id)
}

// Adopt enters a block that was found on disk, but not into the order: see Rank. If there are two
// copies, even on two devices, the one
// with the higher Seq stays.
func (l *Map) Adopt(s *Slab, h *format.SlotHeader) {
	if !s.isFree(h.Slot) {
		return
	}
	s.take(h.Slot)
	id := l.table.alloc(h.Key)
	e := l.table.at(id)
	e.slab, e.slot, e.size, e.sum = s.ID, h.Slot, h.Size, h.Sum
	l.table.setAttrs(e, &h.Attrs)
	s.slots[h.Slot] = id
	if old := l.table.find(h.Key); old != 0 {
		if l.table.at(old).seq >= h.Attrs.Seq {
			e.state = slotGone
			l.MarkDirty(id)
			return
		}
		l.GiveUp(old)
	}
	e.state = slotLive
	l.table.link(id)
	l.enter(id)
}

// Rank enters all live blocks of a space into its order, which they are not in. It is for after Adopt. The
// order of use is not on disk: the order of the commits stands for it, slab by slab.
func (l *Map) Rank(sp *Space) {
	slabs, newest := sp.ByNumber(), make(map[*Slab]uint64)
	for _, s := range slabs {
		for _, id := range s.slots {
			if id != 0 && l.table.at(id).state == slotLive {
				newest[s] = max(newest[s], l.table.at(id).seq)
			}
		}
	}
	slices.SortStableFunc(slabs, func(a, b *Slab) int { return cmp.Compare(newest[a], newest[b]) })
	var blocks []SlotID
	for _, s := range slabs {
		blocks = blocks[:0]
		for _, id := range s.slots {
			if id != 0 && l.table.at(id).state == slotLive {
				blocks = append(blocks, id)
			}
		}
		slices.SortStableFunc(blocks, func(a, b SlotID) int { return cmp.Compare(l.table.at(a).seq, l.table.at(b).seq) })
		for _, id := range blocks {
			l.order(id)
		}
	}
}

// Update gives a live block another key and other attributes.
func (l *Map) Update(id SlotID, key block.Key, a *driver.Attrs) {
	e, path := l.table.at(id), format.AppendPath(nil, key)
	if string(l.table.path(e)) != string(path) {
		l.table.unlink(id)
		l.table.setKey(e, path)
		l.table.link(id)
	}
	l.countPinned(e, -1)
	l.table.setAttrs(e, a)
	l.countPinned(e, +1)
	if e.flags&flagEvicting != 0 {
		e.flags |= flagUpdated
	}
	l.MarkDirty(id)
}

// GiveUp drops a live block. Its key no longer leads to it, and its header will be freed.
func (l *Map) GiveUp(id SlotID) {
	l.leave(id)
	l.MarkDirty(id)
}

// Lose drops a block that cannot be read, and returns its key. With bad the slot is not used again.
// ok is false if the block is not live: then nothing changes.
func (l *Map) Lose(id SlotID, bad bool) (key block.Key, ok bool) {
	e := l.table.at(id)
	if e.state != slotLive {
		return block.Key{}, false
	}
	key = format.ParsePath(l.table.path(e))
	if bad {
		l.Quarantine(id)
	}
	l.GiveUp(id)
	return key, true
}

// Quarantine keeps a slot with a bad medium from being used again.
func (l *Map) Quarantine(id SlotID) {
	e := l.table.at(id)
	e.flags |= flagQuarantine
	l.slabs[e.slab].Space.quarantine()
}

// Touch marks a live block as used now.
func (l *Map) Touch(id SlotID) {
	e := l.table.at(id)
	s := l.slabs[e.slab]
	s.Space.pol.Touch(s.policyID(e.slot), 0)
}

// Follow gives a live block that came in a burst its place there; see policy.Policy.
func (l *Map) Follow(id SlotID, burst policy.Burst) {
	e := l.table.at(id)
	s := l.slabs[e.slab]
	s.Space.pol.Follow(s.policyID(e.slot), burst, true)
}

// Pin keeps a slot from being freed or evicted until Unpin.
func (l *Map) Pin(id SlotID) { l.table.at(id).pins++ }

// Unpin releases one pin of a slot.
func (l *Map) Unpin(id SlotID) {
	l.table.at(id).pins--
	l.free(id)
}

// PinAt pins the block in a slot of a slab. ok is false if there is none, or if the slab no longer
// has that epoch.
func (l *Map) PinAt(s *Slab, epoch uint64, slot uint32) (id SlotID, ok bool) {
	if l.slabs[s.ID] != s || s.Header.Epoch != epoch || int(slot) >= len(s.slots) {
		return 0, false
	}
	id = s.slots[slot]
	if id == 0 || l.table.at(id).state != slotLive {
		return 0, false
	}
	l.Pin(id)
	return id, true
}

// enter counts a live slot.
func (l *Map) enter(id SlotID) {
	e := l.table.at(id)
	s := l.slabs[e.slab]
	s.Space.enter(s)
	l.countPinned(e, +1)
}

// leave is the inverse of enter and order.
func (l *Map) leave(id SlotID) {
	e := l.table.at(id)
	s := l.slabs[e.slab]
	s.Space.pol.Remove(s.policyID(e.slot))
	s.Space.leave(s)
	l.countPinned(e, -1)
	l.table.unlink(id)
	e.state = slotGone
}

// order adds a slot to the order of its space, as just used.
func (l *Map) order(id SlotID) {
	e := l.table.at(id)
	s := l.slabs[e.slab]
	hash := maphash.Bytes(l.table.seed, l.table.path(e))
	s.Space.pol.Add(s.policyID(e.slot), hash, s.Header.SlotBytes)
}

// countPinned counts a block that the user has pinned.
func (l *Map) countPinned(e *slotInfo, sign int64) {
	if e.flags&flagPinned != 0 {
		l.pinnedBytes += sign * e.size
	}
}

// free frees a slot that was given up, if nothing needs it any more.
func (l *Map) free(id SlotID) {
	e := l.table.at(id)
	if e.state != slotGone || e.pins > 0 || e.flags&flagQuarantine != 0 {
		return
	}
	s := l.slabs[e.slab]
	if e.flags&flagZeroed == 0 && !s.Space.down() {
		return
	}
	s.give(e.slot)
	l.table.release(id)
	s.Space.freed++
	if s.retired && s.Empty() {
		s.Space.wake()
	}
}
