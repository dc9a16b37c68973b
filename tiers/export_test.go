package tiers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// SetListWait sets Options.ListWait.
func (e *Engine) SetListWait(d time.Duration) { e.Opts.ListWait = d }

// Expire does at once what runExpiry does at each tick.
func (e *Engine) Expire() {
	var g state.Gone
	e.Mu.Lock()
	e.expireLocked(&g)
	e.Mu.Unlock()
	e.Finish(&g)
	e.expireVersions()
	e.settleStrays(e.settleStrays(nil))
}

// TellTouched does at once what runExpiry does at each tick.
func (e *Engine) TellTouched() { e.tellTouched() }

// Resolve finds a path below the mount, without counting a reference. It fails with ErrNotFound.
func (e *Engine) Resolve(_ context.Context, path string) (state.Attr, error) {
	var g state.Gone
	defer e.Finish(&g)
	e.Mu.Lock()
	defer e.Mu.Unlock()
	id := e.walkLocked(path)
	e.tellOutdatedLocked(&g)
	if id == 0 || e.Mu.Ix.At(id).Flags&state.FlagUncommitted != 0 {
		return state.Attr{}, block.ErrNotFound
	}
	return e.attrLocked(id, e.Mu.Ix.At(id)), nil
}

// Waiting returns how many promotions are under way, and how many wait for them.
func (e *Engine) Waiting() (promotions, waiters int) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	for _, p := range e.loads.promotions {
		waiters += p.waiters
	}
	return len(e.loads.promotions), waiters
}

