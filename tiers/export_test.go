package tiers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"
	"unsafe"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/policy"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
)

// SetListWait sets Options.ListWait.
func (e *Engine) SetListWait(d time.Duration) { e.core.Opts.ListWait = d }

// Expire does at once what runExpiry does at each tick.
func (e *Engine) Expire() {
	var g state.Gone
	e.core.Mu.Lock()
	e.core.space.ExpireLocked(&g)
	e.core.Mu.Unlock()
	e.core.Finish(&g)
	e.core.writing.ExpireFiles()
	e.core.elsewhere.SettleStrays(e.core.elsewhere.SettleStrays(nil))
}

// TellTouched does at once what runExpiry does at each tick.
func (e *Engine) TellTouched() { e.core.writing.TellTouched() }

// Resolve finds a path below the mount, without counting a reference. It fails with ErrNotFound.
func (e *Engine) Resolve(_ context.Context, path string) (state.Attr, error) {
	var g state.Gone
	defer e.core.Finish(&g)
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	id := e.core.elsewhere.WalkLocked(path)
	e.core.elsewhere.TellOutdatedLocked(&g)
	if id == 0 || !e.core.Mu.Ix.At(id).Committed() {
		return state.Attr{}, block.ErrNotFound
	}
	return e.core.names.AttrLocked(id, e.core.Mu.Ix.At(id)), nil
}

// inside returns a field of what v points to, by the names of fields on the way. The caller holds the lock.
func inside(v any, fields ...string) reflect.Value {
	x := reflect.ValueOf(v)
	for _, name := range fields {
		x = reflect.Indirect(x).FieldByName(name)
		x = reflect.NewAt(x.Type(), unsafe.Pointer(x.UnsafeAddr())).Elem()
	}
	return x
}

// load is a promotion under way.
type load struct {
	waiters int
	charge  int64
	bill    room.Bill
	done    chan struct{}
}

// loadsLocked returns the promotions in maps of the room of loads.
func (e *Engine) loadsLocked(maps ...string) (loads []load) {
	for _, name := range maps {
		m := inside(e.core.lower, "loads", name)
		for _, k := range m.MapKeys() {
			p := k // the map is a set
			if name == "promotions" {
				p = m.MapIndex(k)
			}
			v := reflect.NewAt(p.Type().Elem(), p.UnsafePointer()).Interface()
			loads = append(loads, load{
				waiters: int(inside(v, "waiters").Int()), charge: inside(v, "charge").Int(),
				bill: inside(v, "bill").Interface().(room.Bill), done: inside(v, "done").Interface().(chan struct{}),
			})
		}
	}
	return loads
}

// Waiting returns how many promotions are under way, and how many wait for them.
func (e *Engine) Waiting() (promotions, waiters int) {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	for _, l := range e.loadsLocked("promotions") {
		promotions++
		waiters += l.waiters
	}
	return promotions, waiters
}

