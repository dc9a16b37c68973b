package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
)

const (
	maxDevices = 64
	// loadWorkers and storeWorkers are how many tasks of each kind a device has
	// under way. See BenchmarkLoad and BenchmarkStore.
	loadWorkers  = 16
	storeWorkers = 8
	// A device that has failed so many operations within errorWindow goes offline.
	maxErrors   = 10
	errorWindow = time.Minute
	// closeGrace is how long Close waits for a device that still answers, after its
	// context is done.
	closeGrace = time.Second
)

// device is one directory and its engine. Fields below the line are guarded by
// Tier.mu.
type device struct {
	// Constant after Open.
	tier      *Tier
	dir       string
	home      *directory
	uuid      uuid
	capacity  int64
	fits      int64 // of the capacity, what the file system could hold when it was opened
	slabBytes int64 // of new slabs
	engine    directio.Engine
	probe     directio.ProbeResult
	headers   *directio.Buffer // the keeper's
	headPool  *directio.Pool
	staging   staging
	recovered *recovered

	ctx  context.Context // of all operations
	stop context.CancelFunc
	down chan struct{} // closed when the device fails

	keeperKick, keeperStop, keeperGone chan struct{}
	syncKick, syncStop, syncGone       chan struct{}
	watchStop                          chan struct{}
	workers                            sync.WaitGroup
	keeperSince, syncSince             stopwatch
	queue                              queue
	failOnce                           sync.Once
	lostDone                           atomic.Bool // the Host knows all that went with the device

	// ------
	state       string // "online" or "offline"
	reason      string
	errors      []time.Time // of the last failed operations
	classes     []*class
	slabs       map[*slab]struct{}
	nextNumber  uint32
	fileBytes   int64 // of all slab files, those set aside included
	usedBytes   int64 // of slots that hold blocks
	blocks      int64
	fullAt      time.Time // when a slab could not be made; zero: none failed last
	fullReason  string
	quarantined int64
	dirty       []slotID // headers to write
	refused     []slotID // likewise, which the device has refused; see retryHeaders
	refusal     error    // why, of the last
	refusedAt   time.Time
	refusedWait time.Duration
	room        []*roomRequest
	finished    bool           // takes no calls of Sync any more
	syncs       []*syncRequest // for the keeper
	heldSyncs   []*syncRequest // likewise, until none of heldFor is in outdated
	heldFor     []*flight
	syncReady   []*syncRequest // for the syncer
	namesDirty  bool           // slabs were made or deleted since the directory was synced
	unsynced    int64          // bytes written since the last sync
	unsyncable  error          // why no sync is to be believed any more
	written     int64          // bytes on the day of Tier.mu.budget

	outdated map[*flight]struct{} // whose header is not the one that is to stay
}

// stopwatch tells how long a call has been under way; one at a time.
type stopwatch struct{ at atomic.Int64 }

func (w *stopwatch) start() { w.at.Store(time.Now().UnixNano()) }
func (w *stopwatch) stop()  { w.at.Store(0) }

func (w *stopwatch) elapsed() time.Duration {
	if at := w.at.Load(); at != 0 {
		return time.Duration(time.Now().UnixNano() - at)
	}
	return 0
}

// openDevice opens a directory and reads what it holds into memory.
func (t *Tier) openDevice(ctx context.Context, o DeviceOptions) (_ *device, err error) {
	d := &device{
		tier: t, dir: o.Dir, capacity: o.CapacityBytes, state: "online",
		slabBytes: slabBytesFor(t.opts.SlabBytes, o.CapacityBytes), slabs: make(map[*slab]struct{}),
		outdated:   make(map[*flight]struct{}),
		down:       make(chan struct{}),
		keeperKick: make(chan struct{}, 1), keeperStop: make(chan struct{}), keeperGone: make(chan struct{}),
		syncKick: make(chan struct{}, 1), syncStop: make(chan struct{}), syncGone: make(chan struct{}),
		watchStop: make(chan struct{}),
	}
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.queue.init()
	defer func() {
		if err != nil {
			d.discard()
		}
	}()
	if d.staging, err = newStaging(t.pool, len(t.opts.Devices)); err != nil {
		return nil, err
	}
	d.home, err = openDir(o.Dir, dirOptions{create: true, slabBytes: d.slabBytes, allowTmpfs: t.opts.AllowTmpfs, logger: t.log})
	if err != nil {
		return nil, err
	}
	d.probe = d.home.direct
	if d.engine, err = t.opts.Engine(ctx, o.Dir); err != nil {
		return nil, err
	}
	d.headPool, err = directio.NewPool(directio.PoolOptions{SizeBytes: headerPages * pageBytes, UsableRatio: 1})
	if err != nil {
		return nil, err
	}
	if d.headers, err = d.headPool.Acquire(ctx, headerPages*pageBytes); err != nil {
		return nil, err
	}
	d.uuid = d.home.superblock().uuid
	if err := d.recover(ctx); err != nil {
		return nil, err
	}
	if err := d.home.markDirty(); err != nil {
		return nil, err
	}
	if err := d.shrink(); err != nil {
		return nil, err
	}
	return d, d.measure()
}

