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
func (sp *space) Look() (free int64, err error) {
	if free, err = sp.Primary.FreeBytes(); err != nil {
		return 0, err
	}
	sp.Mu.Lock()
	sp.Mu.Room.Measure(free)
	sp.Mu.Unlock()
	return free, nil
}

// Gauge evicts blocks if the file system behind memory has less room than the accounts say and n more bytes need it.
// force evicts leased blocks, too. If that brings no room, because clients of a killed daemon have the blocks open,
// no more blocks are evicted for a while. It returns the free bytes before. The caller holds no lock.
func (sp *space) Gauge(n int64, force bool) (free int64, err error) {
	if free, err = sp.Look(); err != nil {
		return 0, err
	}
	var g state.Gone
	sp.Mu.Lock()
	need := sp.Mu.Room.Relief(n, force, sp.Now())
	if need > 0 {
		sp.writing.ClearLimboLocked(&g)
		sp.Mu.Room.Evict(need, need, sp.victims(force, &g))
	}
	sp.Mu.Unlock()
	if need == 0 {
		return free, nil
	}
	sp.Finish(&g)
	if now, err := sp.Look(); err == nil && now <= free {
		sp.Mu.Lock()
		sp.Mu.Room.Futile(sp.Now())
		sp.Mu.Unlock()
	}
	return free, nil
}

// Relieve evicts something after the file system behind memory had no room, of bytes or of files, though the accounts
// had. force evicts leased blocks, too.
func (sp *space) Relieve(force bool) {
	sp.Gauge(0, force) // an error comes again with the next step
	var g state.Gone
	sp.Mu.Lock()
	sp.Mu.Counters.FileSystemFull++
	sp.writing.ClearLimboLocked(&g)
	sp.Mu.Room.Evict(1, 1, sp.victims(force, &g))
	sp.Mu.Unlock()
	sp.Finish(&g)
}

// mostPause bounds the pause of WithRoom between two tries.
const mostPause = 250 * time.Millisecond

// WithRoom repeats op while it fails with ErrNoSpace because the file system behind memory has no room. Between tries
// it evicts and waits, up to WriteTimeout in all. It returns the last error of op, or ctx's error.
func (sp *space) WithRoom(ctx context.Context, w state.Waiter, op func() error) error {
	deadline := sp.Opts.Now().Add(sp.Opts.WriteTimeout)
	for pause := time.Duration(0); ; pause = min(2*pause+time.Millisecond, mostPause) {
		err := op()
		if !errors.Is(err, block.ErrNoSpace) {
			return err
		}
		left := deadline.Sub(sp.Opts.Now())
		sp.Relieve(left <= 0)
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
func (sp *space) CreateFile(ctx context.Context, w state.Waiter) (blob driver.BlobID, file *os.File, err error) {
	err = sp.WithRoom(ctx, w, func() (err error) {
		blob, file, err = sp.Primary.Create()
		return err
	})
	return blob, file, err
}

// AtOnce runs op for a caller that must not wait. If there is no room it evicts, and tries op once more.
func (sp *space) AtOnce(op func() error) error {
	err := op()
	if errors.Is(err, block.ErrNoSpace) {
		sp.Relieve(false)
		err = op()
	}
	return err
}

// Full counts that an open or a write waits for n bytes of memory, and logs it at intervals. until is when the first
// lease in the way ends, 0 if no lease is in the way.
func (sp *space) Full(n, until int64) {
	sp.Mu.Lock()
	pinned, limit := sp.Mu.Room.Pinned(), sp.Mu.Room.Limit()
	of, tell := sp.Mu.Room.Full(n, until, sp.Now())
	switch of {
	case room.FullOfOpen:
		sp.Mu.Counters.FullOfOpen++
	case room.FullOfLeased:
		sp.Mu.Counters.FullOfLeased++
	}
	sp.Mu.Unlock()
	if tell {
		sp.Log.Warn("memory is full of "+of+": opens and writes wait, and then fail",
			zap.Int64("wanted_bytes", n), zap.Int64("pinned_bytes", pinned), zap.Int64("memory_bytes", limit))
	}
}

// OpenRoom makes the accounts, with the groups that the configuration names.
func (sp *space) OpenRoom() (err error) {
	o := room.Options{
		CapacityBytes: sp.Opts.CapacityBytes, HeadroomBytes: sp.Opts.HeadroomBytes, Policy: sp.Opts.Policy,
		HighWatermark: sp.Opts.HighWatermark, LowWatermark: sp.Opts.LowWatermark, Groups: map[block.GroupID]room.GroupOptions{},
	}
	for name, g := range sp.Opts.Groups {
		o.Groups[name] = room.GroupOptions{Pinned: g.Pinned, QuotaBytes: g.QuotaBytes, BlockBytes: g.BlockBytes, Strict: g.Strict}
	}
	if sp.Mu.Room, err = room.New(o); err != nil {
		return err
	}
	sp.Deadlines = map[*room.Group]time.Duration{}
	for name, g := range sp.Opts.Groups {
		if g.OpenDeadline != 0 {
			sp.Deadlines[sp.Mu.Room.Find(name)] = g.OpenDeadline
		}
	}
	return nil
}

// MoveGroupLocked accounts a file to another group, in which it will replace target. It fails with ErrQuota if that
// group has no room.
func (sp *space) MoveGroupLocked(id index.ID, en *index.Entry, to uint32, target index.ID, g *state.Gone) error {
	if en.Group == to {
		return nil
	}
	need := sp.ChargeLocked(id, en)
	if target != 0 {
		need -= sp.ChargeLocked(target, sp.Mu.Ix.At(target))
	}
	if ok := sp.QuotaLocked(sp.Mu.Room.Group(to).Bill(), need, true, g); need > 0 && !ok {
		return block.ErrQuota
	}
	sp.RebillLocked(id, en, to, en.Accounts)
	return nil
}
