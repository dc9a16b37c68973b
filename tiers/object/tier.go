package object

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/object/catalog"
	"github.com/kvfs/kvfs/tiers/object/pack"
)

// Tier is a driver.Tier over a Bucket.
type Tier struct {
	o       Options // constant after New
	bucket  Bucket
	catalog *catalog.Catalog
	queue   *queue
	budget  *budget             // of stores
	rewrite *budget             // of blocks written anew
	packs   buffers             // of packs being built
	loads   *semaphore.Weighted // bytes of loads under way

	readOnly atomic.Bool            // Options.ReadOnly, or the credentials have no right to write
	learned  atomic.Bool            // the first listing is complete
	whole    atomic.Int64           // when the last complete listing began, nanoseconds since the epoch
	newest   atomic.Int64           // time in the name of the latest object that was listed
	highest  atomic.Uint64          // seq of the latest version that was seen
	last     atomic.Int64           // time in the name of the latest object of this process
	answered atomic.Uint64          // calls of the store that it answered
	fault    atomic.Pointer[string] // what the store failed with, and has not worked since; nil: it works

	buried   sync.Map // tombstones that were read: pack.Name to true
	suspects sync.Map // packs of which a block arrived damaged: pack.Name to true
	ignored  sync.Map // objects whose index or list is damaged: names to true

	host atomic.Pointer[driver.Host] // nil until SetHost
	work sync.WaitGroup              // jobs, packs being written, and the goroutines of New
	end  func() error                // Close, once
	late context.Context
	stop context.CancelFunc // ends late
	life context.Context    // of learning, evicting and rewriting
	rest context.CancelFunc // ends life

	mu struct {
		sync.Mutex
		closed  bool
		flights map[block.Key]*flight // the last Store of each key that is under way
		tombs   []pack.Tomb           // not in the bucket yet
		asked   version               // not in the catalog while evict asks the engine for it
		stats   driver.Stats
	}
}

// version is one version of a block.
type version struct {
	path string
	seq  uint64
}

var (
	_ driver.Tier    = (*Tier)(nil)
	_ driver.Finder  = (*Tier)(nil)
	_ driver.Hosted  = (*Tier)(nil)
	_ driver.Packer  = (*Tier)(nil)
	_ driver.Statser = (*Tier)(nil)
)

// New returns a tier, and begins to learn what the bucket has. It does not wait for the store.
func New(o Options) (*Tier, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	t := &Tier{
		o: o, bucket: o.Bucket, catalog: catalog.New(catalog.Options{Now: o.Now}),
		queue:   &queue{below: o.PackBelow, linger: o.Linger, wake: make(chan struct{}, 1)},
		budget:  &budget{limit: o.BudgetBytes, now: o.Now},
		rewrite: &budget{limit: o.RewriteBytes, now: o.Now},
		loads:   semaphore.NewWeighted(o.LoadBytes),
	}
	t.mu.flights = map[block.Key]*flight{}
	t.readOnly.Store(o.ReadOnly)
	t.late, t.stop = context.WithCancel(context.Background())
	t.life, t.rest = context.WithCancel(t.late)
	t.end = sync.OnceValue(t.finish)
	t.work.Go(t.dispatch) // ends when the queue is closed and empty
	t.work.Go(t.learn)    // ends with life
	t.work.Go(t.bury)     // ends with life
	return t, nil
}

// SetHost implements driver.Hosted.
func (t *Tier) SetHost(h driver.Host) { t.host.Store(&h) }

// Lookup implements driver.Tier.
func (t *Tier) Lookup(_ context.Context, keys []block.Key, out []driver.Presence) error {
	clear(out)
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	switch {
	case t.mu.closed:
		err = block.ErrClosed
	case len(keys) != len(out):
		err = block.ErrInvalid
	case !t.bucket.Available():
		err = block.ErrUnavailable
	}
	if err != nil {
		return &block.Error{Op: "lookup", Tier: t.o.Name, Err: err}
	}
	for i, key := range keys {
		if _, has := t.catalog.Get(key); has {
			out[i] = driver.Hit
		} else if t.mu.flights[key] != nil {
			out[i] = driver.Pending
		}
	}
	return nil
}

// Types of files, as in st_mode.
const (
	modeFile = 0o100000
	modeDir  = 0o040000
)

// Find implements driver.Finder.
func (t *Tier) Find(path string) (driver.Located, bool) {
	if !t.bucket.Available() {
		return driver.Located{}, false
	}
	key, err := block.ParseKey(path)
	if err != nil {
		return driver.Located{}, false
	}
	if r, has := t.catalog.Get(key); has {
		return driver.Located{Seq: r.Seq, Size: r.Size, Mode: modeFile | r.Mode, UID: r.UID, GID: r.GID, Mtime: int64(r.Seq), Expires: r.Expires}, true
	}
	if d, has := t.catalog.Dir(path); has {
		return driver.Located{Seq: t.highest.Load(), Mode: modeDir | d.Mode, UID: d.UID, GID: d.GID, Mtime: int64(t.highest.Load())}, true
	}
	return driver.Located{}, false
}

// PackBytes implements driver.Packer: blocks for one pack while another one is written.
func (t *Tier) PackBytes() int64 { return 2 * pack.MaxFrames }

