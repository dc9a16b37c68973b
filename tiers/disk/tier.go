package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/recovery"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/invariant"
)

// Tier is the SSD tier; see the package comment. Methods may be called in parallel.
//
// # Lock order
//
// Tier.mu, then the mutex of a queue, a port, a syncer or a Pool. No two of the latter are held
// together. None is held across I/O, or a call of the Host or of Done. device.marking is, without another lock: those
// wait for it whose write must wait for a mark.
//
// # Decisions
//
//   - Attributes of blocks stay in memory: 20 bytes a block, and one row for each combination of
//     mode, owner and directories. So the index is written, and Blocks answers, without reading
//     the tables again.
//   - One keeper goroutine per device makes all changes to the use of a slot. It writes the headers
//     of removed, evicted and renamed blocks, makes slabs, gives them to other classes, and evicts. So a header never
//     has two writers. Sync waits in the keeper's queue, behind all of these changes.
//   - A store that finds no room waits for the keeper, which gives slots to that store. Another
//     store cannot take what was evicted for it.
//   - Evicted blocks leave the policy before the Host is asked, since no lock may be held then. A
//     block that the Host keeps comes back as just used.
//   - The order of eviction is one for all blocks of a device, whatever their sizes. If the victims are
//     of another class than the block that needs room, free slots gather there. As soon as they
//     are as many as one slab has, that slab is emptied: its blocks move to the free slots of its
//     class. Nothing warm is evicted for it. What is lost to free slots is less than one slab a class,
//     and a device has 64 slabs at least. To evict the coldest slab as a whole instead loses warm
//     blocks, or, if one warm block keeps a slab, leaves a new block size without room. Extents of
//     any size would move nothing, but cut blocks into pieces, and need a new format on disk.
//   - The epoch of a slab is random, at first and after each change of class. So block data that
//     look like slot headers never count as such.
//   - A slab that changes its class has its used headers freed first, adjacent ones in one write.
//     The new epoch alone would void them. But so Sync needs to know only headers, and a failure
//     half way leaves no block that could come back.
//   - Loads of a block that is still being stored fail with ErrPending rather than wait.
//   - The order of use is not on disk. After a restart the order of the commits stands for it.
//   - A device that went offline stays so until the tier is opened again.
type Tier struct {
	// Constant after Open.
	opts    Options
	log     *zap.Logger
	pool    *directio.Pool
	ownPool bool
	devices []*device
	ctx     context.Context // ends when jobs need not be finished any more
	abort   context.CancelFunc

	close    sync.Once
	closeErr error
	counters counters

	mu struct {
		invariant.Mutex
		slots   *slotmap.Map
		flights map[block.Key]*flight
		host    driver.Host
		jobs    int // accepted and not completed
		closing bool
		idle    chan struct{} // closed when closing and jobs is 0
		budget  budget

		ending    int           // jobs whose Done is being called
		ended     uint64        // jobs whose Done has returned
		endedNext chan struct{} // closed when ended changes; nil: nothing waits
	}
}

var (
	_ driver.Tier       = (*Tier)(nil)
	_ driver.Statser    = (*Tier)(nil)
	_ driver.Enumerator = (*Tier)(nil)
	_ driver.Hosted     = (*Tier)(nil)
	_ driver.Recorder   = (*Tier)(nil)
	_ driver.Syncer     = (*Tier)(nil)
)

// counters are totals since Open.
type counters struct {
	storedBytes, loadedBytes, stored, loaded          atomic.Uint64
	evicted, corrupt, ioErrors, noSpace, budget       atomic.Uint64
	scrubbedBlocks, scrubbedBytes, scrubbedBad, syncs atomic.Uint64
	moved                                             atomic.Uint64
	lastScrubPass                                     atomic.Int64 // Unix seconds
}

