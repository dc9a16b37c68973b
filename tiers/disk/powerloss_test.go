package disk

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/directio/faultio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
)

// lazyDisk remembers what pages held before the writes that no sync has made durable. At a power loss
// each of these pages may have its old content or its new one, in any combination.
type lazyDisk struct {
	t     *testing.T
	mu    sync.Mutex
	files map[uint64]map[int64][]byte // by inode number, by offset
}

// inode returns the number of a file.
func inode(info os.FileInfo) uint64 { return info.Sys().(*syscall.Stat_t).Ino }

// rule takes note of an operation. It changes nothing.
func (d *lazyDisk) rule(c faultio.Call) faultio.Fault {
	info, err := c.File.OS().Stat()
	if err != nil {
		return faultio.Fault{} // closed meanwhile
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	pages := d.files[inode(info)]
	switch c.Kind {
	case directio.Sync:
		clear(pages)
		return faultio.Fault{}
	case directio.Read:
		return faultio.Fault{}
	}
	if pages == nil {
		pages = make(map[int64][]byte)
		d.files[inode(info)] = pages
	}
	f, err := os.Open(c.File.OS().Name()) // through the page cache, so from any memory
	if err != nil {
		return faultio.Fault{}
	}
	defer f.Close()
	for off := c.Off; off < c.Off+int64(c.Bytes); off += format.PageBytes {
		if pages[off] == nil {
			pages[off] = make([]byte, format.PageBytes)
			_, _ = f.ReadAt(pages[off], off) // beyond the end there are zeros
		}
	}
	return faultio.Fault{}
}

// lose gives pages of a copy of a directory their old content, at random.
func (d *lazyDisk) lose(rng *rand.Rand, from, to string) {
	names, err := filepath.Glob(filepath.Join(from, "slab-*"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			d.t.Fatal(err)
		}
		f, err := os.OpenFile(filepath.Join(to, filepath.Base(name)), os.O_RDWR, 0)
		if err != nil {
			d.t.Fatal(err)
		}
		share := rng.Float64() // of the pages of this file that are lost
		for off, old := range d.files[inode(info)] {
			if off < info.Size() && rng.Float64() < share {
				if _, err := f.WriteAt(old, off); err != nil {
					d.t.Fatal(err)
				}
			}
		}
		f.Close()
	}
}

// TestPowerLoss changes the sizes of blocks all the time, while some old blocks stay in use, so that
// slabs are emptied and go to other sizes. Then the power goes: of all that no sync has made durable
// any page may be lost. What loads is byte-exact, what a Sync had confirmed is there unless it was
// changed or evicted since, and what was removed before a Sync does not come back (A28). So it is after
// checkpoints, too, from which some slabs are taken.
func TestPowerLoss(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rounds := 16
	if testing.Short() {
		rounds = 6
	}
	var mu sync.Mutex
	moved, indexed := uint64(0), 0
	t.Run("rounds", func(t *testing.T) {
		for round := range rounds {
			t.Run(fmt.Sprint(round), func(t *testing.T) {
				t.Parallel()
				n, slabs := losePower(t, rand.New(rand.NewPCG(seed, uint64(round))))
				mu.Lock()
				defer mu.Unlock()
				moved += n
				indexed += slabs
			})
		}
	})
	if t.Logf("%d blocks moved, %d slabs taken from an index", moved, indexed); moved == 0 || indexed == 0 {
		t.Error("no block was ever moved, or no slab taken from an index")
	}
}

func losePower(t *testing.T, rng *rand.Rand) (moved uint64, indexed int) {
	c := newCrashRun(t, rng)
	sizes := []int{4000, 11_000, 20_000, 50_000}
	n := 0
	c.keys = 150
	c.size = func() int {
		n++
		return sizes[(n/60+rng.IntN(8)/7)%len(sizes)]
	}
	c.rig = newRig(t, 1, 64*(20+rng.Int64N(30))*format.PageBytes/4, func(o *Options) {
		o.Policy = []string{"lru", "s3fifo", "arc"}[rng.IntN(3)]
	})
	c.SetHost(c.host)
	d := &lazyDisk{t: t, files: make(map[uint64]map[int64][]byte)}
	c.engine(0).SetRule(d.rule)
	for range 100 + rng.IntN(150) {
		c.step()
		for i := range 10 {
			c.Touch([]block.Key{keyOf(fmt.Sprint(i * 15))}) // these stay
		}
	}
	// Nothing of the tier may write any more.
	c.engine(0).SetRule(func(c faultio.Call) faultio.Fault { return faultio.Fault{Drop: c.Kind != directio.Read} })
	moved = c.Stats().Detail.(*Detail).MovedBlocks
	from := c.dirs[0]
	d.mu.Lock()
	old := maps.Clone(d.files)
	d.mu.Unlock()
	next := c.rig.crashWith(t, func(to string) {
		(&lazyDisk{t: t, files: old}).lose(rng, from, to)
	})
	c.check(next)
	return moved, next.indexed()
}