// Quiesce waits until all promotions have ended and all stores, removals and updates
// that were queued have been done.
func (e *Engine) Quiesce(ctx context.Context) error {
	for idle := false; ; {
		e.Mu.Lock()
		var done chan struct{}
		for _, p := range e.loads.promotions {
			done = p.done
		}
		for p := range e.loads.orphans {
			done = p.done
		}
		was := idle
		idle = true
		told := make(chan struct{}, len(e.Tiers))
		for _, s := range e.Tiers {
			jobs, queued := s.StoreJobsLocked(nil)
			idle = idle && len(jobs)+queued == 0 && !s.KeyedLocked()
			s.AfterKeyedLocked(func() { told <- struct{}{} })
		}
		e.Mu.Unlock()
		for range e.Tiers {
			select {
			case <-told:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if done == nil && idle && was {
			return nil
		}
		if done == nil {
			if err := e.Drain(ctx); err != nil {
				return err
			}
			continue
		}
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Copies returns what the engine believes a secondary tier to hold, by path.
func (e *Engine) Copies(tier string) map[string]driver.Held {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	held := map[string]driver.Held{}
	for _, s := range e.Tiers {
		if s.Opts.Name != tier {
			continue
		}
		e.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
			if en.Tiers&s.Bit != 0 {
				h := driver.Held{Key: e.KeyLocked(id), Size: en.Size, Attrs: e.AttrsLocked(id, en)}
				h.Sum.Sum, h.Sum.Valid = en.Sum, en.Flags&state.FlagSum != 0
				held[h.Key.Path()] = h
			}
			return true
		})
	}
	return held
}

// audit collects what the entries say, to be compared with the accounts.
type audit struct {
	e    *Engine
	errs []error

	used, pinned, limbo, guessed, blocks, hollow, dirs int64
	groups                                             map[*room.Group]int64
	files                                              map[*room.Group]int
	leaving                                            map[index.ID]bool
}

func (a *audit) bad(format string, args ...any) {
	a.errs = append(a.errs, fmt.Errorf(format, args...))
}

// Audit compares every account of the engine with what the entries say, which
// is too slow to be an invariant of the lock. Handles may be open, and promotions
// and stores under way.
func (e *Engine) Audit() error {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	a := &audit{e: e, groups: map[*room.Group]int64{}, files: map[*room.Group]int{}, leaving: map[index.ID]bool{}}
	a.leavingLocked()
	for id, invalid := index.Root, 0; invalid < 5000; id++ {
		if !e.Mu.Ix.Valid(id) {
			invalid++
			continue
		}
		a.entryLocked(id)
	}
	for _, p := range e.loads.promotions {
		a.promotion(p)
	}
	for p := range e.loads.orphans {
		a.promotion(p)
	}
	for _, s := range e.Tiers {
		a.tierLocked(s)
	}
	check := func(what string, got, want int64) {
		if got != want {
			a.bad("%s: account says %d, entries say %d", what, got, want)
		}
	}
	check("usedBytes", e.Mu.Room.Used(), a.used)
	check("pinnedBytes", e.Mu.Room.Pinned(), a.pinned)
	check("limboBytes", e.drafts.limbo.bytes, a.limbo)
	check("guessedBytes", e.opens.guessed.Taken(), a.guessed)
	check("blocks", e.Mu.Blocks, a.blocks)
	check("hollow", e.Mu.Hollow, a.hollow)
	check("dirFiles", e.names.dirFiles, a.dirs)
	for g := range e.Mu.Room.Groups() {
		check(fmt.Sprintf("group %q", g.Name()), g.Used(), a.groups[g])
		check(fmt.Sprintf("files of group %q", g.Name()), int64(g.Files()), int64(a.files[g]))
	}
	return errors.Join(a.errs...)
}

// leavingLocked notes the blocks that have been evicted by their policy and are being copied.
func (a *audit) leavingLocked() {
	a.e.eachStoreLocked(func(_ *state.Secondary, op *lane.Store) {
		if op.Leaving {
			a.leaving[op.ID] = true
		}
	})
}

// eachStoreLocked calls fn for the stores that are queued or under way.
func (e *Engine) eachStoreLocked(fn func(s *state.Secondary, op *lane.Store)) {
	for _, s := range e.Tiers {
		for op := range s.QueuedLocked() {
			fn(s, op)
		}
		for op := range s.BegunLocked() {
			fn(s, op)
		}
	}
}

func (a *audit) promotion(p *promotion) {
	a.used += p.charge
	a.pinned += p.charge
	a.groups[p.group] += p.charge
}

func (a *audit) entryLocked(id index.ID) {
	e := a.e
	en := e.Mu.Ix.At(id)
	linked, f := e.Mu.Ix.Linked(id), e.Mu.Files[id]
	if !linked && en.Lookups == 0 && en.Opens == 0 && f == nil {
		a.bad("entry %d: nobody can reach it", id)
	}
	if en.Mode&state.ModeType == state.ModeDir {
		if en.Blob != 0 {
			a.dirs++
		}
		return
	}
	charge := e.ChargeLocked(id, en)
	a.used += charge
	gr := e.Mu.Room.Group(en.Group)
	a.groups[gr] += charge
	if a.files[gr]++; e.Mu.Room.Find(gr.Name()) != gr {
		a.bad("entry %d: its group was forgotten", id)
	}
	if en.Flags&state.FlagCounted != 0 {
		a.pinned += charge
	}
	if en.Flags&state.FlagLimbo != 0 {
		a.limbo += state.ChargeOf(en.Size)
	}
	if f != nil {
		a.guessed += f.(*File).guessed
	}
	resident := en.Blob != 0 || f != nil
	if linked && en.Flags&state.FlagUncommitted == 0 {
		if resident {
			a.blocks++
		} else {
			a.hollow++
		}
		if !resident && en.Tiers == 0 {
			a.bad("%s: in no tier", e.Mu.Ix.Path(id))
		}
		if e.GroupOfLocked(e.Mu.Ix.Parent(id)) != en.Group {
			a.bad("%s: charged to group %q", e.Mu.Ix.Path(id), e.Mu.Room.Group(en.Group).Name())
		}
	}
	if !linked && en.Tiers|en.Storing != 0 {
		a.bad("entry %d: has no name, but copies in tiers %b, underway to %b", id, en.Tiers, en.Storing)
	}
	hold := en.Flags&(state.FlagUncommitted|state.FlagPinned|state.FlagTemp|state.FlagPlain) != 0 || e.Mu.Room.Group(en.Group).Pinned() || !linked || !resident
	if got, want := en.Flags&state.FlagCounted != 0, hold || en.Opens > 0; got != want && charge > 0 {
		a.bad("entry %d: counted as pinned %v, want %v", id, got, want)
	}
	if got := en.Flags&state.FlagPolicy != 0; got == hold && !a.leaving[id] {
		a.bad("entry %d: in the policy %v, want %v", id, got, !hold)
	}
}

// tierLocked checks the queue of a tier, and that an entry is marked as being stored
// if and only if a store of it is queued or under way.
func (a *audit) tierLocked(s *state.Secondary) {
	e := a.e
	if err := s.AuditLocked(); err != nil {
		a.errs = append(a.errs, err)
	}
	storing := map[index.ID]bool{}
	e.eachStoreLocked(func(of *state.Secondary, op *lane.Store) {
		if of == s && e.Mu.Ix.Valid(op.ID) && e.Mu.Ix.At(op.ID).Seq == op.Seq {
			storing[op.ID] = true
		}
	})
	e.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
		if en.Storing&s.Bit != 0 && !storing[id] {
			a.bad("%s: marked as on its way to %q, but no store is queued", e.Mu.Ix.Path(id), s.Opts.Name)
		}
		if en.Storing&en.Tiers&s.Bit != 0 {
			a.bad("%s: in %q and on its way there", e.Mu.Ix.Path(id), s.Opts.Name)
		}
		return true
	})
}

// Leaving reports whether a block is being copied because its policy has evicted it.
func (e *Engine) Leaving(id index.ID) bool {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	leaving := false
	for _, s := range e.Tiers {
		for op := range s.BegunLocked() {
			leaving = leaving || op.ID == id && op.Leaving
		}
	}
	return leaving
}

// StoreWaiters returns how many wait for stores that are queued or under way.
func (e *Engine) StoreWaiters() int {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	n := 0
	e.eachStoreLocked(func(_ *state.Secondary, op *lane.Store) { n += reflect.ValueOf(op).Elem().FieldByName("waiters").Len() })
	return n
}

// Ref counts one more reference to an entry that the caller refers to already.
func (e *Engine) Ref(id index.ID) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	e.Mu.Ix.At(id).Lookups++
}

// Leased returns how many leases of requests are remembered.
func (e *Engine) Leased() int {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	return e.lookups.leases.Len()
}
