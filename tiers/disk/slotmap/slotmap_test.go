package slotmap

import (
	"errors"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// book is a slot map with one slab of four slots.
type book struct {
	*Map
	sp    *Space
	slab  *Slab
	woken int
	down  bool
}

func newBook() *book {
	b := &book{Map: New()}
	b.sp = NewSpace(SpaceOptions{
		Capacity: 1 << 20, SlabBytes: 1 << 20, Policy: "lru",
		Down: func() bool { return b.down }, Wake: func() { b.woken++ },
	})
	b.slab = &Slab{Space: b.sp, Header: format.SlabHeader{Epoch: 9, SlotBytes: format.PageBytes, Slots: 4}, Usable: 4}
	b.AddSlab(b.slab)
	return b
}

// store binds a slot to a block and publishes it.
func (b *book) store(t *testing.T, key block.Key, seq uint64) SlotID {
	t.Helper()
	s, first, n := b.sp.ClassOf(format.PageBytes).TakeRun(1)
	if n != 1 {
		t.Fatal("no free slot")
	}
	r := b.Record(key, &driver.Attrs{Seq: seq, Mode: 0o600})
	id := b.Bind(s, first, key, 100, &r)
	b.Publish(id, seq)
	return id
}

// flush writes the headers in the list, with err as the result, and returns how many hold a block.
func (b *book) flush(t *testing.T, err error) (used int) {
	t.Helper()
	for _, h := range b.TakeDirty(b.sp, 10) {
		page := make([]byte, format.PageBytes)
		if _, ok := b.EncodeDirty(h, page); !ok {
			continue
		}
		if !format.IsZero(page) {
			used++
		}
		b.WroteDirty(h.ID, err)
	}
	return used
}

// TestSlotFreed shows that a slot is free again when its free header is written and no pin holds it,
// in either order, and without its header once the device is down.
func TestSlotFreed(t *testing.T) {
	b := newBook()
	key := block.Key{Group: "g", Hash: "a"}
	free := func() int { return b.sp.ClassOf(format.PageBytes).nfree }
	old := b.store(t, key, 1)
	b.Pin(old)
	young := b.store(t, key, 2) // replaces the old one
	if b.Find(key) != young || b.woken != 1 || free() != 2 {
		t.Errorf("found %d, want %d; woken %d times, %d slots free", b.Find(key), young, b.woken, free())
	}
	if used := b.flush(t, nil); used != 0 || free() != 2 {
		t.Errorf("%d headers with a block, %d slots free while one is pinned", used, free())
	}
	if b.Unpin(old); free() != 3 {
		t.Errorf("%d slots free after the last pin", free())
	}
	b.GiveUp(young)
	if b.flush(t, errors.New("broken")); free() != 3 || b.sp.Refusal() == nil {
		t.Errorf("%d slots free, refusal %v, after the header was refused", free(), b.sp.Refusal())
	}
	b.Pin(young)
	b.down = true
	if b.Unpin(young); free() != 4 || b.Find(key) != 0 {
		t.Errorf("%d slots free on a device that is down", free())
	}
}

// TestSettle shows that a victim which was renamed while the Host was asked stays, and one that was
// not stays out of the order only if the Host gave it up.
func TestSettle(t *testing.T) {
	b := newBook()
	var ids []SlotID
	for i, hash := range []block.Hash{"a", "b", "c"} {
		ids = append(ids, b.store(t, block.Key{Group: "g", Hash: hash}, uint64(i+1)))
	}
	victims := b.Choose(b.sp, 5*format.PageBytes)
	if len(victims) != 3 || b.sp.Ordered() != 0 || b.Holds(ids[0], &driver.Transfer{Size: 100, Attrs: driver.Attrs{Seq: 1}}) {
		t.Fatalf("%d victims, %d left", len(victims), b.sp.Ordered())
	}
	to := block.Key{Group: "g", Hash: "moved"}
	b.Update(ids[0], to, &driver.Attrs{Seq: 4, Pinned: true})
	if n := b.Settle(victims, []bool{true, true, false}); n != 1 {
		t.Errorf("%d given up, want 1", n)
	}
	if b.Find(to) != ids[0] || b.Find(victims[1].Key) != 0 || b.Find(victims[2].Key) != ids[2] || b.sp.Ordered() != 2 {
		t.Errorf("found %d, %d, %d; %d in order", b.Find(to), b.Find(victims[1].Key), b.Find(victims[2].Key), b.sp.Ordered())
	}
	if got := b.Choose(b.sp, 5*format.PageBytes); len(got) != 1 || got[0].Key != victims[2].Key || b.Pinned() != 100 {
		t.Errorf("got %v, %d bytes pinned: a pinned block is no victim", got, b.Pinned())
	}
}

// TestAdopt shows that of two copies the one with the higher Seq stays, whichever comes first, and
// that the header of the other is freed.
func TestAdopt(t *testing.T) {
	for _, seqs := range [][2]uint64{{1, 2}, {2, 1}, {2, 2}} {
		b := newBook()
		for i, seq := range seqs {
			b.Adopt(b.slab, &format.SlotHeader{Slot: uint32(i), Epoch: 9, Size: 100, Key: []byte("g/a"), Attrs: driver.Attrs{Seq: seq}})
		}
		want := uint32(0)
		if seqs[1] > seqs[0] {
			want = 1
		}
		if at := b.Place(b.Find(block.Key{Group: "g", Hash: "a"})); at.Slot != want || b.sp.Unwritten() != 1 {
			t.Errorf("%v: slot %d, want %d; %d headers to write", seqs, at.Slot, want, b.sp.Unwritten())
		}
		held, _ := b.Held(0)
		if used := b.flush(t, nil); used != 0 || len(held) != 1 || len(b.Headers(b.slab)) != 1 {
			t.Errorf("%v: %d held, %d headers with a block", seqs, len(held), used)
		}
	}
}

// TestMove shows that a block which moves keeps its key, attributes and place in the order, also if it
// was renamed meanwhile, that who reads the old slot keeps it, and that a block which was removed
// meanwhile does not come back.
func TestMove(t *testing.T) {
	b := newBook()
	other := &Slab{Space: b.sp, Header: format.SlabHeader{Epoch: 8, SlotBytes: format.PageBytes, Slots: 4}, Usable: 4}
	key := func(hash string) block.Key { return block.Key{Group: "g", Hash: block.Hash(hash)} }
	for i, hash := range []string{"a", "b", "c", "d"} {
		b.store(t, key(hash), uint64(i+1))
	}
	b.AddSlab(other)
	b.slab.Retire()
	reader := b.Find(key("a"))
	b.Pin(reader)
	moves := b.BeginMoves(b.slab, 4, 4*format.PageBytes)
	if len(moves) != 4 || moves[0].From != reader || moves[0].Write.Slab != other {
		t.Fatalf("%d moves, the first %+v", len(moves), moves[0])
	}
	page := make([]byte, format.PageBytes)
	for i := range moves {
		if !b.EncodeMove(&moves[i], page) {
			t.Errorf("move %d: the block is gone", i)
		}
	}
	b.Update(b.Find(key("b")), key("renamed"), &driver.Attrs{Seq: 9, Pinned: true})
	b.GiveUp(b.Find(key("c")))
	for i := range moves {
		b.EndMove(&moves[i], i != 3, true)
	}
	if b.Find(key("a")) != moves[0].To || b.Find(key("renamed")) != moves[1].To || b.Find(key("b")) != 0 || b.Find(key("c")) != 0 ||
		b.Find(key("d")) != moves[3].From || b.Pinned() != 100 || b.slab.Live() != 1 || other.Live() != 2 {
		t.Errorf("%d and %d blocks in the slabs, %d bytes pinned", b.slab.Live(), other.Live(), b.Pinned())
	}
	if used := b.flush(t, nil); used != 1 { // of the renamed block
		t.Errorf("%d headers with a block written, want 1", used)
	}
	b.GiveUp(b.Find(key("d")))
	b.flush(t, nil)
	b.woken = 0
	if b.slab.DropEmpty() {
		t.Error("the slab has no class while a block in it is read")
	}
	if b.Unpin(reader); b.woken != 1 || !b.slab.DropEmpty() {
		t.Errorf("the slab is not empty after its last reader; woken %d times", b.woken)
	}
	b.store(t, key("e"), 10)
	if got := b.Choose(b.sp, 1); len(got) != 1 || got[0].Key != key("a") {
		t.Errorf("first to be evicted: %v, want a", got)
	}
}

// TestRank shows that blocks which were found are evicted in the order of their commits, as far as
// whole slabs go, whatever the numbers of the slabs.
func TestRank(t *testing.T) {
	b := newBook()
	b.slab.Header.Number = 1
	other := &Slab{Space: b.sp, Header: format.SlabHeader{Number: 2, Epoch: 9, SlotBytes: 2 * format.PageBytes, Slots: 2}, Usable: 2}
	b.AddSlab(other)
	for i, seq := range []uint64{8, 6, 7} {
		b.Adopt(b.slab, &format.SlotHeader{Slot: uint32(i), Epoch: 9, Size: 1, Key: []byte("g/" + string(rune('0'+seq))), Attrs: driver.Attrs{Seq: seq}})
	}
	b.Adopt(other, &format.SlotHeader{Slot: 1, Epoch: 9, Size: 1, Key: []byte("g/3"), Attrs: driver.Attrs{Seq: 3}})
	b.Rank(b.sp)
	order := ""
	for _, v := range b.Choose(b.sp, 1<<20) {
		order += string(v.Key.Hash)
	}
	if order != "3678" {
		t.Errorf("order of eviction: got %s, want 3678", order)
	}
}
