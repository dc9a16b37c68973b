package tiers

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
)

// The accounts say how much the engine has handed out. The file system behind memory may have less left. Clients of a
// killed daemon still have its files open, and other programs may store on the same file system.

// look reads how much the file system behind memory has free, and sets the limit of memory in use so that an eighth
// of the headroom stays free. It returns the free bytes.
func (e *space) look() (free int64, err error) {
	if free, err = e.primary.FreeBytes(); err != nil {
		return 0, err
	}
	e.mu.Lock()
	e.mu.room.Measure(free)
	e.mu.Unlock()
	return free, nil
}

// gauge evicts blocks if the file system behind memory has less room than the accounts say and n more bytes need it.
// force evicts leased blocks, too. If that brings no room, because clients of a killed daemon have the blocks open,
// no more blocks are evicted for a while. gauge returns the free bytes before. The caller holds no lock.
func (e *space) gauge(n int64, force bool) (free int64, err error) {
	if free, err = e.look(); err != nil {
		return 0, err
	}
	var g gone
	e.mu.Lock()
	need := e.mu.room.Relief(n, force, e.now())
	if need > 0 {
		e.drafts.clearLimboLocked(&g)
		e.mu.room.Evict(need, need, e.victims(force, &g))
	}
	e.mu.Unlock()
	if need == 0 {
		return free, nil
	}
	e.finish(&g)
	if now, err := e.look(); err == nil && now <= free {
		e.mu.Lock()
		e.mu.room.Futile(e.now())
		e.mu.Unlock()
	}
	return free, nil
}

// relieve evicts something after the file system behind memory had no room, of bytes or of files, though the accounts
// had. force evicts leased blocks, too.
func (e *space) relieve(force bool) {
	e.gauge(0, force) // an error comes again with the next step
	var g gone
	e.mu.Lock()
	e.mu.counters.FileSystemFull++
	e.drafts.clearLimboLocked(&g)
	e.mu.room.Evict(1, 1, e.victims(force, &g))
	e.mu.Unlock()
	e.finish(&g)
}

// mostPause bounds the pause of withRoom between two tries.
const mostPause = 250 * time.Millisecond

// withRoom repeats op while it fails with ErrNoSpace because the file system behind memory has no room. Between tries
// it evicts and waits, up to WriteTimeout in all. It returns the last error of op, or ctx's error.
func (e *space) withRoom(ctx context.Context, w Waiter, op func() error) error {
	deadline := e.opts.Now().Add(e.opts.WriteTimeout)
	for pause := time.Duration(0); ; pause = min(2*pause+time.Millisecond, mostPause) {
		err := op()
		if !errors.Is(err, block.ErrNoSpace) {
			return err
		}
		left := deadline.Sub(e.opts.Now())
		e.relieve(left <= 0)
		if left <= 0 {
			return op()
		}
		if pause > 0 { // evicted files may still be open in other processes
			announce(w)
			if err := waitSpace(ctx, nil, min(left, pause)); err != nil {
				return err
			}
		}
	}
}

// createFile calls Primary.Create with withRoom.
func (e *space) createFile(ctx context.Context, w Waiter) (blob driver.BlobID, file *os.File, err error) {
	err = e.withRoom(ctx, w, func() (err error) {
		blob, file, err = e.primary.Create()
		return err
	})
	return blob, file, err
}

// atOnce is withRoom for a caller that must not wait: it tries twice.
func (e *space) atOnce(op func() error) error {
	err := op()
	if errors.Is(err, block.ErrNoSpace) {
		e.relieve(false)
		err = op()
	}
	return err
}

// loadAgain asks a tier once more for a block whose file had no room. It waits before, so long that maxAsked tries
// take as long as a writer would wait.
func (e *loads) loadAgain(p *promotion) {
	e.space.relieve(false)
	if waitSpace(e.ctx, nil, e.opts.WriteTimeout/maxAsked) == nil {
		e.requestLoad(p)
		return
	}
	e.failPromotion(p, block.ErrClosed)
}

