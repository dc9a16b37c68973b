package tiers

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/kvfs/kvfs/tiers/block"
	"github.com/kvfs/kvfs/tiers/catalog"
	"github.com/kvfs/kvfs/tiers/driver"
	"github.com/kvfs/kvfs/tiers/index"
	"github.com/kvfs/kvfs/tiers/lane"
	"github.com/kvfs/kvfs/tiers/room"
	"github.com/kvfs/kvfs/tiers/state"
	"github.com/kvfs/kvfs/tiers/transfer"
)

// SetListWait sets Options.ListWait.
func (e *Engine) SetListWait(d time.Duration) { e.st.Opts.ListWait = d }

// Expire does at once what runExpiry does at each tick.
func (e *Engine) Expire() {
	var g state.Gone
	e.st.Mu.Lock()
	e.Memory.ExpireLocked(&g)
	e.st.Mu.Unlock()
	e.st.Finish(&g)
	e.Files.ExpireFiles()
	e.Names.SettleStrays(e.Names.SettleStrays(nil))
}

// Resolve finds a path below the mount, without counting a reference. It fails with ErrNotFound.
func (e *Engine) Resolve(_ context.Context, path string) (state.Attr, error) {
	var g state.Gone
	defer e.st.Finish(&g)
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	id := e.Names.WalkLocked(path, &g)
	if id == 0 || !e.st.Mu.Ix.At(id).Committed() {
		return state.Attr{}, block.ErrNotFound
	}
	return e.Names.AttrLocked(id, e.st.Mu.Ix.At(id)), nil
}

// Promotions returns how many blocks are on their way into memory.
func (e *Engine) Promotions() (n int) {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	return e.promotionsLocked()
}

func (e *Engine) promotionsLocked() (n int) {
	e.st.Mu.Ix.Descend(index.Root, func(id index.ID, _ *index.Entry) bool {
		if e.Transfer.PromotingLocked(id) != "" {
			n++
		}
		return true
	})
	return n
}

// AtRest reports whether no load is queued or under way, and none has room in memory.
func (e *Engine) AtRest() bool {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	return !e.loadingLocked() && e.st.Mu.Room.Used() == e.chargedLocked()
}

// loadingLocked reports whether a load is queued or under way.
func (e *Engine) loadingLocked() bool {
	for _, s := range e.st.Tiers {
		if jobs, waiting := s.LoadJobsLocked(nil); len(jobs)+waiting > 0 {
			return true
		}
	}
	return e.promotionsLocked() > 0
}

// chargedLocked returns what all entries cost.
func (e *Engine) chargedLocked() (bytes int64) {
	for id := index.Root; id < e.st.Mu.Ix.End(); id++ {
		if e.st.Mu.Ix.Valid(id) && !e.st.Mu.Ix.At(id).IsDir() {
			bytes += e.st.Mu.Charge(id, e.st.Mu.Ix.At(id))
		}
	}
	return bytes
}

