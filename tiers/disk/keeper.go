package disk

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/directio"
	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/disk/format"
	"github.com/kvfs/kvfs/tiers/disk/ledger"
	"github.com/kvfs/kvfs/tiers/disk/port"
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

// keep is the keeper of a device. It writes headers, makes room, and passes on calls of Sync. It
// ends when the device fails or is closed.
func (d *device) keep() {
	tick := time.NewTicker(keeperTick)
	defer tick.Stop()
	for {
		select {
		case <-d.keeperKick:
		case <-tick.C:
		case <-d.port.Down:
			return
		case <-d.keeperStop:
			return
		}
		syncs := d.syncer.Take()
		d.headers.retry(len(syncs) > 0)
		err := d.headers.flush()
		d.serveRoom()
		d.evictAhead()
		if err == nil {
			err = d.headers.flush()
		}
		d.syncer.Pass(syncs, err)
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
func (d *device) allocate(flights []*flight) (n int, err error) {
	t := d.tier
	t.mu.Lock()
	slotBytes := d.mu.space.SlotBytesFor(flights[0].source.size)
	n = 1
	for n < len(flights) && d.mu.space.SlotBytesFor(flights[n].source.size) == slotBytes {
		n++
	}
	r := &roomRequest{flights: flights[:n], done: make(chan struct{})}
	if len(d.mu.room) == 0 && d.bindSomeLocked(d.mu.space.ClassOf(slotBytes), r) {
		t.mu.Unlock()
		return r.n, nil
	}
	d.mu.room = append(d.mu.room, r)
	t.mu.Unlock()
	kick(d.keeperKick)
	select {
	case <-r.done:
		return r.n, r.err
	case <-d.port.Down:
	}
	// The keeper ends when the device is down, perhaps while it serves r.
	<-d.keeperGone
	select {
	case <-r.done:
		return r.n, r.err
	default:
		return n, block.ErrUnavailable
	}
}

// bindSomeLocked gives slots to as many flights of r as fit in one run. It needs Tier.mu.
func (d *device) bindSomeLocked(c *ledger.Class, r *roomRequest) bool {
	s, first, n := c.TakeRun(len(r.flights))
	if n == 0 {
		return false
	}
	r.n = n
	d.tier.bindLocked(s, first, r.flights[:n])
	if c.RunsLow() {
		kick(d.keeperKick)
	}
	return true
}

// serveRoom serves the waiting stores in order.
func (d *device) serveRoom() {
	t := d.tier
	for {
		t.mu.Lock()
		if len(d.mu.room) == 0 {
			t.mu.Unlock()
			return
		}
		r := d.mu.room[0]
		t.mu.Unlock()
		if err := d.makeRoom(r); err != nil {
			r.n, r.err = len(r.flights), err
		}
		t.mu.Lock()
		d.mu.room = d.mu.room[1:]
		t.mu.Unlock()
		close(r.done)
		if d.port.IsDown() {
			return
		}
	}
}

// grow makes a slab for slots of SlotBytes and reports whether that worked.
func (d *device) grow(slotBytes int64) bool {
	t := d.tier
	t.mu.Lock()
	h, ok := d.mu.space.Reserve(slotBytes)
	t.mu.Unlock()
	if !ok {
		return false
	}
	s := &ledger.Slab{Space: d.mu.space, Header: h, Usable: h.Slots, Size: h.WantBytes(), Path: d.home.SlabPath(h.Number)}
	err := d.port.Call(port.ByKeeper, func() error { return d.createSlab(s) })
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		reason := ""
		if !port.IsFull(err) {
			t.counters.ioErrors.Add(1)
			reason = "no new slab: " + err.Error()
		}
		d.mu.space.Full(s.Size, reason)
		t.log.Warn("no new slab", zap.String("device", d.dir), zap.Int64("bytes", d.mu.space.Usage().FileBytes), zap.Error(err))
		return false
	}
	d.mu.space.Grown()
	d.syncer.Add(&s.Sync, s.File)
	d.syncer.Renamed()
	t.mu.ledger.AddSlab(s)
	return true
}

// createSlab makes the file of a slab. Its blocks are allocated and its header is written before it
// gets its name, so no slab is ever half made. If it fails, no file is left.
func (d *device) createSlab(s *ledger.Slab) (err error) {
	tmp := d.home.Join(format.SlabTmpName)
	if s.File, err = directio.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600); err != nil {
		return err
	}
	err = unix.Fallocate(s.File.Fd(), 0, 0, s.Size)
	if err == unix.EOPNOTSUPP {
		err = s.File.OS().Truncate(s.Size)
	}
	if err == nil {
		err = d.writeSlabHeader(s)
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

// writeSlabHeader writes the header of a slab. It uses the keeper's buffer.
func (d *device) writeSlabHeader(s *ledger.Slab) error {
	page := d.headers.page()
	s.Header.Encode(page)
	return d.do([]directio.Op{{Kind: directio.Write, File: s.File, Mem: page}}, s)
}

// do passes ops to the engine, then counts the bytes written and the failures. slabs are those that
// ops write to.
func (d *device) do(ops []directio.Op, slabs ...*ledger.Slab) error {
	err := d.try(ops, slabs...)
	for i := range ops {
		if port.OfDevice(ops[i].Err) {
			d.port.Count(ops[i].Err)
		}
	}
	return err
}

// try is do without counting failures. It is for ops that failed and were counted before.
func (d *device) try(ops []directio.Op, slabs ...*ledger.Slab) error {
	written, err := d.port.Do(ops)
	for _, s := range slabs {
		s.Sync.Dirty.Store(true)
	}
	if written > 0 {
		d.tier.spend(d, written)
		d.syncer.Wrote(written)
	}
	return err
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
