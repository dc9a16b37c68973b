package suite

import (
	"fmt"
	"slices"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
)

// versionCases check attributes of blocks, and versions.
func versionCases() []suiteCase {
	return []suiteCase{
		{name: "Attributes", run: checkAttributes},
		{name: "AttributesOwned", run: checkAttributesOwned},
		{name: "Versions", run: checkVersions},
		{name: "VersionsSameBytes", run: checkVersionsSameBytes},
		{name: "VersionsUnderWay", run: checkVersionsUnderWay},
		{name: "LoadWhileStoring", run: checkLoadWhileStoring},
		{name: "RemoveWhileStoring", run: checkRemoveWhileStoring},
	}
}

// attrPayloads returns blocks with every kind of attributes, and with directories
// from none to many.
func (h *harness) attrPayloads(prefix string) []payload {
	var blocks []payload
	dirs := ""
	for i := range 8 {
		p := h.payload(block.Key{Group: block.GroupID(prefix), Hash: block.Hash(fmt.Sprintf("%sleaf", dirs))}, i, 900)
		p.attrs.Pinned = i%2 == 1
		blocks = append(blocks, p)
		dirs += "d/"
	}
	low := h.payload(block.Key{Hash: block.Hash(prefix + "-low")}, 0, 100)
	low.attrs = driver.Attrs{Seq: 1}
	high := h.payload(block.Key{Hash: block.Hash(prefix + "-high")}, 0, 100)
	high.attrs = driver.Attrs{
		Seq: 1<<64 - 1, Mode: 0o7777, UID: 1<<32 - 1, GID: 1<<32 - 1, Mtime: -1, Expires: 1<<63 - 1, Pinned: true,
	}
	return append(blocks, low, high)
}

// checkAttributes: the attributes of a Store are listed with the block, to the last bit. A Store of
// the held version changes none of them.
func checkAttributes(h *harness) {
	e := mustHave[driver.Enumerator](h)
	blocks := h.attrPayloads("attrs")
	h.wantAll(h.store(blocks...), driver.Stored)
	h.wantListed(e, blocks)
	other := slices.Clone(blocks)
	for i := range other {
		other[i].attrs.Mode ^= 0o111
		other[i].attrs.Pinned = !other[i].attrs.Pinned
		other[i].attrs.Mtime++
	}
	outcomes := h.store(other...)
	for i := range outcomes {
		h.wantHeld(outcomes, i)
	}
	if !h.opts.Faulty { // in that case some were stored only now
		h.wantListed(e, blocks)
	}
}

// checkAttributesOwned: a Held belongs to the caller until fn returns. Changes by fn do not reach
// the tier.
func checkAttributesOwned(h *harness) {
	e := mustHave[driver.Enumerator](h)
	blocks := h.attrPayloads("owned")
	h.wantAll(h.store(blocks...), driver.Stored)
	err := e.Blocks(func(held *driver.Held) bool {
		clear(held.Attrs.Dirs)
		*held = driver.Held{}
		return true
	})
	if err != nil && !h.opts.Faulty {
		h.errorf("Blocks: got %v, want success", err)
	}
	h.wantListed(e, blocks)
}

// checkVersions: a Store with another Attrs.Seq replaces the block, for any size. From then on the
// old version is Absent, and there is one block, not two.
func checkVersions(h *harness) {
	key := numberedKey("version", 1)
	beside := h.payloads("beside", 2, 3000)
	old := h.payload(key, 0, 5000)
	h.wantAll(h.store(old, beside[0]), driver.Stored)
	for gen, size := range []int64{100, 9000, 9000, 4096, 64 << 10} {
		p := h.payload(key, gen+1, size)
		outcomes := h.store(beside[0], p)
		h.wantHeld(outcomes, 0)
		if !h.wantStatus(outcomes, 1, driver.Stored) {
			return
		}
		h.wantAll(h.load(p), driver.Loaded)
		loaded := h.load(old)
		h.wantAll(loaded, driver.Absent)
		h.never(loaded, driver.Loaded, "it was replaced by another version")
		h.wantAll(h.load(p, beside[0]), driver.Loaded) // the last one did not drop it
		h.wantHeld(h.store(p), 0)
		if e, ok := ability[driver.Enumerator](h.tier); ok && !h.opts.Faulty {
			h.wantListed(e, []payload{p, beside[0]})
		}
		old = p
	}
	if n := h.tier.Remove([]block.Key{key}); n != 1 && !h.opts.Faulty {
		h.errorf("Remove of a block of several versions: got %d, want 1", n)
	}
	h.wantPresence(driver.Miss, key)
	h.never(h.load(old), driver.Loaded, "it was removed before")
}

