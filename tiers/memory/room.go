package memory

import (
	"context"
	"errors"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// The accounts say how much the engine has handed out. The file system behind memory may have less left. Clients of a
// killed daemon still have its files open, and other programs may store on the same file system.

// Look reads how much the file system behind memory has free, and sets the limit of memory in use so that an eighth
// of the headroom stays free. It returns the free bytes.
func (mem *Memory) Look() (free int64, err error) {
	if free, err = mem.Primary.FreeBytes(); err != nil {
		return 0, err
	}
	mem.Mu.Lock()
	mem.Mu.Room.Measure(free)
	mem.Mu.Unlock()
	return free, nil
}

// Gauge evicts blocks if the file system behind memory has less room than the accounts say and n more bytes need it.
// force evicts leased blocks, too. If that brings no room, because clients of a killed daemon have the blocks open,
// no more blocks are evicted for a while. It returns the free bytes before. The caller holds no lock.
func (mem *Memory) Gauge(n int64, force bool) (free int64, err error) {
	if free, err = mem.Look(); err != nil {
		return 0, err
	}
	var g state.Gone
	mem.Mu.Lock()
	need := mem.Mu.Room.Relief(n, force, mem.Now())
	if need > 0 {
		mem.Mu.Room.Evict(need, need, mem.victims(force, &g))
	}
	mem.Mu.Unlock()
	if need == 0 {
		return free, nil
	}
	mem.Finish(&g)
	if now, err := mem.Look(); err == nil && now <= free {
		mem.Mu.Lock()
		mem.Mu.Room.Futile(mem.Now())
		mem.Mu.Unlock()
	}
	return free, nil
}

// Relieve evicts something after the file system behind memory had no room, of bytes or of files, though the accounts
// had. force evicts leased blocks, too.
func (mem *Memory) Relieve(force bool) {
	mem.Gauge(0, force) // an error comes again with the next step
	var g state.Gone
	mem.Mu.Lock()
	mem.Mu.Counters.FileSystemFull++
	mem.Mu.Room.Evict(1, 1, mem.victims(force, &g))
	mem.Mu.Unlock()
	mem.Finish(&g)
}

// mostPause bounds the pause of WithRoom between two tries.
const mostPause = 250 * time.Millisecond

// WithRoom repeats op while it fails with ErrNoSpace because the file system behind memory has no room. Between tries
// it evicts and waits, up to WriteTimeout in all. It returns the last error of op, or ctx's error.
func (mem *Memory) WithRoom(ctx context.Context, w state.Waiter, op func() error) error {
	deadline := mem.Opts.Now().Add(mem.Opts.WriteTimeout)
	for pause := time.Duration(0); ; pause = min(2*pause+time.Millisecond, mostPause) {
		err := op()
		if !errors.Is(err, block.ErrNoSpace) {
			return err
		}
		left := deadline.Sub(mem.Opts.Now())
		mem.Relieve(left <= 0)
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
func (mem *Memory) CreateFile(ctx context.Context, w state.Waiter) (blob driver.BlobID, file *os.File, err error) {
	err = mem.WithRoom(ctx, w, func() (err error) {
		blob, file, err = mem.Primary.Create()
		return err
	})
	return blob, file, err
}

// AtOnce runs op for a caller that must not wait. If there is no room it evicts, and tries op once more.
func (mem *Memory) AtOnce(op func() error) error {
	err := op()
	if errors.Is(err, block.ErrNoSpace) {
		mem.Relieve(false)
		err = op()
	}
	return err
}

// Full counts that an open or a write waits for n bytes of memory, and logs it at intervals. until is when the first
// lease in the way ends, 0 if no lease is in the way.
func (mem *Memory) Full(n, until int64) {
	mem.Mu.Lock()
	pinned, limit := mem.Mu.Room.Pinned(), mem.Mu.Room.Limit()
	of, tell := mem.Mu.Room.Full(n, until, mem.Now())
	switch of {
	case room.FullOfOpen:
		mem.Mu.Counters.FullOfOpen++
	case room.FullOfLeased:
		mem.Mu.Counters.FullOfLeased++
	}
	mem.Mu.Unlock()
	if tell {
		mem.Log.Warn("memory is full of "+of+": opens and writes wait, and then fail",
			zap.Int64("wanted_bytes", n), zap.Int64("pinned_bytes", pinned), zap.Int64("memory_bytes", limit))
	}
}

// OpenRoom makes the accounts, with the groups that the configuration names.
func (mem *Memory) OpenRoom() (err error) {
	o := room.Options{
		CapacityBytes: mem.Opts.CapacityBytes, HeadroomBytes: mem.Opts.HeadroomBytes, Policy: mem.Opts.Policy, BurstGap: mem.Opts.BurstGap,
		HighWatermark: mem.Opts.HighWatermark, LowWatermark: mem.Opts.LowWatermark, Groups: map[block.GroupID]room.GroupOptions{},
	}
	for name, g := range mem.Opts.Groups {
		o.Groups[name] = room.GroupOptions{Pinned: g.Pinned, QuotaBytes: g.QuotaBytes, BlockBytes: g.BlockBytes, Strict: g.Strict}
	}
	if mem.Mu.Room, err = room.New(o); err != nil {
		return err
	}
	mem.Deadlines = map[*room.Group]time.Duration{}
	for name, g := range mem.Opts.Groups {
		if g.OpenDeadline != 0 {
			mem.Deadlines[mem.Mu.Room.Find(name)] = g.OpenDeadline
		}
	}
	return nil
}

// MoveGroupLocked accounts a file to another group, in which it will replace target. It fails with ErrQuota if that
// group has no room.
func (mem *Memory) MoveGroupLocked(id index.ID, en *index.Entry, to uint32, target index.ID, g *state.Gone) error {
	if en.Group() == to {
		return nil
	}
	need := mem.Mu.Charge(id, en)
	if target != 0 {
		need -= mem.Mu.Charge(target, mem.Mu.Ix.At(target))
	}
	if ok := mem.QuotaLocked(mem.Mu.Room.Group(to).Bill(), need, true, g); need > 0 && !ok {
		return block.ErrQuota
	}
	mem.ApplyLocked(catalog.Billed{ID: id, Group: to, Accounts: en.Accounts()})
	return nil
}
