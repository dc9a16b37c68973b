package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// TestBorrow shows that a store without a slot of its size takes a free one that is up to
// twice as large, rather than to evict; and evicts only when there is none (A28).
func TestBorrow(t *testing.T) {
	r := newRig(t, 1, 64*9*format.PageBytes, nil)
	blocks := []stored{{keyOf("large"), 1, bytesOf(1, 3*format.PageBytes)}} // one slab of 2 slots in 9 pages
	for i := range 4 {
		blocks = append(blocks, stored{keyOf(fmt.Sprint("filler", i)), 1, bytesOf(1, 100*format.PageBytes)}) // 102 pages each
	}
	r.mustStore(t, blocks...)
	for i := range 46 { // 22 slabs of 2 slots of 2 pages in 7, one of 1 slot in 4, and the other slot of the first slab
		b := stored{keyOf(fmt.Sprint(i)), 1, bytesOf(uint64(i), 2*format.PageBytes)}
		r.mustStore(t, b)
		blocks = append(blocks, b)
	}
	if n := r.Stats().Evicted; n != 0 {
		t.Errorf("%d evicted while there were free slots", n)
	}
	for range 2 {
		for _, b := range blocks {
			r.mustLoad(t, b)
		}
		r.reopen(t)
	}
	r.mustStore(t, stored{keyOf("more"), 1, bytesOf(1, 2*format.PageBytes)})
	if n := r.Stats().Evicted; n == 0 {
		t.Error("none evicted from a full tier")
	}
}

// TestBorrowBatch shows that a batch of small blocks may take slots that are larger than the
// staging which it was cut for.
func TestBorrowBatch(t *testing.T) {
	const pages = 8
	r := newRig(t, 1, 400*pages*format.PageBytes, func(o *Options) { o.SlabBytes = 200 * pages * format.PageBytes })
	first := stored{keyOf("first"), 1, bytesOf(1, 2*pages*format.PageBytes)}
	r.mustStore(t, first)
	d := r.devices[0]
	r.Tier.mu.Lock()
	d.mu.space.Full(0, "no room for another slab from now on")
	free := 0
	for _, c := range d.mu.space.Usage().Classes {
		free += c.Slots - c.Used
	}
	r.Tier.mu.Unlock()
	var blocks []stored
	for i := range free {
		blocks = append(blocks, stored{keyOf(fmt.Sprint(i)), 1, bytesOf(uint64(i), pages*format.PageBytes-i)})
	}
	r.mustStore(t, blocks...)
	for _, b := range append(blocks, first) {
		r.mustLoad(t, b)
	}
	if n := r.Stats().Evicted; n != 0 {
		t.Errorf("%d evicted while there were free slots", n)
	}
}

// TestSlabNumbers shows that a stray file with the highest number does not keep the tier
// from growing.
func TestSlabNumbers(t *testing.T) {
	r := newRig(t, 1, 64*9*format.PageBytes, nil)
	first := stored{keyOf("first"), 1, bytesOf(1, format.PageBytes)}
	r.mustStore(t, first)
	stray := filepath.Join(r.dirs[0], format.SlabName(format.MaxSlabNumber))
	must(t, os.WriteFile(stray, []byte("stray"), 0o600))
	r.reopen(t)
	r.fill(t, 40, format.PageBytes)
	if n := r.Stats().Detail.(*Detail).Devices[0].Slabs; n < 10 {
		t.Errorf("%d slabs for 41 blocks, 4 in each", n)
	}
	r.mustLoad(t, first)
	r.reopen(t)
	r.mustLoad(t, first)
}

// TestShrunkPinned shows that a device opened with less capacity gives up the slabs without
// pinned blocks first.
func TestShrunkPinned(t *testing.T) {
	r := newRig(t, 1, 64*9*format.PageBytes, nil)
	small := r.fill(t, 256, format.PageBytes)
	pinned := small[21]
	path, _, _ := r.slotOf(t, pinned.key)
	for _, b := range small {
		p, _, _ := r.slotOf(t, b.key)
		switch {
		case b.key == pinned.key:
			r.Update(b.key, b.key, &driver.Attrs{Seq: 2, Pinned: true})
		case p == path: // so that it is the emptiest
			r.Remove([]block.Key{b.key})
		}
	}
	r.opts.Devices[0].CapacityBytes = 3 * 9 * format.PageBytes
	r.reopen(t)
	r.mustLoad(t, pinned)
	if sum := slabFiles(t, r.dirs[0]); sum > 3*9*format.PageBytes {
		t.Errorf("%d bytes in slab files", sum)
	}
}

// TestRoomForAll shows that the slots of a batch that waited for room are large enough for
// all of its blocks, though the class that they were one batch for is gone by then.
func TestRoomForAll(t *testing.T) {
	r := newRig(t, 1, 16<<20, nil)
	var transfers []driver.Transfer
	for i, pages := range []int{8, 9} {
		b := stored{keyOf(fmt.Sprint(i)), 1, bytesOf(uint64(i), pages*format.PageBytes)}
		transfers = append(transfers, b.transfer(t))
	}
	c := make(chan []driver.Outcome, 1)
	in := &driver.Job{ID: 1, Blocks: transfers, Done: func(res *driver.Result) { c <- res.Outcomes }}
	j := r.newJob(in, "store")
	flights := r.planStores(j, in)[0].flights
	d := r.devices[0]
	room := &roomRequest{flights: flights, done: make(chan struct{})}
	if err := d.keeper.makeRoom(room); err != nil || room.n != 2 {
		t.Fatalf("room for %d blocks: %v", room.n, err)
	}
	for _, f := range flights {
		if at := r.placeOf(f.id); at.SlotLen < f.source.size {
			t.Errorf("a block of %d bytes in a slot of %d", f.source.size, at.SlotLen)
		}
	}
	d.storeStaged(flights)
	j.submit(nil)
	for _, o := range wait(t, "store", c) {
		wantOutcome(t, o, driver.Stored, nil)
	}
}
