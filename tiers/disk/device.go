package disk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/durable"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/recovery"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
)

const (
	maxDevices = 64
	// loadWorkers and storeWorkers are how many tasks of each kind a device has
	// under way, at most.
	loadWorkers  = 12
	storeWorkers = 8
	// closeGrace is how long Close waits for a device that still answers, after its
	// context is done.
	closeGrace = time.Second
)

// device is one directory and all that serves it. It joins its parts, which do not know it, but call
// some of its methods: the syncer three (durable.Medium), headers and the keeper one each (try, do),
// and port wentDown, once.
//
//	root     the directory: its lock and its superblock
//	port     I/O, and whether the device is in use
//	space    slabs, size classes and numbers, against the capacity
//	headers  the headers that are to be written
//	syncer   what is to be made durable, and the calls of Sync
//	keeper   room for stores: slabs, eviction
//	queue    the tasks of the workers
//
// Its own methods need several parts: to store and load (store.go, load.go).
type device struct {
	// Constant after Open.
	tier        *Tier
	dir         string
	root        *recovery.Dir
	uuid        format.UUID
	capacity    int64
	fits        int64 // what the file system could hold of the capacity at open
	recoveredIn time.Duration
	port        *port.Port
	syncer      *durable.Syncer[*flight]
	headers     *headers
	staging     port.Staging
	queue       queue

	keeper *keeper

	starting   atomic.Int64 // bytes that startLoad has under way
	sinceIndex atomic.Int64 // bytes written since the last checkpoint

	marking sync.Mutex // held across I/O: those wait for it who have to wait for a mark

	marks    sync.WaitGroup // calls of markSlab, which a device that is down leaves behind
	workers  sync.WaitGroup
	lostDone atomic.Bool // the Host knows all blocks that were lost with the device

	// mu is guarded by Tier.mu.
	mu struct {
		space   *slotmap.Space
		written int64 // bytes on the day of Tier.mu.budget
	}
}

// openDevice opens the directory of device i and reads what it holds into memory.
func (t *Tier) openDevice(ctx context.Context, i int, o DeviceOptions) (_ *device, err error) {
	d := &device{tier: t, dir: o.Dir, capacity: o.CapacityBytes}
	wake := make(chan struct{}, 1) // of the keeper
	d.queue.init()
	defer func() {
		if err != nil {
			d.discard()
		}
	}()
	if d.staging, err = port.NewStaging(t.pool, len(t.opts.Devices)); err != nil {
		return nil, err
	}
	slabBytes := slabBytesFor(t.opts.SlabBytes, o.CapacityBytes)
	d.root, err = recovery.Open(o.Dir, recovery.Options{
		Create: true, SlabBytes: slabBytes, AllowTmpfs: t.opts.AllowTmpfs, Logger: t.log,
		RequireMount: t.opts.RequireMount, StateDir: t.opts.StateDir,
	})
	if err != nil {
		return nil, err
	}
	engine, err := t.opts.Engine(ctx, o.Dir)
	if err != nil {
		return nil, err
	}
	d.port = port.New(engine, t.opts.StuckTimeout, &t.counters.ioErrors, d.wentDown)
	d.syncer = durable.New[*flight](d, durable.Options{
		Bytes: t.opts.SyncBytes, Every: t.opts.SyncInterval, Down: d.port.Down, Keeper: wake,
		Logger: t.log.With(zap.String("device", d.dir)),
	})
	d.uuid = d.root.Superblock().UUID
	d.mu.space = slotmap.NewSpace(slotmap.SpaceOptions{
		Device: i, Down: d.port.IsDown, Wake: func() { kick(wake) },
		UUID: d.uuid, Capacity: d.capacity, SlabBytes: slabBytes, Policy: t.opts.Policy,
	})
	if d.headers, err = newHeaders(t, d.mu.space, d.port, d.try); err != nil {
		return nil, err
	}
	d.keeper = newKeeper(d, wake)
	if err := d.recover(ctx); err != nil {
		return nil, err
	}
	if err := d.shrink(); err != nil {
		return nil, err
	}
	return d, d.measure()
}

