package peer

import (
	"context"
	"sync"
	"testing"

	"github.com/kvfs/kvfs/tiers"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/tiertest/suite"
)

// conformTier stands in for the engine above a Tier. It holds the stored blocks, so that peers can
// fetch them. If the suite reuses a version number after a removal, it takes a higher one.
type conformTier struct {
	*Tier
	engine *stubEngine
	mu     sync.Mutex
	raised map[block.Key]uint64
	copies int64 // of each block
}

var _ driver.Remote = (*conformTier)(nil)

func (c *conformTier) Store(job *driver.Job) {
	for i := range job.Blocks {
		tr := &job.Blocks[i]
		c.mu.Lock()
		tr.Attrs.Seq += c.raised[tr.Key]
		c.mu.Unlock()
		data := content(tr.File)
		h := tiers.Holding{Path: tr.Key.Path(), Seq: tr.Attrs.Seq, Mode: modeRegular | tr.Attrs.Mode}
		c.engine.put(h, data[:max(0, min(int64(len(data)), tr.Size))])
	}
	c.Tier.Store(job)
}

// Stats counts each block once, not each copy.
func (c *conformTier) Stats() driver.Stats {
	s := c.Tier.Stats()
	s.Blocks /= c.copies
	return s
}

func (c *conformTier) Remove(keys []block.Key) int {
	c.mu.Lock()
	for _, key := range keys {
		c.raised[key] += 1 << 20
	}
	c.mu.Unlock()
	return c.Tier.Remove(keys)
}

// TestConformance runs the suite of all tiers over two and three peers, whose copies come and go
// with the jobs (A31 to A34).
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name            string
		peers, replicas int
		hedge           float64
	}{{"two peers", 2, 1, 0}, {"three peers, two replicas, hedged", 3, 2, 0.9}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			far := map[driver.Tier][]*farPeer{}
			open := func(t *testing.T) driver.Tier {
				n := newStubNode()
				o := testOptions(n)
				o.Replicas, o.HedgeQuantile = c.replicas, c.hedge
				tier := openStub(t, n, o, realClock)
				ct := &conformTier{Tier: tier, engine: newStubEngine(), raised: map[block.Key]uint64{}, copies: int64(c.replicas)}
				var list []*farPeer
				for i := range c.peers {
					p := n.addPeer(string(rune('a' + i)))
					p.near = &backend{tier}
					list = append(list, p)
				}
				must(t, tier.start(ct.engine, newStubEvents()))
				mu.Lock()
				defer mu.Unlock()
				far[ct] = list
				return ct
			}
			opts := suite.Options{Corrupt: func(t *testing.T, tier driver.Tier, key block.Key) {
				mu.Lock()
				defer mu.Unlock()
				for _, p := range far[tier] {
					p.corrupt(key.Path())
				}
			}}
			if c.replicas > 1 {
				opts.Corrupt = nil // each copy is counted
			}
			suite.Run(t, open, opts)
		})
	}
}

// TestCloseLeaves shows that Close leaves the cluster and closes the node, whether it was started
// or not.
func TestCloseLeaves(t *testing.T) {
	for _, started := range []bool{false, true} {
		n := newStubNode()
		tier := openStub(t, n, testOptions(n), stillClock())
		if started {
			must(t, tier.start(newStubEngine(), newStubEvents()))
		}
		must(t, tier.Close(context.Background()))
		if n.left != started || !n.closed {
			t.Errorf("started %v: left %v, closed %v", started, n.left, n.closed)
		}
		if err := tier.start(newStubEngine(), newStubEvents()); err == nil {
			t.Errorf("started %v: Start after Close: want an error", started)
		}
	}
}
