package slotmap

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// SlotID names a used slot in memory. The ids are dense and below 2^32; 0 is none.
type SlotID uint32

// slotState says what a used slot is for.
type slotState uint8

const (
	slotUnused  slotState = iota
	slotStoring           // being written: no key leads to it
	slotLive              // holds a block: its key leads to it
	slotGone              // given up: freed after its header is freed and its last reader is done
)

// Flags of a slot.
const (
	flagPinned     = 1 << iota // by the user: never evicted
	flagDirty                  // in the list of headers to write
	flagZeroed                 // its header on disk is free
	flagQuarantine             // the medium is bad: this process does not use the slot again
	flagEvicting               // out of the policy while the Host is asked
	flagUpdated                // changed while the Host is asked
	flagRefused                // the device did not write its header the last time
)

// slotInfo is a used slot: 72 bytes without pointers. So ten million slots cost neither gigabytes
// nor time of the garbage collector.
type slotInfo struct {
	sum     uint64
	size    int64
	seq     uint64
	mtime   int64
	expires int64
	key     uint32 // in the arena
	hash    uint32 // of the key
	next    SlotID // of the same bucket
	slab    uint32 // index in Map.slabs
	slot    uint32 // in the slab
	owner   uint32 // in the table of owners
	pins    uint32 // readers, and jobs that have not told their result yet
	keyLen  uint16
	state   slotState
	flags   uint8
}

const (
	slotChunkBits = 12
	bucketChunk   = 1 << 12
)

// slotTable finds used slots by key and by ID. The zero value is not usable; see
// newSlotTable. The caller serialises calls.
//
// Buckets grow by linear hashing, one bucket for each block added. So no single insert moves them
// all.
type slotTable struct {
	seed    maphash.Seed
	slots   []*[1 << slotChunkBits]slotInfo
	made    uint32 // IDs handed out at least once, 0 included
	free    SlotID
	keys    keyArena
	buckets []*[bucketChunk]SlotID
	linked  uint32
	mask    uint32 // buckets of the last complete round, less one
	split   uint32 // buckets of that round that are already split
	owners  ownerTable
}

func newSlotTable() *slotTable {
	t := &slotTable{seed: maphash.MakeSeed(), made: 1}
	t.buckets = []*[bucketChunk]SlotID{new([bucketChunk]SlotID)}
	t.mask = bucketChunk - 1
	t.owners.init()
	return t
}

// at returns the slot of id, which must be in use. The pointer stays valid.
func (t *slotTable) at(id SlotID) *slotInfo {
	return &t.slots[id>>slotChunkBits][id%(1<<slotChunkBits)]
}

// alloc returns a slot. All its fields but the key are zero.
func (t *slotTable) alloc(path []byte) SlotID {
	id := t.free
	if id != 0 {
		t.free = t.at(id).next
	} else {
		id = SlotID(t.made)
		t.made++
		if int(id>>slotChunkBits) == len(t.slots) {
			t.slots = append(t.slots, new([1 << slotChunkBits]slotInfo))
		}
	}
	e := t.at(id)
	*e = slotInfo{}
	t.setKey(e, path)
	return id
}

// release gives a slot back. No key may lead to it.
func (t *slotTable) release(id SlotID) {
	e := t.at(id)
	t.keys.drop(e.key, int(e.keyLen))
	t.owners.drop(e.owner)
	*e = slotInfo{next: t.free}
	t.free = id
}

func (t *slotTable) setKey(e *slotInfo, path []byte) {
	if e.key != 0 {
		t.keys.drop(e.key, int(e.keyLen))
	}
	e.key, e.keyLen = t.keys.put(path), uint16(len(path))
	e.hash = t.hash(path)
}

func (t *slotTable) hash(path []byte) uint32 { return uint32(maphash.Bytes(t.seed, path)) }

// path returns the path of a slot's key, valid until the key changes.
func (t *slotTable) path(e *slotInfo) []byte { return t.keys.at(e.key, int(e.keyLen)) }

// bucket returns the head of the chain for hash h.
func (t *slotTable) bucket(h uint32) *SlotID {
	b := h & t.mask
	if b < t.split {
		b = h & (t.mask<<1 | 1)
	}
	return &t.buckets[b/bucketChunk][b%bucketChunk]
}

// find returns the slot that a path leads to, or 0. It does not allocate.
func (t *slotTable) find(path []byte) SlotID {
	h := t.hash(path)
	for id := *t.bucket(h); id != 0; {
		e := t.at(id)
		if e.hash == h && bytes.Equal(t.path(e), path) {
			return id
		}
		id = e.next
	}
	return 0
}

// link makes the slot's key lead to it. No other slot may have the key.
func (t *slotTable) link(id SlotID) {
	t.linked++
	if t.linked > t.mask {
		t.splitBucket()
	}
	e := t.at(id)
	b := t.bucket(e.hash)
	e.next, *b = *b, id
}