// checkVersionsSameBytes: another Attrs.Seq is another version though the bytes are
// the same; its attributes count.
func checkVersionsSameBytes(h *harness) {
	blocks := h.payloads("same-bytes", 3, 5000)
	h.wantAll(h.store(blocks...), driver.Stored)
	for i := range blocks {
		blocks[i].attrs.Seq += 1 << 40
		blocks[i].attrs.Mode ^= 0o777
	}
	h.wantAll(h.store(blocks[:2]...), driver.Stored)
	h.wantAll(h.load(blocks...), driver.Loaded)
	blocks[2].attrs = h.payloads("same-bytes", 3, 5000)[2].attrs
	if e, ok := ability[driver.Enumerator](h.tier); ok && !h.opts.Faulty {
		h.wantListed(e, blocks)
	}
}

// checkVersionsUnderWay: of two versions submitted one after the other without waiting, the earlier
// one does not win.
func checkVersionsUnderWay(h *harness) {
	for round := range 10 {
		key := numberedKey("under-way", round)
		old, late := h.payload(key, 0, 128<<10), h.payload(key, 1, 100)
		first := h.submit(jobSpec{op: storeJob, blocks: []payload{old}})
		second := h.submit(jobSpec{op: storeJob, blocks: []payload{late}})
		h.wantStatus(h.settle(first), 0, driver.Stored, driver.Skipped)
		outcomes := h.settle(second)
		h.wantStatus(outcomes, 0, driver.Stored, driver.Skipped)
		if outcomes[0].Status == driver.Stored {
			h.wantAll(h.load(late), driver.Loaded)
			h.never(h.load(old), driver.Loaded, "it was replaced by another version")
		}
	}
}

// checkLoadWhileStoring: a Load of a block whose Store has been accepted but is not
// done waits for it or fails with ErrPending.
func checkLoadWhileStoring(h *harness) {
	for round := range 10 {
		blocks := h.payloads(fmt.Sprintf("while-%d", round), 4, 64<<10)
		store := h.submit(jobSpec{op: storeJob, blocks: blocks})
		load := h.submit(jobSpec{op: loadJob, blocks: blocks})
		stored := h.wantAll(h.settle(store), driver.Stored)
		for i, o := range h.settle(load) {
			pending := o.Status == driver.Failed && isKind(o.Err, block.ErrPending)
			if stored && o.Status != driver.Loaded && !pending && !h.opts.Faulty {
				h.errorf("round %d, block %d, loaded while it was stored: got %v (%v), want loaded or %v",
					round, i, o.Status, o.Err, block.ErrPending)
			}
		}
		h.tier.Remove(keysOf(blocks))
	}
}

// checkRemoveWhileStoring: Remove also undoes a Store that was accepted before it.
func checkRemoveWhileStoring(h *harness) {
	for round := range 10 {
		blocks := h.payloads(fmt.Sprintf("undone-%d", round), 4, 64<<10)
		store := h.submit(jobSpec{op: storeJob, blocks: blocks})
		h.tier.Remove(keysOf(blocks))
		h.wantPresence(driver.Miss, keysOf(blocks)...)
		outcomes := h.settle(store)
		for i, o := range outcomes {
			h.wantStatus(outcomes, i, driver.Stored, driver.Skipped)
			if o.Status == driver.Skipped {
				h.wantSkipped(outcomes, i, block.ErrNotFound)
			}
		}
		h.wantPresence(driver.Miss, keysOf(blocks)...)
		h.never(h.load(blocks...), driver.Loaded, "it was removed while it was stored")
	}
}