// Quiesce waits until all promotions have ended and all stores, removals and updates
// that were queued have been done.
func (e *Engine) Quiesce(ctx context.Context) error {
	for idle := false; ; {
		e.core.Mu.Lock()
		var done chan struct{}
		for _, l := range e.loadsLocked("promotions", "orphans") {
			done = l.done
		}
		was := idle
		idle = true
		told := make(chan struct{}, len(e.core.Tiers))
		for _, s := range e.core.Tiers {
			jobs, queued := s.StoreJobsLocked(nil)
			idle = idle && len(jobs)+queued == 0 && !s.KeyedLocked()
			s.AfterKeyedLocked(func() { told <- struct{}{} })
		}
		e.core.Mu.Unlock()
		for range e.core.Tiers {
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
			if err := e.core.lower.Drain(ctx); err != nil {
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
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	held := map[string]driver.Held{}
	for _, s := range e.core.Tiers {
		if s.Opts.Name != tier {
			continue
		}
		e.core.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
			if en.Tiers&s.Bit != 0 {
				h := driver.Held{Key: e.core.KeyLocked(id), Size: en.Size, Attrs: e.core.AttrsLocked(id, en)}
				h.Sum.Sum, h.Sum.Valid = en.Sum, en.HasSum()
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
	accounts                                           map[*room.Account]int64
	pins                                               map[any]int64 // what users have pinned of a group or an account
	ranked                                             map[any]int   // blocks in the order of a group or an account
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
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	a := &audit{e: e, accounts: map[*room.Account]int64{}, pins: map[any]int64{}, ranked: map[any]int{}, groups: map[*room.Group]int64{}, files: map[*room.Group]int{}, leaving: map[index.ID]bool{}}
	a.leavingLocked()
	for id, invalid := index.Root, 0; invalid < 5000; id++ {
		if !e.core.Mu.Ix.Valid(id) {
			invalid++
			continue
		}
		a.entryLocked(id)
	}
	for _, l := range e.loadsLocked("promotions", "orphans") {
		a.used += l.charge
		a.pinned += l.charge
		a.billed(l.bill, l.charge)
	}
	for _, s := range e.core.Tiers {
		a.tierLocked(s)
	}
	check := func(what string, got, want int64) {
		if got != want {
			a.bad("%s: account says %d, entries say %d", what, got, want)
		}
	}
	check("usedBytes", e.core.Mu.Room.Used(), a.used)
	check("pinnedBytes", e.core.Mu.Room.Pinned(), a.pinned)
	check("limboBytes", inside(e.core.writing, "drafts", "limbo", "bytes").Int(), a.limbo)
	check("guessedBytes", inside(e.core.writing, "opens", "guessed").Addr().Interface().(*state.Allowance).Taken(), a.guessed)
	blocks, hollow := e.core.BlocksLocked()
	check("blocks", blocks, a.blocks)
	check("hollow", hollow, a.hollow)
	check("dirFiles", inside(e.core.names, "names", "dirFiles").Int(), a.dirs)
	for g := range e.core.Mu.Room.Groups() {
		check(fmt.Sprintf("group %q", g.Name()), g.Used(), a.groups[g])
		check(fmt.Sprintf("files of group %q", g.Name()), int64(g.Files()), int64(a.files[g]))
		pins, _ := g.Pins()
		check(fmt.Sprintf("pins of group %q", g.Name()), pins, a.pins[g])
	}
	for acc := range e.core.Mu.Room.Accounts() {
		check(fmt.Sprintf("account of %+v", acc.Holder()), acc.Used(), a.accounts[acc])
		pins, _ := acc.Pins()
		check(fmt.Sprintf("pins of %+v", acc.Holder()), pins, a.pins[acc])
		check(fmt.Sprintf("order of %+v", acc.Holder()), int64(inside(acc, "order").Interface().(policy.Policy).Len()), int64(a.ranked[acc]))
	}
	return errors.Join(a.errs...)
}

// billed adds charge to what those who pay use.
func (a *audit) billed(b room.Bill, charge int64) {
	a.groups[b.Group] += charge
	for _, acc := range inside(&b, "accounts").Interface().([2]*room.Account) {
		a.accounts[acc] += charge
	}
}

// accountsLocked checks that a file is in the account of its owner, and notes its place in the orders of its accounts.
func (a *audit) accountsLocked(id index.ID, en *index.Entry) {
	r := a.e.core.Mu.Room
	if got, want := en.Accounts[state.OfUser], r.OfUser(en.UID); got != want {
		a.bad("entry %d of user %d: in account %d, want %d", id, en.UID, got, want)
	}
	for _, n := range en.Accounts {
		if n != 0 && en.Ranked() {
			a.ranked[r.Account(n)]++
		}
	}
}

// pinsLocked adds what a user has pinned to what those who pay have pinned. charge is what the file costs in memory.
func (a *audit) pinsLocked(id index.ID, en *index.Entry, charge int64) {
	if !en.Pinned() {
		return
	}
	if !a.e.core.Mu.Ix.Linked(id) {
		a.bad("entry %d: it has no name, and is pinned", id)
	}
	if a.e.core.HollowLocked(id, en) {
		charge = state.ChargeOf(en.Size)
	}
	b := state.BillOf(a.e.core.Mu.Room, en)
	a.pins[b.Group] += charge
	for _, acc := range inside(&b, "accounts").Interface().([2]*room.Account) {
		a.pins[acc] += charge
	}
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
	for _, s := range e.core.Tiers {
		for op := range s.QueuedLocked() {
			fn(s, op)
		}
		for op := range s.BegunLocked() {
			fn(s, op)
		}
	}
}

func (a *audit) entryLocked(id index.ID) {
	e := a.e
	en := e.core.Mu.Ix.At(id)
	linked, f := e.core.Mu.Ix.Linked(id), e.core.Mu.Files[id]
	if !linked && en.Lookups == 0 && en.Opens == 0 && f == nil {
		a.bad("entry %d: nobody can reach it", id)
	}
	if en.IsDir() {
		if en.InMemory() {
			a.dirs++
		}
		return
	}
	charge := e.core.ChargeLocked(id, en)
	a.used += charge
	gr := e.core.Mu.Room.Group(en.Group)
	a.billed(state.BillOf(e.core.Mu.Room, en), charge)
	a.accountsLocked(id, en)
	a.pinsLocked(id, en, charge)
	if a.files[gr]++; e.core.Mu.Room.Find(gr.Name()) != gr {
		a.bad("entry %d: its group was forgotten", id)
	}
	if en.Counted() {
		a.pinned += charge
	}
	if en.InLimbo() {
		a.limbo += state.ChargeOf(en.Size)
	}
	if f != nil {
		a.guessed += inside(f, "guessed").Int()
	}
	resident := en.InMemory() || f != nil
	if linked && en.Committed() {
		if resident {
			a.blocks++
		} else {
			a.hollow++
		}
		if !resident && en.Tiers == 0 {
			a.bad("%s: in no tier", e.core.Mu.Ix.Path(id))
		}
		if e.core.GroupOfLocked(e.core.Mu.Ix.Parent(id)) != en.Group {
			a.bad("%s: charged to group %q", e.core.Mu.Ix.Path(id), e.core.Mu.Room.Group(en.Group).Name())
		}
	}
	if !linked && en.Tiers|en.Storing != 0 {
		a.bad("entry %d: has no name, but copies in tiers %b, underway to %b", id, en.Tiers, en.Storing)
	}
	hold := en.Flags&(index.FlagUncommitted|index.FlagPinned|index.FlagTemp|index.FlagPlain) != 0 || e.core.Mu.Room.Group(en.Group).Pinned() || !linked || !resident
	if got, want := en.Counted(), hold || en.Opens > 0; got != want && charge > 0 {
		a.bad("entry %d: counted as pinned %v, want %v", id, got, want)
	}
	if got := en.Ranked(); got == hold && !a.leaving[id] {
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
		if of == s && e.core.Mu.Ix.Valid(op.ID) && e.core.Mu.Ix.At(op.ID).Seq == op.Seq {
			storing[op.ID] = true
		}
	})
	e.core.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
		if en.Storing&s.Bit != 0 && !storing[id] {
			a.bad("%s: marked as on its way to %q, but no store is queued", e.core.Mu.Ix.Path(id), s.Opts.Name)
		}
		if en.Storing&en.Tiers&s.Bit != 0 {
			a.bad("%s: in %q and on its way there", e.core.Mu.Ix.Path(id), s.Opts.Name)
		}
		return true
	})
}

// Leaving reports whether a block is being copied because its policy has evicted it.
func (e *Engine) Leaving(id index.ID) bool {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	leaving := false
	for _, s := range e.core.Tiers {
		for op := range s.BegunLocked() {
			leaving = leaving || op.ID == id && op.Leaving
		}
	}
	return leaving
}

// StoreWaiters returns how many wait for stores that are queued or under way.
func (e *Engine) StoreWaiters() int {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	n := 0
	e.eachStoreLocked(func(_ *state.Secondary, op *lane.Store) { n += reflect.ValueOf(op).Elem().FieldByName("waiters").Len() })
	return n
}

// Ref counts one more reference to an entry that the caller refers to already.
func (e *Engine) Ref(id index.ID) {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	e.core.Mu.Ix.At(id).Lookups++
}

// Leased returns how many leases of requests are remembered.
func (e *Engine) Leased() int {
	e.core.Mu.Lock()
	defer e.core.Mu.Unlock()
	return inside(e.core.names, "lookups", "leases").Addr().Interface().(*room.Leases).Len()
}
