package disk

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// slabFiles returns the sum of the sizes of the slab files of a directory.
func slabFiles(t *testing.T, dir string) (sum int64) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "slab-*"))
	must(t, err)
	for _, name := range names {
		info, err := os.Stat(name)
		if err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// TestTinyCapacity stores blocks of random sizes, from less than a page to more than a
// slab, into a device with room for a few, so that classes steal slabs from each other
// all the time. The slab files never exceed the capacity; a block is there byte by byte
// unless the Host gave it up; pinned ones stay (A28, A30).
func TestTinyCapacity(t *testing.T) {
	for _, name := range []string{"lru", "arc", "mq", "s3fifo"} {
		t.Run(name, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rng := rand.New(rand.NewPCG(seed, 0))
			const capacity = 600 * format.PageBytes
			r := newRig(t, 1, capacity, func(o *Options) { o.Policy = name })
			host := newHost()
			host.veto = func(key block.Key) bool { return key.Hash[0] == 'v' }
			r.SetHost(host)
			held := map[block.Key]stored{}
			vetoed := 0
			skipped := 0
			for i := range 400 {
				size := 1 + rng.IntN(1<<(2+rng.IntN(18)))
				b := stored{keyOf(fmt.Sprint("b", i)), 1, bytesOf(uint64(i), size)}
				if size < 30_000 && vetoed < 8 && rng.IntN(10) == 0 {
					vetoed++
					b.key = keyOf(fmt.Sprint("v", i))
				}
				o := r.store(t, b)[0]
				switch o.Status {
				case driver.Stored:
					held[b.key] = b
				case driver.Skipped:
					skipped++
				default:
					t.Fatalf("store of %d bytes: %v (%v)", size, o.Status, o.Err)
				}
				if sum := slabFiles(t, r.dirs[0]); sum > capacity {
					t.Fatalf("%d bytes in slab files, the capacity is %d", sum, capacity)
				}
				if i%20 == 0 {
					checkHeld(t, r, host, held)
				}
			}
			checkHeld(t, r, host, held)
			s := r.Stats()
			t.Logf("%d evicted, %d skipped, %d held, %d slabs", s.Evicted, skipped, s.Blocks, s.Detail.(*Detail).Devices[0].Slabs)
			if s.Evicted == 0 || skipped > 100 {
				t.Errorf("%d evicted, %d skipped", s.Evicted, skipped)
			}
			if s.UsedBytes > s.CapacityBytes {
				t.Errorf("%d of %d bytes used", s.UsedBytes, s.CapacityBytes)
			}
			r.reopen(t)
			checkHeld(t, r, host, held)
		})
	}
}

// checkHeld checks that each block is there with its bytes, or was evicted by leave.
func checkHeld(t *testing.T, r *rig, host *accountHost, held map[block.Key]stored) {
	t.Helper()
	for key, b := range held {
		o, data := r.load(t, key, int64(len(b.data)))
		host.Lock()
		evicted := host.evicted[key] > 0
		host.Unlock()
		switch {
		case o.Status == driver.Loaded && evicted: // the Host was asked meanwhile
			eventually(t, fmt.Sprintf("the end of %v, of which the Host was told", key), func() bool {
				return r.presence(t, key) == driver.Miss
			})
			delete(held, key)
		case o.Status == driver.Loaded && bytes.Equal(data, b.data):
		case o.Status == driver.Absent && evicted:
			delete(held, key)
		default:
			t.Errorf("%v: %v (%v), evicted by leave: %v", key, o.Status, o.Err, evicted)
		}
	}
}

// TestStorm runs stores, loads, removals, renames, touches and syncs of few keys by many
// goroutines on a small tier, with a scrubber at work. Each load yields the bytes whose
// checksum the outcome names (A32; for the race detector).
func TestStorm(t *testing.T) {
	r := newRig(t, 2, 160*format.PageBytes, func(o *Options) {
		o.ScrubBytesPerSecond = 100 << 20
		plainEngines(o)
	})
	r.watch()
	var wg sync.WaitGroup
	for n := range 8 {
		rng := rand.New(rand.NewPCG(uint64(n), 0))
		wg.Go(func() {
			for i := range 120 {
				key := keyOf(fmt.Sprint(rng.IntN(12)))
				switch rng.IntN(8) {
				case 0, 1, 2:
					r.store(t, stored{key, uint64(1 + n*1000 + i), bytesOf(rng.Uint64N(50), 20_000)})
				case 3, 4:
					o, data := r.load(t, key, 20_000)
					if o.Status == driver.Loaded && block.Sum(data) != o.Sum {
						t.Errorf("%v: bytes do not match the checksum of the outcome", key)
					}
				case 5:
					r.Remove([]block.Key{key})
				case 6:
					r.Update(key, keyOf(fmt.Sprint(rng.IntN(12))), &driver.Attrs{Seq: uint64(1 + n*1000 + i)})
				case 7:
					if err := r.sync(t); err != nil {
						t.Errorf("Sync: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	if s := r.Stats(); s.Corrupt > 0 || s.IOErrors > 0 {
		t.Errorf("%d corrupt, %d errors", s.Corrupt, s.IOErrors)
	}
	r.reopen(t)
	n := int64(0)
	_ = r.Blocks(func(h *driver.Held) bool {
		n++
		if o, data := r.load(t, h.Key, h.Size); o.Status != driver.Loaded || block.Sum(data) != h.Sum {
			t.Errorf("%v after a restart: %v (%v)", h.Key, o.Status, o.Err)
		}
		return true
	})
	if got := r.Stats().Blocks; got != n {
		t.Errorf("Stats counts %d blocks, Blocks %d", got, n)
	}
}

// TestChain shows that of the blocks of a burst the first stay, and that without bursts the last do (G8).
func TestChain(t *testing.T) {
	for _, name := range []string{"lru", "arc", "mq", "s3fifo"} {
		for _, burst := range []uint16{7, 0} {
			r := newRig(t, 1, 600*format.PageBytes, func(o *Options) { o.Policy = name })
			const blocks = 90
			for i := range blocks {
				tr := (&stored{keyOf(fmt.Sprint(i)), uint64(i + 1), bytesOf(uint64(i), 10*format.PageBytes-100)}).transfer(t)
				tr.Burst = burst
				wantOutcome(t, wait(t, "store", begin(r.Store, false, tr))[0], driver.Stored, nil)
				tr.File.Close()
			}
			var here []int
			for i := range blocks {
				if o, _ := r.load(t, keyOf(fmt.Sprint(i)), 10*format.PageBytes-100); o.Status == driver.Loaded {
					here = append(here, i)
				}
			}
			n, head, tail := len(here), 0, 0
			for head < n && here[head] == head {
				head++
			}
			for tail < n && here[n-1-tail] == blocks-1-tail {
				tail++
			}
			const strays = 4 // the last, and those that a search for victims passes over because their job ends only then
			if burst != 0 && head < n-strays || burst == 0 && tail < n-strays || n < 30 || n > 80 {
				t.Errorf("%s, burst %d: kept %v", name, burst, here)
			}
		}
	}
}