// do passes ops to the engine, then counts the bytes written and the failures. slabs are those that
// ops write to.
func (d *device) do(ops []directio.Op, slabs ...*slotmap.Slab) error {
	err := d.try(ops, slabs...)
	for i := range ops {
		if port.OfDevice(ops[i].Err) {
			d.port.Count(ops[i].Err)
		}
	}
	return err
}

// try is do without counting failures. It is for ops that failed and were counted before.
func (d *device) try(ops []directio.Op, slabs ...*slotmap.Slab) error {
	count := func(n int32) {
		for _, s := range slabs {
			s.Writes.Add(n)
		}
	}
	count(+1) // before mark: see settled
	defer count(-1)
	if err := d.mark(slabs); err != nil {
		for i := range ops {
			ops[i].Err = err
		}
		return err
	}
	written, err := d.port.Do(ops)
	for _, s := range slabs {
		s.Sync.Dirty.Store(true)
	}
	if written > 0 {
		d.sinceIndex.Add(written)
		d.tier.spend(d, written)
		d.syncer.Wrote(written)
	}
	return err
}

// measure asks how much room the file system has. If that is less than the capacity, it warns, and
// the device evicts as if the room were the capacity.
func (d *device) measure() error {
	left, err := d.root.FreeBytes()
	if err != nil {
		return err
	}
	d.tier.mu.Lock()
	d.fits = min(d.capacity, d.mu.space.Usage().FileBytes+left)
	d.tier.mu.Unlock()
	if d.fits < d.capacity {
		d.tier.log.Warn("size of the SSD directory is more than its file system has room for: lower the size, or free room there",
			zap.String("device", d.dir), zap.String("size", format.Size(d.capacity)), zap.String("room", format.Size(d.fits)))
	}
	return nil
}

// discard closes a device that was not started.
func (d *device) discard() {
	d.marks.Wait()
	if d.port != nil {
		_ = d.port.Close()
	}
	if d.mu.space != nil {
		for s := range d.mu.space.All() {
			_ = s.File.Close()
		}
	}
	if d.headers != nil {
		_ = d.headers.close()
	}
	_ = d.staging.Close()
	if d.root != nil {
		_ = d.root.Close()
	}
}

// progressSlots is how many blocks recover reads between two calls of Options.Progress.
const progressSlots = 256

