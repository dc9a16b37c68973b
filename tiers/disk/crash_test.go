package disk

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/directio/faultio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/driver"
)

// powerCut is a rule after which nothing reaches the device from its nth write on;
// that one may be torn.
type powerCut struct {
	mu    sync.Mutex
	at    int
	torn  bool
	count int
	cut   bool
}

func (p *powerCut) rule(c faultio.Call) faultio.Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Kind == directio.Write {
		if p.count++; p.count == p.at {
			p.cut = true
			return faultio.Fault{Torn: p.torn, Drop: !p.torn}
		}
	}
	switch {
	case !p.cut || c.Kind == directio.Read:
		return faultio.Fault{}
	case c.Kind == directio.Sync:
		return faultio.Fault{Err: syscall.EIO} // so that nobody is told of a sync that was not
	}
	return faultio.Fault{Drop: true}
}

// crashRun is one history that ends in a power cut.
type crashRun struct {
	*rig
	t       *testing.T
	rng     *rand.Rand
	host    *accountHost
	content map[uint64][]byte             // by checksum, of all that was ever stored
	ever    map[block.Key]map[uint64]bool // the checksums that a key ever had
	now     map[block.Key]uint64          // what the tier said it has
	synced  map[block.Key]uint64          // as of the last Sync; 0: removed
	touched map[block.Key]bool            // changed since that Sync began
	seq     uint64
	keys    int
	size    func() int // of the next block
}

// TestCrash stops the device at a random write of a random history, sometimes in the
// middle of a page run, and opens what is there. Whatever loads is byte-exact and was
// at some time stored under that name; what a Sync had confirmed is there, unless it was
// changed or evicted since; what was removed before a Sync does not come back.
func TestCrash(t *testing.T) { crashRounds(t, 10) }

func TestCrashLong(t *testing.T) { crashRounds(t, 60) }

func crashRounds(t *testing.T, rounds int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			t.Parallel()
			crashOnce(t, rand.New(rand.NewPCG(seed, uint64(round))))
		})
	}
}

func newCrashRun(t *testing.T, rng *rand.Rand) *crashRun {
	return &crashRun{
		t: t, rng: rng, host: newHost(), seq: 1, keys: 40,
		content: map[uint64][]byte{}, ever: map[block.Key]map[uint64]bool{},
		now: map[block.Key]uint64{}, synced: map[block.Key]uint64{}, touched: map[block.Key]bool{},
		size: func() int {
			if rng.IntN(20) == 0 {
				return largeBytes + rng.IntN(1000)
			}
			return 1 + rng.IntN(30_000)
		},
	}
}

func crashOnce(t *testing.T, rng *rand.Rand) {
	devices := 1 + rng.IntN(2)
	c := newCrashRun(t, rng)
	c.rig = newRig(t, devices, 24*(8+rng.Int64N(40))*format.PageBytes, func(o *Options) { o.Policy = []string{"lru", "s3fifo", "arc"}[rng.IntN(3)] })
	c.SetHost(c.host)
	p := &powerCut{at: 1 + rng.IntN(250), torn: rng.IntN(2) == 0}
	if devices == 1 || rng.IntN(2) == 0 {
		c.engine(rng.IntN(devices)).SetRule(p.rule)
	} else {
		c.rule(p.rule)
	}
	steps := 0
	for ; steps < 400 && !p.done(); steps++ {
		c.step()
	}
	next := c.crash(t)
	c.check(next)
}

func (p *powerCut) done() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cut
}

func (c *crashRun) key() block.Key { return keyOf(fmt.Sprint(c.rng.IntN(c.keys))) }

func (c *crashRun) step() {
	switch n := c.rng.IntN(100); {
	case n < 60:
		c.storeSome()
	case n < 70:
		key := c.key()
		c.renew(key)
		c.Remove([]block.Key{key})
		c.now[key] = 0
	case n < 80:
		c.rename()
	case n < 87:
		key := c.key()
		c.Touch([]block.Key{key})
	case n < 90:
		_ = c.checkpoint() // the power may be gone
	default:
		c.confirm()
	}
}

func (c *crashRun) storeSome() {
	var blocks []stored
	used := map[block.Key]bool{}
	for range 1 + c.rng.IntN(6) {
		key := c.key()
		if used[key] {
			continue
		}
		used[key] = true
		c.seq++
		b := stored{key, c.seq, bytesOf(c.rng.Uint64(), c.size())}
		sum := block.Sum(b.data).Sum
		c.content[sum] = b.data
		c.add(key, sum)
		c.renew(key)
		blocks = append(blocks, b)
	}
	for i, o := range c.store(c.t, blocks...) {
		if o.Status == driver.Stored {
			c.now[o.Key] = block.Sum(blocks[i].data).Sum
		}
	}
}

// renew takes note that what was known of a key is so no longer: neither is what it has, if
// the Host has given leave to evict that, which may be under way.
func (c *crashRun) renew(key block.Key) {
	c.touched[key] = true
	c.host.Lock()
	defer c.host.Unlock()
	if c.host.evicted[key] > 0 {
		delete(c.host.evicted, key)
		delete(c.now, key)
	}
}

func (c *crashRun) add(key block.Key, sum uint64) {
	if c.ever[key] == nil {
		c.ever[key] = map[uint64]bool{}
	}
	c.ever[key][sum] = true
}

func (c *crashRun) rename() {
	from, to := c.key(), c.key()
	c.seq++
	old := c.now[from]
	c.renew(from)
	c.renew(to)
	for sum := range c.ever[from] {
		c.add(to, sum)
	}
	if c.Update(from, to, &driver.Attrs{Seq: c.seq, Mode: 0o600}) { // so it was there still
		c.now[from] = 0
		c.now[to] = old
	}
}

// confirm calls Sync and takes note of what it confirms.
func (c *crashRun) confirm() {
	if err := c.sync(c.t); err != nil {
		return // the power is gone
	}
	clear(c.touched)
	c.host.Lock()
	defer c.host.Unlock()
	clear(c.synced)
	for key, sum := range c.now {
		c.synced[key] = sum
	}
}

// check compares what the next tier has with what it may and must have.
func (c *crashRun) check(next *rig) {
	t := c.t
	have := map[block.Key]driver.Held{}
	_ = next.Blocks(func(h *driver.Held) bool {
		have[h.Key] = *h
		return true
	})
	for key, h := range have {
		if !c.ever[key][h.Sum.Sum] {
			t.Errorf("%v has %v, which was never stored under that name", key, h.Sum)
			continue
		}
		want := c.content[h.Sum.Sum]
		o, data := next.load(t, key, h.Size)
		switch {
		case o.Status == driver.Loaded && string(data) != string(want):
			t.Errorf("%v: wrong bytes", key)
		case o.Status != driver.Loaded && c.synced[key] == h.Sum.Sum && !c.touched[key] && !c.evicted(key):
			t.Errorf("%v was synced and does not load: %v (%v)", key, o.Status, o.Err)
		}
	}
	c.host.Lock()
	defer c.host.Unlock()
	for key, sum := range c.synced {
		h, ok := have[key]
		switch {
		case c.touched[key]:
		case sum == 0 && ok:
			t.Errorf("%v came back although its removal was synced", key)
		case sum != 0 && !ok && c.host.evicted[key] == 0:
			t.Errorf("%v was synced and is gone", key)
		case ok && h.Sum.Sum != sum:
			t.Errorf("%v has another version than was synced", key)
		}
	}
}

// evicted reports whether the Host has let a block go.
func (c *crashRun) evicted(key block.Key) bool {
	c.host.Lock()
	defer c.host.Unlock()
	return c.host.evicted[key] > 0
}