// Remove implements driver.Tier.
func (t *Tier) Remove(keys []block.Key) (held int) {
	now := t.o.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closed {
		return 0
	}
	for _, key := range keys {
		seq := uint64(0)
		if f := t.mu.flights[key]; f != nil {
			f.void = true
			delete(t.mu.flights, key)
			seq = f.block().Attrs.Seq
		}
		path := key.Path()
		r, has := t.catalog.Get(key)
		if t.mu.asked.path == path {
			r.Seq, has = max(r.Seq, t.mu.asked.seq), true
		}
		if has {
			held++
			seq = max(seq, r.Seq)
		}
		if seq > 0 {
			until := now.Add(t.o.TombstoneTTL).UnixNano()
			// Who writes its pack anew may have found the block after the first tick, and gives it a later time. It has
			// done so before the second one.
			t.catalog.Remove(path, seq, t.tick(), until)
			t.catalog.Remove(path, seq, t.tick(), until)
			t.mu.tombs = append(t.mu.tombs, pack.Tomb{Path: path, Seq: seq, Expires: until})
		}
	}
	return held
}

// Touch implements driver.Tier. Packs go by age, so it does nothing.
func (t *Tier) Touch([]block.Key) {}

// Close implements driver.Tier. It writes the packs and tombstones that wait, as long as ctx, and as the store answers.
func (t *Tier) Close(ctx context.Context) error {
	t.mu.Lock()
	t.mu.closed = true
	t.mu.Unlock()
	t.rest()
	t.queue.close()
	defer context.AfterFunc(ctx, t.stop)()
	ended := make(chan struct{})
	defer close(ended)
	go t.stopWhenAway(ended) // ends with this call
	return t.end()
}

// awayAfter is how long Close waits for an answer of the store. Nothing depends on Close: the engine has the blocks.
const awayAfter = 500 * time.Millisecond

// stopWhenAway ends what is under way when the store has not answered for awayAfter.
func (t *Tier) stopWhenAway(ended <-chan struct{}) {
	tick := time.NewTicker(awayAfter)
	defer tick.Stop()
	for before := t.answered.Load(); ; {
		select {
		case <-ended:
			return
		case <-tick.C:
		}
		now := t.answered.Load()
		if now == before {
			t.stop()
			return
		}
		before = now
	}
}

// finish waits for what is under way, and closes the bucket.
func (t *Tier) finish() error {
	t.work.Wait()
	t.writeTombs(t.late) // those that waited for stores
	t.stop()
	return t.bucket.Close()
}

// Detail is what Stats adds about a bucket.
type Detail struct {
	Learned    bool   `json:"listed" help:"the whole bucket was listed once"`
	ReadOnly   bool   `json:"read_only" help:"this node stores nothing, as configured or because the credentials do not allow it"`
	Packs      int64  `json:"packs" help:"objects with blocks below the prefix"`
	LiveBytes  int64  `json:"live_bytes" help:"bytes of blocks that count; the rest are removed and replaced ones, and what is around blocks"`
	IndexBytes int64  `json:"index_bytes" help:"memory of the index of all blocks"`
	Tombstones int64  `json:"tombstones" help:"removals that are remembered"`
	Rewritten  uint64 `json:"rewritten_bytes" help:"bytes written anew to free the space of dead blocks"`
	Client     any    `json:"client"` // Bucket.Stats
}

// Stats implements driver.Statser.
func (t *Tier) Stats() driver.Stats {
	t.mu.Lock()
	s := t.mu.stats
	t.mu.Unlock()
	c := t.catalog.Stats()
	s.CapacityBytes, s.UsedBytes, s.Blocks = t.o.CapacityBytes, c.PackedBytes, c.Blocks
	s.State = "online"
	switch fault := t.fault.Load(); {
	case !t.bucket.Available():
		s.State, s.Reason = "offline", "the object store does not answer"
	case fault != nil:
		s.State, s.Reason = "degraded", *fault
	case t.readOnly.Load() && !t.o.ReadOnly:
		s.State, s.Reason = "degraded", "the credentials do not allow to write"
	}
	s.Detail = Detail{
		Learned: t.learned.Load(), ReadOnly: t.readOnly.Load(), Packs: c.Packs, LiveBytes: c.LiveBytes, IndexBytes: c.TableBytes + c.PackBytes + c.DirBytes + c.TombBytes,
		Tombstones: c.Tombs, Rewritten: t.rewrite.used.Load(), Client: t.bucket.Stats(),
	}
	return s
}

// kind gives an error of the bucket its kind. Whatever ends with late is ErrClosed.
func (t *Tier) kind(err error) error {
	switch {
	case err == nil:
		t.answered.Add(1)
		t.fault.Store(nil)
		return nil
	case t.late.Err() != nil:
		return errors.Join(block.ErrClosed, err)
	case errors.Is(err, block.ErrReadOnly):
		t.cannotWrite(err)
		return err
	case errors.Is(err, block.ErrNotFound), errors.Is(err, block.ErrUnavailable), errors.Is(err, block.ErrTooLarge):
		return err
	}
	return errors.Join(block.ErrUnavailable, err)
}

// budget bounds bytes in a day.
type budget struct {
	limit int64 // 0: none
	now   func() time.Time
	used  atomic.Uint64 // since the tier was made

	mu struct {
		sync.Mutex
		day   time.Time // when the present day began
		spent int64
	}
}

// take reports whether n more bytes may be written today, and counts them. With force they may.
func (b *budget) take(n int64, force bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now := b.now(); now.Sub(b.mu.day) >= 24*time.Hour || now.Before(b.mu.day) {
		b.mu.day, b.mu.spent = now, 0
	}
	if b.limit > 0 && b.mu.spent+n > b.limit && !force {
		return false
	}
	b.mu.spent += n
	b.used.Add(uint64(n))
	return true
}

// buffers keeps some buffers for packs.
type buffers struct{ pool sync.Pool }

// get returns an empty buffer with room for n bytes.
func (b *buffers) get(n int64) []byte {
	if p, _ := b.pool.Get().(*[]byte); p != nil && int64(cap(*p)) >= n {
		return (*p)[:0]
	}
	return make([]byte, 0, n)
}

func (b *buffers) put(p []byte) { b.pool.Put(&p) }