// measure finds out how much the file system has room for, which may be less than the capacity: then that much is
// told, and what does not fit is evicted, as if the capacity were that.
func (d *device) measure() error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(d.home.root.Fd()), &st); err != nil {
		return &os.PathError{Op: "statfs", Path: d.dir, Err: err}
	}
	d.fits = min(d.capacity, d.fileBytes+int64(st.Bavail)*st.Bsize)
	if d.fits < d.capacity {
		d.tier.log.Warn("size of the SSD directory is more than its file system has room for", zap.String("device", d.dir),
			zap.Int64("size_bytes", d.capacity), zap.Int64("room_bytes", d.fits))
	}
	return nil
}

// discard closes a device that was not started.
func (d *device) discard() {
	d.stop()
	if d.engine != nil {
		_ = d.engine.Close(context.Background())
	}
	for s := range d.slabs {
		_ = s.file.Close()
	}
	if d.headers != nil {
		d.headers.Release()
	}
	if d.headPool != nil {
		_ = d.headPool.Close()
	}
	_ = d.staging.close()
	if d.home != nil {
		_ = d.home.close()
	}
}

// recover fills the tables from the directory.
func (d *device) recover(ctx context.Context) error {
	t := d.tier
	var failed error
	byFound := make(map[*slabFound]*slab)
	slots := int(t.mu.table.linked)
	rec, err := d.home.recover(ctx, recoverFuncs{
		slab: func(found *slabFound) {
			s := &slab{dev: d, path: found.path, hdr: found.slabHeader, usable: found.usable, size: found.fileBytes}
			file, err := directio.OpenFile(s.path, os.O_RDWR, 0)
			if err != nil {
				failed = errors.Join(failed, err)
				return
			}
			s.file = file
			t.mu.Lock()
			defer t.mu.Unlock()
			t.addSlabLocked(s)
			slots += int(s.usable)
			t.mu.table.reserve(2 * slots) // half full at most: short chains
			d.fileBytes += s.size
			d.nextNumber = max(d.nextNumber, s.hdr.number+1)
			d.classOf(s.hdr.slotBytes).add(s)
			byFound[found] = s
		},
		slot: func(found *slabFound, h *slotHeader) {
			if s := byFound[found]; s != nil {
				t.adopt(s, h)
			}
		},
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	d.recovered = rec
	for _, p := range rec.setAside {
		d.nextNumber = max(d.nextNumber, p.number+1)
		t.log.Warn("slab set aside", zap.String("device", d.dir), zap.Uint32("slab", p.number), zap.Error(p.err))
		if info, err := os.Stat(p.path); err == nil {
			d.fileBytes += info.Size()
		}
	}
	fields := []zap.Field{
		zap.String("device", d.dir), zap.String("engine", d.engine.Name()), zap.Int64("blocks", d.blocks),
		zap.Int("slabs", rec.slabs), zap.Int64("by_index", rec.byIndex), zap.Duration("took", rec.took),
	}
	if !d.home.fresh {
		fields = append(fields, zap.NamedError("index_error", rec.indexErr))
	}
	t.log.Info("device opened", fields...)
	return nil
}

// addSlabLocked numbers a slab. It needs t.mu.
func (t *Tier) addSlabLocked(s *slab) {
	s.dev.slabs[s] = struct{}{}
	for i, o := range t.mu.slabs {
		if o == nil {
			s.id = uint32(i)
			t.mu.slabs[i] = s
			return
		}
	}
	s.id = uint32(len(t.mu.slabs))
	t.mu.slabs = append(t.mu.slabs, s)
}

// adopt enters a block that was found on disk. Of two copies, be they on two
// devices, the one with the higher Seq stays.
func (t *Tier) adopt(s *slab, h *slotHeader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !s.isFree(h.slot) {
		return
	}
	s.take(h.slot)
	id := t.mu.table.alloc(h.key)
	e := t.mu.table.at(id)
	e.slab, e.slot, e.size, e.sum = s.id, h.slot, h.size, h.sum
	t.mu.table.setAttrs(e, &h.attrs)
	s.slots[h.slot] = id
	if old := t.mu.table.find(h.key); old != 0 {
		if t.mu.table.at(old).seq >= h.attrs.Seq {
			e.state = slotGone
			t.dirtyLocked(id)
			return
		}
		t.giveUpLocked(old)
	}
	e.state = slotLive
	t.mu.table.link(id)
	t.enterLocked(id)
}

// pinnedInLocked counts the blocks of a slab that the user has pinned. It needs t.mu.
func (t *Tier) pinnedInLocked(s *slab) (n int) {
	for _, id := range s.slots {
		if id == 0 {
			continue
		}
		if e := t.mu.table.at(id); e.state == slotLive && e.flags&flagPinned != 0 {
			n++
		}
	}
	return n
}

// shrink deletes slabs until what there is fits into the capacity, those first that have
// the fewest pinned blocks, and of them the emptiest. Nobody counts on their blocks yet.
func (d *device) shrink() error {
	t := d.tier
	for {
		t.mu.Lock()
		var least *slab
		leastPinned := 0
		for s := range d.slabs {
			pinned := t.pinnedInLocked(s)
			if least == nil || pinned < leastPinned || pinned == leastPinned && s.live < least.live {
				least, leastPinned = s, pinned
			}
		}
		if d.fileBytes <= d.capacity || least == nil {
			t.mu.Unlock()
			return nil
		}
		for _, id := range least.slots {
			if id == 0 {
				continue
			}
			if t.mu.table.at(id).state == slotLive {
				t.leaveLocked(id)
			}
			t.mu.table.at(id).flags |= flagZeroed
			t.freeLocked(id)
		}
		least.class.retire(least)
		least.class.drop(least)
		t.mu.Unlock()
		before := d.fileBytes
		t.log.Warn("slab deleted: over capacity", zap.String("device", d.dir), zap.Uint32("slab", least.hdr.number))
		if d.deleteSlab(least); d.fileBytes == before {
			return fmt.Errorf("%d bytes in slabs exceed the capacity %d, and slab %d cannot be deleted: %w",
				before, d.capacity, least.hdr.number, block.ErrNoSpace)
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
	go func() {
		defer close(d.keeperGone)
		d.keep()
	}()
	go func() {
		defer close(d.syncGone)
		d.runSyncer()
	}()
	go d.watch() // ends with watchStop
	if d.tier.opts.ScrubBytesPerSecond > 0 {
		d.workers.Go(d.scrub)
	}
	kick(d.keeperKick) // headers of second copies may be waiting
}

// isDown reports whether the device has failed.
func (d *device) isDown() bool {
	select {
	case <-d.down:
		return true
	default:
		return false
	}
}

// ioError counts a failed operation; too many of them fail the device.
func (d *device) ioError(err error) {
	t := d.tier
	t.counters.ioErrors.Add(1)
	now := time.Now()
	t.mu.Lock()
	d.errors = append(d.errors, now)
	if len(d.errors) > maxErrors {
		d.errors = d.errors[len(d.errors)-maxErrors:]
	}
	many := len(d.errors) == maxErrors && now.Sub(d.errors[0]) <= errorWindow
	t.mu.Unlock()
	if many {
		// Not here: the caller holds what the failing would wait for.
		go d.fail(fmt.Sprintf("%d I/O errors within %v, the last: %v", maxErrors, errorWindow, err))
	}
}

// watch fails the device when an operation is stuck.
func (d *device) watch() {
	limit := d.tier.opts.StuckTimeout
	tick := time.NewTicker(min(time.Second, max(limit/4, time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-d.down:
			return
		case <-d.watchStop:
			return
		}
		if s := d.stuckFor(); s > limit {
			d.fail(fmt.Sprintf("an operation has not come back for %v", s.Round(time.Millisecond)))
			return
		}
	}
}

// stuckFor returns for how long the oldest operation has been with the kernel.
func (d *device) stuckFor() time.Duration {
	return max(d.engine.Stuck(), d.keeperSince.elapsed(), d.syncSince.elapsed())
}

// fail takes the device offline: what waits for it fails, and the Host is told that
// its blocks are gone. What the kernel still holds stays allocated for ever.
func (d *device) fail(reason string) {
	d.failOnce.Do(func() {
		t := d.tier
		t.mu.Lock()
		d.state, d.reason = "offline", reason
		close(d.down) // under the lock: who is told that it is offline finds it out of use
		t.mu.Unlock()
		t.log.Error("device offline", zap.String("device", d.dir), zap.String("reason", reason))
		d.stop()
		d.failTasks(block.ErrUnavailable)
		d.endSyncs(block.ErrUnavailable)
		d.lostAll()
		d.lostDone.Store(true)
	})
}

// isFull reports whether an error says that the file system is full.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}

// sizeText returns n bytes for a reader.
func sizeText(n int64) string { return strconv.FormatInt(n, 10) + " bytes" }

// close ends a device whose jobs have all completed. What cannot be written is left to
// recovery.
func (d *device) close(ctx context.Context) error {
	ctx, cancel := withGrace(ctx, closeGrace)
	defer cancel()
	// Waits for a fail that is under way, which uses the tables and calls the Host, and keeps
	// one that was about to begin from doing so.
	defer d.failOnce.Do(func() {})
	d.queue.close()
	finished := make(chan error, 1)
	go func() { finished <- d.finish() }() // left behind if the device does not answer
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-finished:
			return err
		case <-d.down:
			// A worker may be with the kernel for ever: what it uses is leaked.
			select {
			case err := <-finished:
				return err
			case <-time.After(50 * time.Millisecond):
			}
			go d.engine.Close(context.Background())
			return d.closeError(block.ErrUnavailable)
		case <-ctx.Done():
			d.fail("did not answer when the tier was closed")
			return d.closeError(ctx.Err())
		case <-tick.C:
		}
	}
}

func (d *device) closeError(err error) error {
	return &block.Error{Op: "close", Tier: d.tier.opts.Name, Err: fmt.Errorf("device %s was left behind: %w", d.dir, err)}
}

// finish writes what is left, and the index, and frees everything.
func (d *device) finish() error {
	d.workers.Wait()
	close(d.keeperStop)
	<-d.keeperGone
	close(d.syncStop)
	<-d.syncGone
	var err error
	if !d.isDown() {
		d.retryHeaders(true)
		err = d.flushHeaders()
		if e := d.syncSlabs(); err == nil {
			err = e
		}
		d.endSyncs(err)
		if err == nil {
			err = d.writeIndex()
		}
	}
	close(d.watchStop)
	return errors.Join(err, d.freeAll())
}

// freeAll closes the engine, the files and the lock.
func (d *device) freeAll() error {
	d.stop()
	err := d.engine.Close(context.Background())
	for s := range d.slabs {
		err = errors.Join(err, s.file.Close())
	}
	d.headers.Release()
	return errors.Join(err, d.headPool.Close(), d.staging.close(), d.home.close())
}

// writeIndex saves the index; all slabs must be durable.
func (d *device) writeIndex() error {
	t := d.tier
	if err := t.saveBudget(d); err != nil {
		return err
	}
	t.mu.Lock()
	slabs := d.slabsByNumber()
	t.mu.Unlock()
	return d.home.saveIndex(func(w *indexWriter) error {
		for _, s := range slabs {
			w.slab(&s.hdr)
			for _, h := range t.headersOf(s) {
				w.slot(&h)
			}
		}
		if d.isDown() {
			return block.ErrUnavailable // and so blocks may have been forgotten meanwhile
		}
		return nil
	})
}

// headersOf returns copies of the headers of a slab's blocks.
func (t *Tier) headersOf(s *slab) (list []slotHeader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys []byte
	for _, id := range s.slots {
		if id == 0 {
			continue
		}
		if e := t.mu.table.at(id); e.state == slotLive {
			h := t.mu.table.header(e, s.hdr.epoch)
			first := len(keys)
			keys = append(keys, h.key...)
			h.key = keys[first:len(keys):len(keys)]
			list = append(list, h)
		}
	}
	return list
}