// Open opens the directories and reads what they hold. It returns all errors: each violation in
// opts as an ErrInvalid, or for each device that cannot be opened an error with its directory. ctx
// bounds only the opening.
func Open(ctx context.Context, opts Options) (*Tier, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open disk tier: %w", err)
	}
	t := &Tier{opts: opts, log: opts.Logger.With(zap.String("tier", opts.Name)), pool: opts.Pool}
	t.ctx, t.abort = context.WithCancel(context.Background())
	t.mu.slots = slotmap.New()
	t.mu.flights = make(map[block.Key]*flight)
	t.mu.idle = make(chan struct{})
	if t.pool == nil {
		t.ownPool = true
		t.pool, err = directio.NewPool(directio.PoolOptions{SizeBytes: defaultPoolBytes, UsableRatio: 1})
		if err != nil {
			return nil, fmt.Errorf("open disk tier: %w", err)
		}
	}
	var errs []error
	if share := t.pool.BudgetBytes() / int64(len(opts.Devices)); share < port.MinShare {
		errs = append(errs, fmt.Errorf("open disk tier: Pool has %s a device, want %s: %w", format.Size(share), format.Size(port.MinShare), block.ErrInvalid))
	}
	devices, err := t.openDevices(ctx)
	if errs = append(errs, err); errors.Join(errs...) != nil {
		for _, d := range devices {
			if d != nil {
				d.discard()
			}
		}
		if t.ownPool {
			errs = append(errs, t.pool.Close())
		}
		return nil, errors.Join(errs...)
	}
	t.devices = devices
	t.initBudget()
	for _, d := range t.devices {
		d.start()
	}
	return t, nil
}

// ofDir returns an error about a directory, which names it once.
func ofDir(dir string, err error) error {
	_, bad := errors.AsType[*recovery.DirError](err)
	_, busy := errors.AsType[*recovery.BusyError](err)
	_, super := errors.AsType[*recovery.SuperblockError](err)
	_, version := errors.AsType[*format.VersionError](err)
	_, path := errors.AsType[*fs.PathError](err)
	if bad || busy || super || version || path {
		return err
	}
	return fmt.Errorf("%s: %w", dir, err)
}

// openDevices opens all devices at once, since after a crash each of them takes as long as its tables take to read. The
// device of one that fails is nil.
func (t *Tier) openDevices(ctx context.Context) ([]*device, error) {
	devices, errs := make([]*device, len(t.opts.Devices)), make([]error, len(t.opts.Devices))
	var wg sync.WaitGroup
	for i, o := range t.opts.Devices {
		wg.Go(func() {
			d, err := t.openDevice(ctx, i, o)
			if err != nil {
				errs[i] = ofDir(o.Dir, err)
				return
			}
			devices[i] = d
		})
	}
	wg.Wait()
	return devices, errors.Join(errs...)
}

// SetHost sets the Host, which is asked before evictions and told of losses. Call it before any
// job.
func (t *Tier) SetHost(h driver.Host) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.host = h
}

func (t *Tier) host() driver.Host {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.host
}

// fail wraps the kind of an error.
func (t *Tier) fail(op string, key block.Key, err error) error {
	return &block.Error{Op: op, Tier: t.opts.Name, Key: key, Err: err}
}

// online reports whether any device serves.
func (t *Tier) online() bool {
	for _, d := range t.devices {
		if !d.port.IsDown() {
			return true
		}
	}
	return false
}

// Failed implements driver.Failing: a device that went offline stays so.
func (t *Tier) Failed() bool { return !t.online() }

// Lookup answers from memory; see driver.Tier.
func (t *Tier) Lookup(_ context.Context, keys []block.Key, out []driver.Presence) error {
	clear(out)
	if len(keys) != len(out) {
		return t.fail("lookup", block.Key{}, fmt.Errorf("%d keys, room for %d: %w", len(keys), len(out), block.ErrInvalid))
	}
	if len(keys) == 0 {
		return nil
	}
	for i := 0; i < len(keys); i += lockedKeys {
		end := min(i+lockedKeys, len(keys))
		if err := t.lookup(keys[i:end], out[i:end]); err != nil {
			clear(out)
			return t.fail("lookup", block.Key{}, err)
		}
	}
	return nil
}

// lockedKeys is how many keys are handled under one hold of the lock.
const lockedKeys = 512

// lookup fills out for the keys, under one hold of the lock.
func (t *Tier) lookup(keys []block.Key, out []driver.Presence) error {
	online := t.online()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.mu.closing:
		return block.ErrClosed
	case !online:
		return block.ErrUnavailable
	}
	for i := range keys {
		if t.mu.slots.Find(keys[i]) != 0 {
			out[i] = driver.Hit
		} else if t.mu.flights[keys[i]] != nil {
			out[i] = driver.Pending
		}
	}
	return nil
}

// Remove drops the blocks, and cancels stores of them that are under way. The outcome of those is
// Skipped with ErrNotFound.
func (t *Tier) Remove(keys []block.Key) int {
	count := 0
	for part := range slices.Chunk(keys, lockedKeys) {
		count += t.remove(part)
	}
	return count
}