// recover fills the tables from the directory.
func (d *device) recover(ctx context.Context) error {
	t := d.tier
	var failed error
	byFound := make(map[*recovery.Slab]*slotmap.Slab)
	slots, seen := 0, 0
	progress := scanned{}
	rec, err := d.root.Recover(ctx, recovery.Funcs{
		Slab: func(found *recovery.Slab) {
			s := &slotmap.Slab{Space: d.mu.space, Path: found.Path, Header: found.SlabHeader, Usable: found.Usable, Size: found.FileBytes}
			s.Changed.Store(true)
			file, err := directio.OpenFile(s.Path, os.O_RDWR, 0)
			if err != nil {
				failed = errors.Join(failed, err)
				return
			}
			s.File = file
			d.syncer.Add(&s.Sync, file)
			t.mu.Lock()
			defer t.mu.Unlock()
			d.mu.space.Found(s.Header.Number, s.Size)
			t.mu.slots.AddSlab(s)
			slots += int(s.Usable)
			t.mu.slots.Reserve(slots)
			byFound[found] = s
		},
		Slot: func(found *recovery.Slab, h *format.SlotHeader) {
			progress.reach(found, h.Slot)
			if seen++; seen%progressSlots == 0 && t.opts.Progress != nil {
				t.opts.Progress(d.dir, min(progress.slots, int64(slots)), int64(slots))
			}
			if s := byFound[found]; s != nil {
				t.mu.Lock()
				defer t.mu.Unlock()
				t.mu.slots.Adopt(s, h)
			}
		},
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	d.recoveredIn = rec.Took
	setAside := make([]int64, len(rec.SetAside)) // sizes
	for i, p := range rec.SetAside {
		t.log.Warn("slab set aside", zap.String("device", d.dir), zap.Uint32("slab", p.Number), zap.Error(p.Err))
		if info, err := os.Stat(p.Path); err == nil {
			setAside[i] = info.Size()
		}
	}
	// The devices recover side by side, and a newer copy on one takes its block from another one.
	t.mu.Lock()
	t.mu.slots.Rank(d.mu.space)
	for i, p := range rec.SetAside {
		d.mu.space.SetAside(p.Number, setAside[i])
	}
	blocks := d.mu.space.Usage().Blocks
	t.mu.Unlock()
	if t.opts.Progress != nil {
		t.opts.Progress(d.dir, int64(slots), int64(slots))
	}
	fields := []zap.Field{
		zap.String("device", d.dir), zap.String("engine", d.port.Engine.Name()), zap.Int64("blocks", blocks),
		zap.Int("slabs", rec.Slabs), zap.Int64("by_index", rec.ByIndex), zap.Duration("took", rec.Took),
	}
	if !d.root.Fresh {
		fields = append(fields, zap.NamedError("index_error", rec.IndexErr))
	}
	t.log.Info("device opened", fields...)
	return d.keepIndex(rec, byFound)
}

// keepIndex has the index stay valid for the slabs that were taken from it, until they change.
func (d *device) keepIndex(rec *recovery.Recovered, byFound map[*recovery.Slab]*slotmap.Slab) error {
	if rec.ByIndex < rec.Blocks/2 {
		d.sinceIndex.Store(math.MaxInt64 / 2) // a checkpoint soon: the next start need not read so many tables
	}
	for found, s := range byFound {
		s.Changed.Store(rec.IndexErr != nil || !found.Indexed())
		s.Sync.Dirty.Store(!found.Indexed()) // an earlier process may not have synced what its table says
	}
	if rec.IndexErr != nil {
		return d.root.MarkDirty()
	}
	return d.root.KeepIndex()
}

// scanned counts the slots that a recovery has come by, slab after slab in any order.
type scanned struct {
	slots int64
	slab  *recovery.Slab
	next  uint32 // slot of slab
}

// reach records that the recovery has come to a used slot.
func (p *scanned) reach(s *recovery.Slab, slot uint32) {
	if p.slab != s {
		if p.slab != nil {
			p.slots += int64(p.slab.Usable - p.next)
		}
		p.slab, p.next = s, 0
	}
	p.slots += int64(slot + 1 - p.next)
	p.next = slot + 1
}

// shrink deletes slabs until the rest fits into the capacity. It starts with the slabs that have
// the fewest pinned blocks, and among them with the emptiest. No caller relies on their blocks yet.
func (d *device) shrink() error {
	t := d.tier
	for {
		t.mu.Lock()
		before := d.mu.space.Over()
		var least *slotmap.Slab
		if before > 0 {
			least = t.mu.slots.ClearLeast(d.mu.space)
		}
		t.mu.Unlock()
		if least == nil {
			return nil
		}
		t.log.Warn("slab deleted: over capacity", zap.String("device", d.dir), zap.Uint32("slab", least.Header.Number))
		d.keeper.deleteSlab(least)
		t.mu.Lock()
		after := d.mu.space.Over()
		t.mu.Unlock()
		if after == before {
			return fmt.Errorf("its files take %s, more than its size of %s, and %s cannot be deleted. Delete it, or raise the size: %w",
				format.Size(d.capacity+before), format.Size(d.capacity), least.Path, block.ErrNoSpace)
		}
	}
}

// start starts the goroutines of a device. close ends them.
func (d *device) start() {
	for range loadWorkers {
		d.workers.Go(d.workLoads)
	}
	for range storeWorkers {
		d.workers.Go(d.workStores)
	}
	go d.keeper.keep() // ends with keeper.stop, or when the port is down
	go d.syncer.Run()  // ends with syncer.close
	go d.port.Watch()  // ends with port.close
	d.workers.Go(d.runCheckpoints)
	if d.tier.opts.ScrubBytesPerSecond > 0 {
		c := &scrubber{tier: d.tier, space: d.mu.space, port: d.port, staging: &d.staging, do: d.do, try: d.try}
		d.workers.Go(c.run)
	}
	kick(d.keeper.wake) // headers of second copies may be waiting
}

// wentDown is called by port when the device goes offline. Everything that waits for the device
// fails. The Host is told that the blocks are gone.
func (d *device) wentDown(reason string) {
	d.tier.log.Error("device offline", zap.String("device", d.dir), zap.String("reason", reason))
	d.failTasks(block.ErrUnavailable)
	d.syncer.End(block.ErrUnavailable)
	d.lostAll()
	d.lostDone.Store(true)
}

// lostAll tells the Host that all blocks of a device are gone, and forgets them. It runs once,
// after the device went down.
func (d *device) lostAll() {
	t := d.tier
	t.mu.Lock()
	host := t.mu.host
	slabs := d.mu.space.ByNumber()
	t.mu.Unlock()
	for _, s := range slabs {
		t.mu.Lock()
		keys := t.mu.slots.Forget(s)
		t.mu.Unlock()
		for _, key := range keys {
			if host != nil {
				host.Lost(key, block.ErrUnavailable)
			}
		}
	}
}

// close ends a device after all its jobs have completed. Recovery finds later what close cannot
// write.
func (d *device) close(ctx context.Context) error {
	ctx, cancel := withGrace(ctx, closeGrace)
	defer cancel()
	defer d.port.Settle() // wentDown uses the tables and calls the Host
	d.queue.close()
	finished := make(chan error, 1)
	go func() { finished <- d.finish() }() // leaked if the device does not answer
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-finished:
			return err
		case <-d.port.Down:
			// A worker may be in the kernel for ever, so its memory is leaked.
			select {
			case err := <-finished:
				return err
			case <-time.After(50 * time.Millisecond):
			}
			d.port.Leave()
			return d.closeError(block.ErrUnavailable)
		case <-ctx.Done():
			d.port.Fail("did not answer when the tier was closed")
			return d.closeError(ctx.Err())
		case <-tick.C:
		}
	}
}

