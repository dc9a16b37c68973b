package disk

import (
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/durable"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/port"
	"github.com/kvfs/kvfs/tiers/disk/recovery"
	"github.com/kvfs/kvfs/tiers/disk/slotmap"
)

const (
	// keeperTick is how often the keeper looks for work that does not wake it: headers that could
	// not be written.
	keeperTick = time.Second
)

// roomRequest is a store that waits for slots.
type roomRequest struct {
	flights []*flight // of one class
	done    chan struct{}
	n       int // how many got a slot; with err: how many get it as their outcome
	err     error
}

// keeper makes all changes to the use of slots of one device, on a goroutine of its own. It finds room
// for stores, makes and deletes slabs, gives them to other classes, evicts, and writes the headers that
// change. It shares
// the parts of the device, and does not know the device.
type keeper struct {
	// Constant.
	tier     *Tier
	dir      string
	capacity int64
	root     *recovery.Dir
	port     *port.Port
	syncer   *durable.Syncer[*flight]
	headers  *headers
	staging  *port.Staging
	space    *slotmap.Space                                        // guarded by Tier.mu
	do       func(ops []directio.Op, slabs ...*slotmap.Slab) error // device.do

	wake       chan struct{} // has room for one
	stop, gone chan struct{} // closed to end keep, and by its end

	// mu is guarded by Tier.mu.
	mu struct {
		room []*roomRequest // stores that wait for slots, in order
	}
}

// newKeeper returns the keeper of a device, whose parts are there. wake has room for one.
func newKeeper(d *device, wake chan struct{}) *keeper {
	return &keeper{
		tier: d.tier, dir: d.dir, capacity: d.capacity, root: d.root, port: d.port, syncer: d.syncer, headers: d.headers, staging: &d.staging,
		space: d.mu.space, do: d.do, wake: wake, stop: make(chan struct{}), gone: make(chan struct{}),
	}
}

// keep is the keeper's goroutine. It writes headers, makes room, and passes on calls of Sync. It
// ends when the device fails or is closed.
func (k *keeper) keep() {
	defer close(k.gone)
	tick := time.NewTicker(keeperTick)
	defer tick.Stop()
	for {
		select {
		case <-k.wake:
		case <-tick.C:
		case <-k.port.Down:
			return
		case <-k.stop:
			return
		}
		syncs := k.syncer.Take()
		k.headers.retry(len(syncs) > 0)
		err := k.headers.flush()
		k.serveRoom()
		k.evictAhead()
		if err == nil {
			err = k.headers.flush()
		}
		k.syncer.Pass(syncs, err)
	}
}

// kick wakes a goroutine that waits on c, a channel with room for one.
func kick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// allocate gives slots to the first n of the flights and returns n. It waits for the keeper if
// there is no room at once. With an error, n flights fail with it. The error may be ErrNoSpace,
// ErrTooLarge or ErrUnavailable.
func (k *keeper) allocate(flights []*flight) (n int, err error) {
	t := k.tier
	t.mu.Lock()
	slotBytes := k.space.SlotBytesFor(flights[0].source.size)
	n = 1
	for n < len(flights) && k.space.SlotBytesFor(flights[n].source.size) == slotBytes {
		n++
	}
	r := &roomRequest{flights: flights[:n], done: make(chan struct{})}
	if len(k.mu.room) == 0 && k.bindSomeLocked(k.space.ClassOf(slotBytes), r) {
		t.mu.Unlock()
		return r.n, nil
	}
	k.mu.room = append(k.mu.room, r)
	t.mu.Unlock()
	kick(k.wake)
	select {
	case <-r.done:
		return r.n, r.err
	case <-k.port.Down:
	}
	// The keeper ends when the device is down, perhaps while it serves r.
	<-k.gone
	select {
	case <-r.done:
		return r.n, r.err
	default:
		return n, block.ErrUnavailable
	}
}

// bindSomeLocked gives slots to as many flights of r as fit in one run. It needs Tier.mu.
func (k *keeper) bindSomeLocked(c *slotmap.Class, r *roomRequest) bool {
	s, first, n := c.TakeRun(len(r.flights))
	if n == 0 {
		return false
	}
	r.n = n
	k.tier.bindLocked(s, first, r.flights[:n])
	if c.RunsLow() {
		kick(k.wake)
	}
	return true
}

// serveRoom serves the waiting stores in order.
func (k *keeper) serveRoom() {
	t := k.tier
	for {
		t.mu.Lock()
		if len(k.mu.room) == 0 {
			t.mu.Unlock()
			return
		}
		r := k.mu.room[0]
		t.mu.Unlock()
		if err := k.makeRoom(r); err != nil {
			r.n, r.err = len(r.flights), err
		}
		t.mu.Lock()
		k.mu.room = k.mu.room[1:]
		t.mu.Unlock()
		close(r.done)
		if k.port.IsDown() {
			return
		}
	}
}

// grow makes a slab for slots of slotBytes and reports whether that worked.
func (k *keeper) grow(slotBytes int64) bool {
	t := k.tier
	t.mu.Lock()
	h, ok := k.space.Reserve(slotBytes)
	t.mu.Unlock()
	if !ok {
		return false
	}
	s := &slotmap.Slab{Space: k.space, Header: h, Usable: h.Slots, Size: h.WantBytes(), Path: k.root.SlabPath(h.Number)}
	s.Changed.Store(true)
	err := k.port.Call(port.ByKeeper, func() error { return k.createSlab(s) })
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		reason := ""
		if !port.IsFull(err) {
			t.counters.ioErrors.Add(1)
			reason = fmt.Sprintf("a file of %s for blocks cannot be made (%v)", format.Size(s.Size), err)
		}
		k.space.Full(s.Size, reason)
		t.log.Warn("SSD directory does not grow", zap.String("device", k.dir), zap.String("reason", k.space.Usage().FullReason), zap.Error(err))
		return false
	}
	k.space.Grown()
	k.syncer.Add(&s.Sync, s.File)
	k.syncer.Renamed()
	t.mu.slots.AddSlab(s)
	return true
}

// createSlab makes the file of a slab. Its blocks are allocated and its header is written before it
// gets its name, so no slab is ever half made. If it fails, no file is left.
func (k *keeper) createSlab(s *slotmap.Slab) (err error) {
	tmp := k.root.Join(format.SlabTmpName)
	if s.File, err = directio.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return err
	}
	if err = extend(s.File, s.Size); err == nil {
		err = k.writeSlabHeader(s)
	}
	err = errors.Join(err, s.File.Close())
	if _, e := os.Lstat(s.Path); err == nil && e == nil {
		err = &os.PathError{Op: "rename", Path: s.Path, Err: unix.EEXIST}
	}
	if err == nil {
		err = os.Rename(tmp, s.Path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return err
	}
	if s.File, err = directio.OpenFile(s.Path, os.O_RDWR, 0); err != nil {
		_ = os.Remove(s.Path)
	}
	return err
}

// extend makes a file size bytes long, with all its blocks if the file system can do that.
func extend(f *directio.File, size int64) error {
	err := unix.Fallocate(f.Fd(), 0, 0, size)
	if err == unix.EOPNOTSUPP {
		return f.OS().Truncate(size)
	}
	return err
}

// writeSlabHeader writes the header of a slab. It uses the keeper's buffer.
func (k *keeper) writeSlabHeader(s *slotmap.Slab) error {
	page := k.headers.page()
	s.Header.Encode(page)
	return k.do([]directio.Op{{Kind: directio.Write, File: s.File, Mem: page}}, s)
}
