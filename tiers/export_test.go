package tiers

import (
	"errors"
	"fmt"

	"github.com/kvfs/kvfs/tiers/index"
)

// EventRing is how many events the log keeps.
const EventRing = eventRing

// Expire does at once what runExpiry does at each tick.
func (e *Engine) Expire() {
	var g gone
	e.mu.Lock()
	e.expireLocked(&g)
	e.expireFilesLocked(&g)
	e.mu.Unlock()
	e.finish(&g)
}

// Audit compares every account of the engine with what the entries say, which
// is too slow to be an invariant of the lock. Handles may be open.
func (e *Engine) Audit() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	var used, pinned, limbo, guessed, blocks int64
	groups := make([]int64, len(e.mu.groups))
	for id, invalid := index.Root, 0; invalid < 5000; id++ {
		if !e.mu.ix.Valid(id) {
			invalid++
			continue
		}
		en := e.mu.ix.At(id)
		linked, f := e.mu.ix.Linked(id), e.mu.files[id]
		if !linked && en.Lookups == 0 && en.Opens == 0 && f == nil {
			bad("entry %d: nobody can reach it", id)
		}
		if en.Mode&modeType == modeDir {
			continue
		}
		charge := e.chargeLocked(id, en)
		used += charge
		groups[en.Group] += charge
		if en.Flags&flagCounted != 0 {
			pinned += charge
		}
		if en.Flags&flagLimbo != 0 {
			limbo += chargeOf(en.Size)
		}
		if linked && en.Flags&flagUncommitted == 0 {
			blocks++
			if e.groupOfLocked(e.mu.ix.Parent(id), e.mu.ix.Name(id)) != en.Group {
				bad("%s: charged to group %q", e.mu.ix.Path(id), e.mu.groups[en.Group].name)
			}
		}
		hold := en.Flags&(flagUncommitted|flagPinned) != 0 || e.mu.groups[en.Group].opts.Pinned || !linked
		if got, want := en.Flags&flagCounted != 0, hold || en.Opens > 0; got != want && charge > 0 {
			bad("entry %d: counted as pinned %v, want %v", id, got, want)
		}
		if got := en.Flags&flagPolicy != 0; got == hold {
			bad("entry %d: in the policy %v, want %v", id, got, !hold)
		}
		if f != nil {
			guessed += f.guessed
		}
	}
	check := func(what string, got, want int64) {
		if got != want {
			bad("%s: account says %d, entries say %d", what, got, want)
		}
	}
	check("usedBytes", e.mu.usedBytes, used)
	check("pinnedBytes", e.mu.pinnedBytes, pinned)
	check("limboBytes", e.mu.limboBytes, limbo)
	check("guessedBytes", e.mu.guessedBytes, guessed)
	check("blocks", e.mu.blocks, blocks)
	for i, g := range e.mu.groups {
		check(fmt.Sprintf("group %q", g.name), g.usedBytes, groups[i])
	}
	return errors.Join(errs...)
}