// whole reports whether f is as long as the blocks of its group and has no hole. Then no write of f can have ended
// short, though the engine saw none of them.
func (f *File) whole(size int64) bool {
	f.e.mu.Lock()
	expected := f.e.mu.room.Group(f.e.mu.ix.At(f.id).Group).BlockBytes()
	f.e.mu.Unlock()
	return size == expected && f.withFile(func(file *os.File) error {
		hole, err := unix.Seek(int(file.Fd()), 0, unix.SEEK_HOLE)
		if err == nil && hole < size {
			err = block.ErrNotFound
		}
		return err
	}) == nil
}

// full counts that an open or a write waits for n bytes of memory, and logs it at intervals. until is when the first
// lease in the way ends, 0 if no lease is in the way.
func (e *space) full(n, until int64) {
	e.mu.Lock()
	pinned, limit := e.mu.room.Pinned(), e.mu.room.Limit()
	of, tell := e.mu.room.Full(n, until, e.now())
	switch of {
	case room.FullOfOpen:
		e.mu.counters.FullOfOpen++
	case room.FullOfLeased:
		e.mu.counters.FullOfLeased++
	}
	e.mu.Unlock()
	if tell {
		e.log.Warn("memory is full of "+of+": opens and writes wait, and then fail",
			zap.Int64("wanted_bytes", n), zap.Int64("pinned_bytes", pinned), zap.Int64("memory_bytes", limit))
	}
}

// checkRenameLocked is checkSize for a file that is to get the name of a block. size is that of f, its write side; f
// is nil if it has none.
func (e *space) checkRenameLocked(k nameKey, f *File, en *index.Entry, size int64) error {
	if f == nil {
		size = en.Size
	}
	return e.mu.room.Group(e.groupOfLocked(k.parent)).CheckSize(size)
}

// openRoom makes the accounts, with the groups that the configuration names.
func (e *space) openRoom() (err error) {
	o := room.Options{
		CapacityBytes: e.opts.CapacityBytes, HeadroomBytes: e.opts.HeadroomBytes, Policy: e.opts.Policy,
		HighWatermark: e.opts.HighWatermark, LowWatermark: e.opts.LowWatermark, Groups: map[block.GroupID]room.GroupOptions{},
	}
	for name, g := range e.opts.Groups {
		o.Groups[name] = room.GroupOptions{Pinned: g.Pinned, QuotaBytes: g.QuotaBytes, BlockBytes: g.BlockBytes, Strict: g.Strict}
	}
	if e.mu.room, err = room.New(o); err != nil {
		return err
	}
	e.deadlines = map[*room.Group]time.Duration{}
	for name, g := range e.opts.Groups {
		if g.OpenDeadline != 0 {
			e.deadlines[e.mu.room.Find(name)] = g.OpenDeadline
		}
	}
	return nil
}

// enterGroupLocked enters a new entry in group n.
func (e *space) enterGroupLocked(en *index.Entry, n uint32) {
	en.Group = n
	e.mu.room.Enter(n)
}

// moveGroupLocked accounts a file to another group, in which it will replace target. It fails with ErrQuota if that
// group has no room.
func (e *space) moveGroupLocked(id index.ID, en *index.Entry, to uint32, target index.ID, g *gone) error {
	if en.Group == to {
		return nil
	}
	need := e.chargeLocked(id, en)
	if target != 0 {
		need -= e.chargeLocked(target, e.mu.ix.At(target))
	}
	if ok := e.quotaLocked(e.mu.room.Group(to), need, true, g); need > 0 && !ok {
		return block.ErrQuota
	}
	e.regroupLocked(id, en, to)
	return nil
}

// regroupLocked accounts a file to another group.
func (e *space) regroupLocked(id index.ID, en *index.Entry, to uint32) {
	if en.Group == to {
		return
	}
	if en.Flags&flagPolicy != 0 {
		en.Flags &^= flagPolicy
		e.mu.room.Order(en.Group).Remove(uint32(id))
	}
	e.mu.room.Move(en.Group, to, e.chargeLocked(id, en))
	en.Group = to
	e.classifyLocked(id, en)
}
