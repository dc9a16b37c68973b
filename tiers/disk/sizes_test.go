package disk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// sizedSeq is the last seq that sized gave to a block.
var sizedSeq atomic.Uint64

// sized returns n blocks of size bytes each.
func sized(prefix string, n, size int) (blocks []stored) {
	content := bytesOf(uint64(size), size)
	for i := range n {
		blocks = append(blocks, stored{keyOf(fmt.Sprint(prefix, i)), sizedSeq.Add(1), content})
	}
	return blocks
}

// storeEach stores blocks one after the other, in small batches.
func (r *rig) storeEach(t *testing.T, blocks []stored) {
	t.Helper()
	for part := range slices.Chunk(blocks, 4) {
		r.mustStore(t, part...)
	}
}

// present counts the blocks that are held.
func (r *rig) present(t *testing.T, blocks []stored) (n int) {
	t.Helper()
	for _, b := range blocks {
		if r.presence(t, b.key) == driver.Hit {
			n++
		}
	}
	return n
}

// removeAll removes blocks.
func (r *rig) removeAll(blocks []stored) {
	for _, b := range blocks {
		r.Remove([]block.Key{b.key})
	}
}

// freshBlocks returns how many blocks of a size a new device of the capacity holds.
func freshBlocks(t *testing.T, capacity int64, size int) int {
	t.Helper()
	r := newRig(t, 1, capacity, nil)
	blocks := sized("fresh", int(capacity)/size+2, size)
	r.storeEach(t, blocks)
	n := r.present(t, blocks)
	must(t, r.Close(context.Background()))
	return n
}

// TestSizesChange fills a device with blocks of one size and goes on with another size. If the old
// blocks were removed, or not used since, they make room: no new block is evicted as long as all new
// ones fit, and in the end the device holds as many of them as an empty one would. That also holds if
// the device was closed and opened in between (A28).
func TestSizesChange(t *testing.T) {
	const mib, capacity = 1 << 20, 32 << 20
	for _, row := range []struct {
		name     string
		old, new int  // bytes of a block
		removed  bool // the old blocks
		reopened bool
	}{
		{"smaller/removed", mib, 64_000, true, false},
		{"smaller/removed/reopened", mib, 64_000, true, true},
		{"smaller/cold", mib, 64_000, false, false},
		{"smaller/cold/reopened", mib, 64_000, false, true},
		{"larger/removed", 100_000, mib, true, false},
		{"larger/cold/reopened", 100_000, mib, false, true},
		{"a bit smaller/cold", mib, 960_000, false, false},
		{"a bit larger/cold/reopened", 250_000, 270_000, false, true},
		{"much larger/cold", 20_000, 5 * mib, false, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			fresh := freshBlocks(t, capacity, row.new)
			r := newRig(t, 1, capacity, nil)
			old := sized("old", capacity/row.old*15/16, row.old)
			r.storeEach(t, old)
			if row.removed {
				r.removeAll(old)
			}
			blocks := sized("new", fresh*9/10, row.new)
			for part := range slices.Chunk(blocks, len(blocks)/3+1) {
				if row.reopened {
					r.reopen(t)
				}
				r.storeEach(t, part)
			}
			if n := r.present(t, blocks); n != len(blocks) {
				t.Errorf("%d of %d new blocks are held, %d of %d old ones; an empty device holds %d",
					n, len(blocks), r.present(t, old), len(old), fresh)
			}
			more := sized("more", fresh+3, row.new)
			r.storeEach(t, more)
			if n := r.present(t, more); n < fresh*95/100 {
				t.Errorf("%d blocks fit, %d into an empty device", n, fresh)
			}
			for _, b := range more[len(more)-3:] {
				r.mustLoad(t, b)
			}
		})
	}
}

// TestSizesHot shows that blocks which are used stay while blocks of another size take the place of
// those around them: one block in each slab is used, or pinned, or kept by the Host (A22, A28).
func TestSizesHot(t *testing.T) {
	for _, how := range []string{"used", "pinned", "kept"} {
		t.Run(how, func(t *testing.T) {
			const capacity = 16 << 20
			fresh := freshBlocks(t, capacity, 250_000)
			r := newRig(t, 1, capacity, nil)
			old := sized("old", capacity/20_480*15/16, 16_000)
			r.storeEach(t, old)
			bySlab := map[string]stored{}
			for _, b := range old {
				path, _, _ := r.slotOf(t, b.key)
				bySlab[path] = b
			}
			hot := map[block.Key]bool{}
			for _, b := range bySlab {
				hot[b.key] = true
				if how == "pinned" {
					r.Update(b.key, b.key, &driver.Attrs{Seq: b.seq, Pinned: true})
				}
			}
			host := newHost()
			host.veto = func(key block.Key) bool { return how == "kept" && hot[key] }
			r.SetHost(host)
			blocks := sized("new", fresh*8/10, 250_000)
			for _, b := range blocks {
				for key := range hot {
					if how == "used" {
						r.Touch([]block.Key{key})
					}
				}
				r.mustStore(t, b)
			}
			if n := r.present(t, blocks); n != len(blocks) {
				t.Errorf("%d of %d new blocks are held", n, len(blocks))
			}
			for range 2 {
				for _, b := range bySlab {
					r.mustLoad(t, b)
				}
				r.reopen(t)
			}
		})
	}
}

// TestSizesOrder stores blocks of several sizes in random order and uses some again. With lru, each
// block that is evicted is the one that was used least recently of all, whatever the sizes, and the
// device stays full. At the end all blocks load, also after a restart.
func TestSizesOrder(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	const capacity = 32 << 20
	r := newRig(t, 1, capacity, nil)
	sizes := []int{5000, 60_000, 64_000, 200_000, 1 << 20}
	var order []stored // least recently used first
	at := func(key block.Key) int {
		return slices.IndexFunc(order, func(b stored) bool { return b.key == key })
	}
	host := newHost()
	host.veto = func(key block.Key) bool {
		i := at(key)
		if i != 0 {
			t.Errorf("block %v is to be evicted, %d blocks were used before it", key, i)
		}
		order = slices.Delete(order, i, i+1)
		return false
	}
	r.SetHost(host)
	var lowest int64 = capacity
	for i := range 900 {
		if i%150 == 0 {
			rng.Shuffle(len(sizes), func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
		}
		size := sizes[rng.IntN(3)]
		b := stored{keyOf(fmt.Sprint(i)), uint64(i + 1), bytesOf(uint64(i), size)}
		r.mustStore(t, b)
		must(t, r.sync(t)) // also ends what is evicted ahead of need
		order = append(order, b)
		for range 2 {
			if j := rng.IntN(len(order)); rng.IntN(3) == 0 {
				b := order[j]
				r.Touch([]block.Key{b.key})
				order = append(slices.Delete(order, j, j+1), b)
			}
		}
		if s := r.Stats(); s.Evicted > 0 {
			lowest = min(lowest, s.UsedBytes+s.Blocks*format.PageBytes)
		}
	}
	t.Logf("at least %d of %d bytes used, %d of %d blocks moved", lowest, int64(capacity), r.Stats().Detail.(*Detail).MovedBlocks, len(order))
	if lowest < capacity*85/100 {
		t.Errorf("%d of %d bytes used", lowest, int64(capacity))
	}
	host.Lock()
	host.veto = nil
	host.Unlock()
	for range 2 {
		for _, b := range order {
			r.mustLoad(t, b)
		}
		r.reopen(t)
	}
}