// Quiesce waits until all promotions have ended and all stores, removals and updates
// that were queued have been done.
func (e *Engine) Quiesce(ctx context.Context) error {
	for idle := false; ; {
		e.st.Mu.Lock()
		loading := e.loadingLocked()
		was := idle
		idle = !loading
		told := make(chan struct{}, len(e.st.Tiers))
		for _, s := range e.st.Tiers {
			jobs, queued := s.StoreJobsLocked(nil)
			idle = idle && len(jobs)+queued == 0 && !s.KeyedLocked()
			s.AfterKeyedLocked(func() { told <- struct{}{} })
		}
		idle = idle && e.st.Mu.Room.Used() == e.chargedLocked()
		e.st.Mu.Unlock()
		for range e.st.Tiers {
			select {
			case <-told:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if idle && was {
			return nil
		}
		if err := errors.Join(e.DrainPresent(ctx), ctx.Err()); err != nil {
			return err
		}
		runtime.Gosched()
	}
}

// Copies returns what the engine believes a secondary tier to hold, by path.
func (e *Engine) Copies(tier string) map[string]driver.Held {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	held := map[string]driver.Held{}
	for _, s := range e.st.Tiers {
		if s.Opts.Name != tier {
			continue
		}
		e.st.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
			if en.Tiers()&s.Bit != 0 {
				h := driver.Held{Key: e.st.KeyLocked(id), Size: en.Size(), Attrs: e.st.AttrsLocked(id, en)}
				h.Sum.Sum, h.Sum.Valid = en.Sum(), en.HasSum()
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

	used, pinned, blocks, nonresident, dirs int64
	groups                                  map[*room.Group]int64
	accounts                                map[*room.Account]int64
	pins                                    map[any]int64 // what users have pinned of a group or an account
	files                                   map[*room.Group]int
	leaving                                 map[index.ID]bool
}

func (a *audit) bad(format string, args ...any) {
	a.errs = append(a.errs, fmt.Errorf(format, args...))
}

// Audit compares every account of the engine with what the entries say, which
// is too slow to be an invariant of the lock. Handles may be open, and promotions
// and stores under way.
func (e *Engine) Audit() error {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	a := &audit{e: e, accounts: map[*room.Account]int64{}, pins: map[any]int64{}, groups: map[*room.Group]int64{}, files: map[*room.Group]int{}, leaving: map[index.ID]bool{}}
	a.leavingLocked()
	for id, invalid := index.Root, 0; invalid < 5000; id++ {
		if !e.st.Mu.Ix.Valid(id) {
			invalid++
			continue
		}
		a.entryLocked(id)
	}
	for _, s := range e.st.Tiers {
		a.tierLocked(s)
	}
	check := func(what string, got, want int64) {
		if got != want {
			a.bad("%s: account says %d, entries say %d", what, got, want)
		}
	}
	loading := e.loadingLocked() // loads have room that no entry has yet
	charged := func(what string, got, want int64) {
		if !loading || got < want {
			check(what, got, want)
		}
	}
	charged("usedBytes", e.st.Mu.Room.Used(), a.used)
	charged("pinnedBytes", e.st.Mu.Room.Pinned(), a.pinned)
	blocks, nonresident := e.st.Mu.Blocks()
	check("blocks", blocks, a.blocks)
	check("nonresident", nonresident, a.nonresident)
	check("dirFiles", e.st.Mu.DirFiles(), a.dirs)
	for g := range e.st.Mu.Room.Groups() {
		charged(fmt.Sprintf("group %q", g.Name()), g.Used(), a.groups[g])
		check(fmt.Sprintf("files of group %q", g.Name()), int64(g.Files()), int64(a.files[g]))
		pins, _ := g.Pins()
		check(fmt.Sprintf("pins of group %q", g.Name()), pins, a.pins[g])
	}
	for acc := range e.st.Mu.Room.Accounts() {
		charged(fmt.Sprintf("account of %+v", acc.Holder()), acc.Used(), a.accounts[acc])
		pins, _ := acc.Pins()
		check(fmt.Sprintf("pins of %+v", acc.Holder()), pins, a.pins[acc])
	}
	return errors.Join(a.errs...)
}

// billed adds charge to what those who pay for an entry use.
func (a *audit) billed(en *index.Entry, charge int64) {
	a.groups[a.e.st.Mu.Room.Group(en.Group())] += charge
	for _, n := range en.Accounts() {
		a.accounts[a.e.st.Mu.Room.Account(n)] += charge
	}
}

// accountsLocked checks that a file is in the account of its owner.
func (a *audit) accountsLocked(id index.ID, en *index.Entry) {
	r := a.e.st.Mu.Room
	if got, want := en.Accounts()[catalog.OfUser], r.OfUser(en.UID()); got != want {
		a.bad("entry %d of user %d: in account %d, want %d", id, en.UID(), got, want)
	}
}

// pinsLocked adds what a user has pinned to what those who pay have pinned. charge is what the file costs in memory.
func (a *audit) pinsLocked(id index.ID, en *index.Entry, charge int64) {
	if !en.Pinned() {
		return
	}
	if !a.e.st.Mu.Ix.Linked(id) {
		a.bad("entry %d: it has no name, and is pinned", id)
	}
	if a.e.st.NonresidentLocked(id, en) {
		charge = catalog.ChargeOf(en.Size())
	}
	a.pins[a.e.st.Mu.Room.Group(en.Group())] += charge
	for _, n := range en.Accounts() {
		a.pins[a.e.st.Mu.Room.Account(n)] += charge
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
	for _, s := range e.st.Tiers {
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
	en := e.st.Mu.Ix.At(id)
	linked, f := e.st.Mu.Ix.Linked(id), e.st.Mu.Files[id]
	if !linked && en.Lookups() == 0 && en.Opens() == 0 && f == nil {
		a.bad("entry %d: nobody can reach it", id)
	}
	if en.IsDir() {
		if en.InMemory() {
			a.dirs++
		}
		return
	}
	charge := e.st.Mu.Charge(id, en)
	a.used += charge
	gr := e.st.Mu.Room.Group(en.Group())
	a.billed(en, charge)
	a.accountsLocked(id, en)
	a.pinsLocked(id, en, charge)
	if a.files[gr]++; e.st.Mu.Room.Find(gr.Name()) != gr {
		a.bad("entry %d: its group was forgotten", id)
	}
	if en.Counted() {
		a.pinned += charge
	}
	resident := en.InMemory() || f != nil
	if linked && en.Committed() {
		if resident {
			a.blocks++
		} else {
			a.nonresident++
		}
		if !resident && en.Tiers() == 0 {
			a.bad("%s: in no tier", e.st.Mu.Ix.Path(id))
		}
		if e.st.Mu.GroupOf(e.st.Mu.Ix.Parent(id)) != en.Group() {
			a.bad("%s: charged to group %q", e.st.Mu.Ix.Path(id), e.st.Mu.Room.Group(en.Group()).Name())
		}
	}
	if !linked && en.Tiers()|en.Storing() != 0 {
		a.bad("entry %d: has no name, but copies in tiers %b, underway to %b", id, en.Tiers(), en.Storing())
	}
	hold := en.Flags()&(index.FlagUncommitted|index.FlagPinned|index.FlagTemp|index.FlagPlain) != 0 || e.st.Mu.Room.Group(en.Group()).Pinned() || !linked || !resident
	if got, want := en.Counted(), hold || en.Opens() > 0; got != want && charge > 0 {
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
		if of == s && e.st.Mu.Ix.Valid(op.ID) && e.st.Mu.Ix.At(op.ID).Seq() == op.Seq {
			storing[op.ID] = true
		}
	})
	e.st.Mu.Ix.Descend(index.Root, func(id index.ID, en *index.Entry) bool {
		if en.Storing()&s.Bit != 0 && !storing[id] {
			a.bad("%s: marked as on its way to %q, but no store is queued", e.st.Mu.Ix.Path(id), s.Opts.Name)
		}
		if en.Storing()&en.Tiers()&s.Bit != 0 {
			a.bad("%s: in %q and on its way there", e.st.Mu.Ix.Path(id), s.Opts.Name)
		}
		return true
	})
}

// Leaving reports whether a block is being copied because its policy has evicted it.
func (e *Engine) Leaving(id index.ID) bool {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	leaving := false
	for _, s := range e.st.Tiers {
		for op := range s.BegunLocked() {
			leaving = leaving || op.ID == id && op.Leaving
		}
	}
	return leaving
}

// Ref counts one more reference to an entry that the caller refers to already.
func (e *Engine) Ref(id index.ID) {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	e.st.ApplyLocked(catalog.Referred{ID: id})
}

// Limits of prefetches.
const (
	PrefetchKeys = transfer.PrefetchKeys
	MaxHintCalls = transfer.MaxHintCalls
)

// Measure has a tier appear to have given bytes in took, just now.
func (e *Engine) Measure(tier string, bytes int64, took time.Duration) {
	e.st.Mu.Lock()
	defer e.st.Mu.Unlock()
	for _, s := range e.st.Tiers {
		if s.Opts.Name == tier {
			now := e.st.Opts.Now()
			s.Predict = lane.Predictor{}
			s.Predict.Ended(now.Add(-took), now, bytes)
		}
	}
}