// reserve makes the table large enough for n keys. Splitting empty buckets costs almost nothing.
func (t *slotTable) reserve(n int) {
	for int64(t.mask)+int64(t.split) < int64(n) {
		t.splitBucket()
	}
}

// splitBucket divides the next bucket of the round between itself and a new one.
func (t *slotTable) splitBucket() {
	high := t.split + t.mask + 1
	if int(high/bucketChunk) == len(t.buckets) {
		t.buckets = append(t.buckets, new([bucketChunk]SlotID))
	}
	chain := &t.buckets[t.split/bucketChunk][t.split%bucketChunk]
	id := *chain
	*chain = 0
	if t.split++; t.split > t.mask {
		t.mask, t.split = t.mask<<1|1, 0
	}
	for id != 0 {
		e := t.at(id)
		next := e.next
		b := t.bucket(e.hash)
		e.next, *b = *b, id
		id = next
	}
}

// unlink is the inverse of link.
func (t *slotTable) unlink(id SlotID) {
	e := t.at(id)
	p := t.bucket(e.hash)
	for *p != id {
		p = &t.at(*p).next
	}
	*p, e.next = e.next, 0
	t.linked--
}

// setAttrs stores what a slot keeps of a. keyBytes are taken from the slot.
func (t *slotTable) setAttrs(e *slotInfo, a *driver.Attrs) {
	e.seq, e.mtime, e.expires = a.Seq, a.Mtime, a.Expires
	e.flags &^= flagPinned
	if a.Pinned {
		e.flags |= flagPinned
	}
	old := e.owner
	e.owner = t.owners.put(a, format.KeepDirs(a, int(e.keyLen)))
	t.owners.drop(old)
}

// attrs is the inverse of setAttrs. Dirs must not be changed.
func (t *slotTable) attrs(e *slotInfo) driver.Attrs {
	a := driver.Attrs{Seq: e.seq, Mtime: e.mtime, Expires: e.expires, Pinned: e.flags&flagPinned != 0}
	t.owners.get(e.owner, &a)
	return a
}

// header returns the header that the slot should have on disk. Its key is valid until the slot's
// key changes.
func (t *slotTable) header(e *slotInfo, epoch uint64) format.SlotHeader {
	return format.SlotHeader{Slot: e.slot, Epoch: epoch, Size: e.size, Sum: e.sum, Attrs: t.attrs(e), Key: t.path(e)}
}

// ownerTable holds each combination of mode, owner, directories and attributes of processes once. Most of millions of blocks
// share a few. Number 0 is none.
type ownerTable struct {
	byText map[ownerKey]uint32
	rows   []ownerRow
	free   []uint32
	buf    []byte
}

// ownerKey finds a combination: the numbers are text.
type ownerKey struct {
	text string
	user block.UserAttrs
}

// ownerRow is one combination; constant while refs is not 0.
type ownerRow struct {
	ownerKey
	mode, uid, gid uint32
	dirs           []driver.DirAttrs
	refs           uint32
}

func (o *ownerTable) init() {
	o.byText = make(map[ownerKey]uint32)
	o.rows = make([]ownerRow, 1)
}

// put returns the number of a combination and adds a reference to it.
func (o *ownerTable) put(a *driver.Attrs, dirs []driver.DirAttrs) uint32 {
	b := o.buf[:0]
	for _, v := range [...]uint32{a.Mode, a.UID, a.GID} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, d := range dirs {
		b = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, d.Mode), d.UID), d.GID)
	}
	o.buf = b
	n, ok := o.byText[ownerKey{string(b), a.User}]
	if !ok {
		if last := len(o.free) - 1; last >= 0 {
			n, o.free = o.free[last], o.free[:last]
		} else {
			n = uint32(len(o.rows))
			o.rows = append(o.rows, ownerRow{})
		}
		o.rows[n] = ownerRow{ownerKey: ownerKey{string(b), a.User}, mode: a.Mode, uid: a.UID, gid: a.GID, dirs: append([]driver.DirAttrs(nil), dirs...)}
		o.byText[o.rows[n].ownerKey] = n
	}
	o.rows[n].refs++
	return n
}

// drop removes a reference to a combination. It ignores number 0.
func (o *ownerTable) drop(n uint32) {
	if n == 0 {
		return
	}
	r := &o.rows[n]
	if r.refs--; r.refs == 0 {
		delete(o.byText, r.ownerKey)
		*r = ownerRow{}
		o.free = append(o.free, n)
	}
}

// get fills in mode, owner and directories.
func (o *ownerTable) get(n uint32, a *driver.Attrs) {
	if n == 0 {
		return
	}
	r := &o.rows[n]
	a.Mode, a.UID, a.GID, a.Dirs, a.User = r.mode, r.uid, r.gid, r.dirs, r.user
}