func (d *device) closeError(err error) error {
	return &block.Error{Op: "close", Tier: d.tier.opts.Name, Err: fmt.Errorf("device %s was left behind: %w", d.dir, err)}
}

// finish writes what is left and the index, and frees everything.
func (d *device) finish() error {
	d.workers.Wait()
	close(d.keeper.stop)
	<-d.keeper.gone
	d.syncer.Close()
	var err error
	if !d.port.IsDown() {
		d.headers.retry(true)
		err = d.headers.flush()
		if e := d.syncer.Flush(); err == nil {
			err = e
		}
		d.syncer.End(err)
		if err == nil {
			err = d.writeIndex()
		}
	}
	return errors.Join(err, d.freeAll())
}

// freeAll closes the engine, the files and the lock, once no mark uses them.
func (d *device) freeAll() error {
	d.marks.Wait()
	err := d.port.Close()
	for s := range d.mu.space.All() {
		err = errors.Join(err, s.File.Close())
	}
	return errors.Join(err, d.headers.close(), d.staging.Close(), d.root.Close())
}

// writeIndex saves the index. All slabs must be durable before.
func (d *device) writeIndex() error {
	t := d.tier
	if err := t.saveBudget(d); err != nil {
		return err
	}
	t.mu.Lock()
	slabs := d.mu.space.ByNumber()
	t.mu.Unlock()
	return d.root.SaveIndex(func(w *recovery.IndexWriter) error {
		for _, s := range slabs {
			w.Slab(&s.Header)
			t.mu.Lock()
			list := t.mu.slots.Headers(s)
			t.mu.Unlock()
			for i := range list {
				w.Slot(&list[i])
			}
		}
		if d.port.IsDown() {
			return block.ErrUnavailable // blocks may have been forgotten meanwhile
		}
		return nil
	})
}

// withGrace returns a context that ends with ctx, but not before some grace has passed.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(grace, cancel)
		context.AfterFunc(out, func() { timer.Stop() })
	})
	return out, func() { stop(); cancel() }
}
