package space

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// The accounts say how much the engine has handed out. The file system behind memory may have less left. Clients of a
// killed daemon still have its files open, and other programs may store on the same file system.

// Look reads how much the file system behind memory has free, and sets the limit of memory in use so that an eighth
// of the headroom stays free. It returns the free bytes.
func (e *space) Look() (free int64, err error) {
	if free, err = e.Primary.FreeBytes(); err != nil {
		return 0, err
	}
	e.Mu.Lock()
	e.Mu.Room.Measure(free)
	e.Mu.Unlock()
	return free, nil
}

// Gauge evicts blocks if the file system behind memory has less room than the accounts say and n more bytes need it.
// force evicts leased blocks, too. If that brings no room, because clients of a killed daemon have the blocks open,
// no more blocks are evicted for a while. It returns the free bytes before. The caller holds no lock.
func (e *space) Gauge(n int64, force bool) (free int64, err error) {
	if free, err = e.Look(); err != nil {
		return 0, err
	}
	var g state.Gone
	e.Mu.Lock()
	need := e.Mu.Room.Relief(n, force, e.Now())
	if need > 0 {
		e.writing.ClearLimboLocked(&g)
		e.Mu.Room.Evict(need, need, e.victims(force, &g))
	}
	e.Mu.Unlock()
	if need == 0 {
		return free, nil
	}
	e.Finish(&g)
	if now, err := e.Look(); err == nil && now <= free {
		e.Mu.Lock()
		e.Mu.Room.Futile(e.Now())
		e.Mu.Unlock()
	}
	return free, nil
}

// Relieve evicts something after the file system behind memory had no room, of bytes or of files, though the accounts
// had. force evicts leased blocks, too.
func (e *space) Relieve(force bool) {
	e.Gauge(0, force) // an error comes again with the next step
	var g state.Gone
	e.Mu.Lock()
	e.Mu.Counters.FileSystemFull++
	e.writing.ClearLimboLocked(&g)
	e.Mu.Room.Evict(1, 1, e.victims(force, &g))
	e.Mu.Unlock()
	e.Finish(&g)
}

// mostPause bounds the pause of WithRoom between two tries.
const mostPause = 250 * time.Millisecond

// WithRoom repeats op while it fails with ErrNoSpace because the file system behind memory has no room. Between tries
// it evicts and waits, up to WriteTimeout in all. It returns the last error of op, or ctx's error.
func (e *space) WithRoom(ctx context.Context, w state.Waiter, op func() error) error {
	deadline := e.Opts.Now().Add(e.Opts.WriteTimeout)
	for pause := time.Duration(0); ; pause = min(2*pause+time.Millisecond, mostPause) {
		err := op()
		if !errors.Is(err, block.ErrNoSpace) {
			return err
		}
		left := deadline.Sub(e.Opts.Now())
		e.Relieve(left <= 0)
		if left <= 0 {
			return op()
		}
		if pause > 0 { // evicted files may still be open in other processes
			state.Announce(w)
			if err := state.WaitSpace(ctx, nil, min(left, pause)); err != nil {
				return err
			}
		}
	}
}

// CreateFile calls Primary.Create with WithRoom.
func (e *space) CreateFile(ctx context.Context, w state.Waiter) (blob driver.BlobID, file *os.File, err error) {
	err = e.WithRoom(ctx, w, func() (err error) {
		blob, file, err = e.Primary.Create()
		return err
	})
	return blob, file, err
}

// AtOnce is WithRoom for a caller that must not wait: it tries twice.
func (e *space) AtOnce(op func() error) error {
	err := op()
	if errors.Is(err, block.ErrNoSpace) {
		e.Relieve(false)
		err = op()
	}
	return err
}

// Full counts that an open or a write waits for n bytes of memory, and logs it at intervals. until is when the first
// lease in the way ends, 0 if no lease is in the way.
func (e *space) Full(n, until int64) {
	e.Mu.Lock()
	pinned, limit := e.Mu.Room.Pinned(), e.Mu.Room.Limit()
	of, tell := e.Mu.Room.Full(n, until, e.Now())
	switch of {
	case room.FullOfOpen:
		e.Mu.Counters.FullOfOpen++
	case room.FullOfLeased:
		e.Mu.Counters.FullOfLeased++
	}
	e.Mu.Unlock()
	if tell {
		e.Log.Warn("memory is full of "+of+": opens and writes wait, and then fail",
			zap.Int64("wanted_bytes", n), zap.Int64("pinned_bytes", pinned), zap.Int64("memory_bytes", limit))
	}
}

// OpenRoom makes the accounts, with the groups that the configuration names.
func (e *space) OpenRoom() (err error) {
	o := room.Options{
		CapacityBytes: e.Opts.CapacityBytes, HeadroomBytes: e.Opts.HeadroomBytes, Policy: e.Opts.Policy,
		HighWatermark: e.Opts.HighWatermark, LowWatermark: e.Opts.LowWatermark, Groups: map[block.GroupID]room.GroupOptions{},
	}
	for name, g := range e.Opts.Groups {
		o.Groups[name] = room.GroupOptions{Pinned: g.Pinned, QuotaBytes: g.QuotaBytes, BlockBytes: g.BlockBytes, Strict: g.Strict}
	}
	if e.Mu.Room, err = room.New(o); err != nil {
		return err
	}
	e.Deadlines = map[*room.Group]time.Duration{}
	for name, g := range e.Opts.Groups {
		if g.OpenDeadline != 0 {
			e.Deadlines[e.Mu.Room.Find(name)] = g.OpenDeadline
		}
	}
	return nil
}

// MoveGroupLocked accounts a file to another group, in which it will replace target. It fails with ErrQuota if that
// group has no room.
func (e *space) MoveGroupLocked(id index.ID, en *index.Entry, to uint32, target index.ID, g *state.Gone) error {
	if en.Group == to {
		return nil
	}
	need := e.ChargeLocked(id, en)
	if target != 0 {
		need -= e.ChargeLocked(target, e.Mu.Ix.At(target))
	}
	if ok := e.QuotaLocked(e.Mu.Room.Group(to).Bill(), need, true, g); need > 0 && !ok {
		return block.ErrQuota
	}
	e.RebillLocked(id, en, to, en.Accounts)
	return nil
}
