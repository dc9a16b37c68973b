package tiers_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/names"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/tiertest"
)

// heads returns how many blocks of each chain are in memory before the first that is not, and how many in all.
func (w *world) heads(chains ...string) (heads []int, all int) {
	for _, chain := range chains {
		blocks := make([]string, 100)
		for i := range blocks {
			blocks[i] = fmt.Sprint(chain, i)
		}
		states := w.states(names.PresenceOptions{}, blocks...)
		heads = append(heads, strings.IndexByte(states, '.'))
		all += strings.Count(states, "m")
	}
	return heads, all
}

// chain stores the first n blocks of a chain, of a page each.
func (w *world) chain(tid uint32, chain string, n int) {
	w.t.Helper()
	for i := range n {
		must(w.t, w.put(tid, fmt.Sprint(chain, i), fill("1p", "x")))
	}
}

// TestBurst shows that of a chain that is stored in one burst the head stays in memory (G8): of 90 blocks in room for
// 60 all but the last, which is the newcomer. The chains of two processes that take turns both keep their heads. A
// pause ends a burst, and so do two seconds: what is stored then is as recent as ever.
func TestBurst(t *testing.T) {
	for _, policy := range []string{"lru", "arc", "mq", "s3fifo"} {
		t.Run(policy, func(t *testing.T) {
			clock := newTestClock()
			begin := func() *world {
				return open(t, shmDir(t), state.Options{CapacityBytes: 60 * page, Policy: policy, BurstGap: 100 * time.Millisecond, Now: clock.now})
			}
			w := begin()
			w.chain(10, "a", 90)
			if heads, all := w.heads("a"); heads[0] != 59 || all != 60 {
				t.Errorf("%d blocks from the head, %d in all", heads[0], all)
			}
			w.close(false)

			w = begin()
			for i := range 45 {
				must(t, w.put(10, fmt.Sprint("a", i), fill("1p", "x")), w.put(20, fmt.Sprint("b", i), fill("1p", "x")))
			}
			if heads, all := w.heads("a", "b"); heads[0]+heads[1] < 58 || all != 60 {
				t.Errorf("two processes: %d blocks from the heads, %d in all", heads, all)
			}
			w.close(false)

			w = begin()
			w.chain(10, "a", 40)
			clock.add(time.Second)
			w.chain(10, "b", 40)
			if heads, all := w.heads("a", "b"); !slices.Equal(heads, []int{20, 40}) || all != 60 {
				t.Errorf("after a pause: %d blocks from the heads, %d in all", heads, all)
			}
			w.close(false)

			w = begin()
			for i := range 90 {
				must(t, w.put(10, fmt.Sprint("a", i), fill("1p", "x")))
				clock.add(50 * time.Millisecond)
			}
			if heads, all := w.heads("a"); heads[0] != 11 && policy == "lru" || all != 60 {
				t.Errorf("bursts of two seconds: %d blocks from the head, %d in all", heads[0], all)
			}
			w.close(false)
		})
	}
}

// TestBurstLooked shows that blocks that a process looks up, by name or in lists, have their places in its burst, in
// whatever order its threads read them then. They are no longer the first to go.
func TestBurstLooked(t *testing.T) {
	chain := make([]string, 40)
	for i := range chain {
		chain[i] = fmt.Sprint("a", i)
	}
	for what, look := range map[string]func(w *world){
		"names": func(w *world) {
			for _, name := range chain {
				w.forget(w.found(10, name).ID)
			}
		},
		"lists": func(w *world) {
			o := names.PresenceOptions{Lease: true, By: by(10).User()}
			if got := w.states(o, chain[:20]...) + w.states(o, chain[20:]...); strings.Trim(got, "m") != "" {
				t.Errorf("found %s", got)
			}
		},
	} {
		for _, policy := range []string{"lru", "arc", "mq"} {
			t.Run(what+" "+policy, func(t *testing.T) {
				clock := newTestClock()
				w := open(t, shmDir(t), state.Options{
					CapacityBytes: 60 * page, Policy: policy, BurstGap: 100 * time.Millisecond, LookupLease: -1, Now: clock.now,
				})
				for _, name := range slices.Backward(chain) {
					must(t, w.put(10, name, fill("1p", "x")))
				}
				clock.add(time.Second)
				w.chain(10, "b", 20)
				clock.add(time.Second)
				look(w)
				if policy == "lru" {
					for _, i := range []int{3, 1, 2, 0} {
						must(t, w.reading(10, chain[i]).close())
					}
				}
				clock.add(time.Second)
				w.chain(10, "c", 25)
				if heads, all := w.heads("a", "b"); heads[0] != 35 || heads[1] != 0 || all != 35 {
					t.Errorf("%d blocks from the heads, %d in all", heads, all)
				}
				w.close(false)
			})
		}
	}
}

// ordered is a tier that notes which blocks it was told to have been read, in their order, and the bursts of those that
// it has stored.
type ordered struct {
	*tiertest.Reference
	sync.Mutex
	keys   []string
	bursts map[string]uint16
}

func newOrdered(t *testing.T, o tiertest.ReferenceOptions) *ordered {
	return &ordered{Reference: tiertest.NewReference(t, o), bursts: map[string]uint16{}}
}

// Touch implements driver.Tier.
func (o *ordered) Touch(keys []block.Key) {
	o.Reference.Touch(keys)
	o.Lock()
	defer o.Unlock()
	for _, k := range keys {
		o.keys = append(o.keys, string(k.Hash))
	}
}

// touched returns the blocks that it was told to have been read.
func (o *ordered) touched() string {
	o.Lock()
	defer o.Unlock()
	return fmt.Sprint(o.keys)
}

// Store implements driver.Tier.
func (o *ordered) Store(job *driver.Job) {
	o.Lock()
	for i := range job.Blocks {
		o.bursts[string(job.Blocks[i].Key.Hash)] = job.Blocks[i].Burst
	}
	o.Unlock()
	o.Reference.Store(job)
}

// TestBurstTold shows that a tier knows the bursts of what it stores. It hears of the reads of a burst when the burst is
// over, the last block first, and of two that took turns in the order of each.
func TestBurstTold(t *testing.T) {
	clock := newTestClock()
	told := newOrdered(t, tiertest.ReferenceOptions{})
	o := state.Options{BurstGap: 100 * time.Millisecond, Now: clock.now, Secondaries: []state.SecondaryOptions{{Tier: told}}}
	w := openLower(t, shmDir(t), o, told.Reference)
	must(t, w.mkdir("g"))
	turns := []struct {
		tid  uint32
		name string
	}{{10, "g/a"}, {20, "g/x"}, {10, "g/b"}, {20, "g/y"}, {10, "g/c"}}
	for _, b := range turns {
		must(t, w.put(b.tid, b.name, fill("1p", "x")))
	}
	w.quiesce()
	told.Lock()
	b := told.bursts
	if b["a"] == 0 || b["a"] != b["b"] || b["b"] != b["c"] || b["x"] == 0 || b["x"] != b["y"] || b["x"] == b["a"] {
		t.Errorf("stored in bursts %v", b)
	}
	told.Unlock()
	clock.add(time.Second)
	for _, b := range turns {
		must(t, w.reading(b.tid, b.name).close())
	}
	w.e.TellTouched()
	if got := told.touched(); got != "[]" {
		t.Errorf("told of %s while the bursts go on", got)
	}
	clock.add(time.Second)
	w.e.TellTouched()
	eventually(t, "the tier is told", func() bool { return len(strings.Fields(told.touched())) == 5 })
	if got := told.touched(); got != "[c y b x a]" {
		t.Errorf("told of %s", got)
	}
	w.end()
}