func (t *Tier) remove(keys []block.Key) (count int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closing {
		return 0
	}
	for _, key := range keys {
		if t.dropLocked(key) {
			count++
		}
	}
	return count
}

// dropLocked drops a block and cancels its stores. It reports whether the block was held. It needs
// t.mu.
func (t *Tier) dropLocked(key block.Key) bool {
	t.cancelLocked(t.mu.flights[key])
	delete(t.mu.flights, key)
	id := t.mu.slots.Find(key)
	if id != 0 {
		t.mu.slots.GiveUp(id)
	}
	return id != 0
}

// Touch marks the blocks as recently used.
func (t *Tier) Touch(keys []block.Key) {
	for part := range slices.Chunk(keys, lockedKeys) {
		t.touch(part)
	}
}

func (t *Tier) touch(keys []block.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closing {
		return
	}
	for _, key := range keys {
		if id := t.mu.slots.Find(key); id != 0 {
			t.mu.slots.Touch(id)
		}
	}
}

// KeepsUser implements driver.UserKeeper.
func (t *Tier) KeepsUser() {}

// Update renames a block and gives it new attributes; see driver.Recorder. It also applies to a
// store of the block that is under way.
func (t *Tier) Update(from, to block.Key, a *driver.Attrs) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.closing {
		return false
	}
	id, f := t.mu.slots.Find(from), t.mu.flights[from]
	if f != nil && f.rec.Seq != a.Seq {
		f = nil
	}
	if id == 0 && f == nil || a.Seq == 0 {
		return false
	}
	if format.Check(to.Path(), a.User) != nil {
		// Renamed even so: the old name must not find it.
		t.dropLocked(from)
		return false
	}
	if from != to {
		t.dropLocked(to)
	}
	if f != nil {
		t.updateFlightLocked(f, from, to, a)
	}
	if id != 0 {
		t.mu.slots.Update(id, to, a)
	}
	return true
}

// Blocks calls fn for each block held; see driver.Enumerator. It may miss or see changes made
// meanwhile.
func (t *Tier) Blocks(fn func(h *driver.Held) bool) error {
	lists, stop := make(chan []driver.Held, 2), make(chan struct{})
	defer close(stop)
	go func() { // prepares the next chunk while fn uses the last; ends no later than Blocks
		defer close(lists)
		for i := 0; ; i++ {
			list, more := t.heldOf(i)
			if !more {
				return
			}
			select {
			case lists <- list:
			case <-stop:
				return
			}
		}
	}()
	for list := range lists {
		for j := range list {
			if !fn(&list[j]) {
				return nil
			}
		}
	}
	return nil
}

// heldOf returns the blocks in part i of the slot map.
func (t *Tier) heldOf(i int) (list []driver.Held, more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.slots.Held(i)
}

// Close finishes the accepted jobs. When ctx is done, it fails the unfinished ones with ErrClosed.
// It then writes what is left and the indexes, and unlocks the directories. It returns the errors
// of devices that were not closed cleanly. Such a device recovers by the tables of the slabs that have changed. If a device does
// not answer, its memory is leaked. A second call waits for the first.
func (t *Tier) Close(ctx context.Context) error {
	t.close.Do(func() { t.closeErr = t.shutdown(ctx) })
	return t.closeErr
}

func (t *Tier) shutdown(ctx context.Context) error {
	t.mu.Lock()
	t.mu.closing = true
	if t.mu.jobs == 0 {
		close(t.mu.idle)
	}
	t.mu.Unlock()
	select {
	case <-t.mu.idle:
	case <-ctx.Done():
		t.abortJobs()
	}
	t.abort()
	errs := make([]error, len(t.devices))
	var wg sync.WaitGroup
	for i, d := range t.devices {
		wg.Go(func() { errs[i] = d.close(ctx) })
	}
	wg.Wait()
	if errors.Join(errs...) == nil {
		t.mu.Lock()
		t.mu.slots.Reset()
		t.mu.Unlock()
	}
	if t.ownPool {
		errs = append(errs, t.pool.Close())
	}
	return errors.Join(errs...)
}

// abortJobs fails all unfinished jobs with ErrClosed, and waits until no file is in use. It tries
// blocks whose file was in use again, since their worker may wait for the device next.
func (t *Tier) abortJobs() {
	t.abort()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, d := range t.devices {
			d.failTasks(block.ErrClosed)
		}
		select {
		case <-t.mu.idle:
			return
		case <-tick.C:
		}
	}
}
