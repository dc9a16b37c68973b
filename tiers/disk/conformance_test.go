package disk

import (
	"context"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/directio/faultio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
)

// engines returns the engines that this machine has.
func engines(t testing.TB) []string {
	list := []string{directio.EnginePread}
	e, err := directio.Open(context.Background(), directio.Options{Engine: directio.EngineUring})
	if err != nil {
		t.Logf("without io_uring: %v", err)
		return list
	}
	_ = e.Close(context.Background())
	return append(list, directio.EngineUring)
}

// TestConformance runs the suite of all tiers over one and two devices and all
// engines (A31 to A34), with everything that it can ask of this tier: full tiers,
// budgets, clean restarts, power cuts and bad copies.
func TestConformance(t *testing.T) {
	for _, engine := range engines(t) {
		for _, c := range []struct {
			name    string
			devices int
		}{{"one device", 1}, {"two devices", 2}} {
			t.Run(engine+", "+c.name, func(t *testing.T) {
				t.Parallel()
				conform(t, c.devices, engine)
			})
		}
	}
}

func conform(t *testing.T, devices int, engine string) {
	rigs := make(map[driver.Tier]*rig)
	var mu sync.Mutex
	keep := func(r *rig) driver.Tier {
		mu.Lock()
		defer mu.Unlock()
		rigs[r] = r
		return r
	}
	find := func(tier driver.Tier) *rig {
		mu.Lock()
		defer mu.Unlock()
		return rigs[tier]
	}
	direct := func(o *Options) {
		o.DirectIO.Engine = engine
		if devices == 1 {
			plainEngines(o)
		}
	}
	opts := suite.Options{
		MaxKeyBytes: format.MaxKeyBytes,
		Budgeted: func(t *testing.T) driver.Tier {
			return keep(newRig(t, devices, 4<<20, func(o *Options) {
				direct(o)
				o.DailyWriteBudgetBytes = 32 * 2 * format.PageBytes
				o.Now = func() time.Time { return time.Unix(1e9, 0) } // no midnight in between
			}))
		},
		Reopen: func(t *testing.T, tier driver.Tier) driver.Tier {
			r := find(tier)
			must(t, r.Close(context.Background()))
			next := &rig{opts: r.opts, dirs: r.dirs, fault: r.fault}
			next.open(t)
			return keep(next)
		},
		Crash: func(t *testing.T, tier driver.Tier) driver.Tier { return keep(find(tier).crash(t)) },
		Corrupt: func(t *testing.T, tier driver.Tier, key block.Key) {
			path, data, _ := find(tier).slotOf(t, key)
			flip(t, path, data)
		},
	}
	if devices == 1 {
		// One slab of 8 to 15 slots; with two devices the blocks may all hash to one.
		opts.Small = func(t *testing.T) driver.Tier {
			return keep(newRig(t, 1, 12*minSlabBytes, direct))
		}
		opts.LRU = true
	}
	suite.Run(t, func(t *testing.T) driver.Tier { return keep(newRig(t, devices, 64<<20, direct)) }, opts)
}

// TestConformanceFaulty runs the suite over devices that fail one operation in
// twenty: jobs may fail, blocks be lost, but no wrong byte comes out (A33).
func TestConformanceFaulty(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	faults := func(t *testing.T, r *rig) driver.Tier {
		var mu sync.Mutex
		rng := rand.New(rand.NewPCG(seed, 1))
		r.rule(func(c faultio.Call) faultio.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch rng.IntN(60) {
			case 0:
				return faultio.Fault{Err: syscall.EIO}
			case 1:
				return faultio.Fault{Short: true, ShortBytes: c.Bytes / 2}
			case 2:
				if c.Kind == directio.Read {
					return faultio.Fault{Flip: true, FlipBit: rng.IntN(1 << 20)}
				}
			}
			return faultio.Fault{}
		})
		return r
	}
	suite.Run(t, func(t *testing.T) driver.Tier { return faults(t, newRig(t, 2, 64<<20, nil)) }, suite.Options{
		Faulty:      true,
		MaxKeyBytes: format.MaxKeyBytes,
		Small:       func(t *testing.T) driver.Tier { return faults(t, newRig(t, 1, 12*minSlabBytes, nil)) },
	})
}
